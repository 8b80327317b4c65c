"""A topology as the matrix of ``nvidia-smi topo -m``, with the islands and a legend.

The format is nvidia-smi's (header, GPU rows, NIC rows, ``NIC Legend:``), so that its parsers accept the output. Unlike
nvidia-smi, unknown values are ``?``, and so are distances between NICs, which the model does not contain.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gputopo.model import PcieDistance
from gputopo.render.glyphs import ASCII, UNICODE
from gputopo.render.notes import island_notes
from gputopo.render.wording import UNKNOWN, island_marks, role_of, without_colour

if TYPE_CHECKING:
    from gputopo.model import Gpu, NodeTopology, Nvlink
    from gputopo.render.wording import Cell, Paint

SELF = "X"
_ODD = re.compile(r"[^A-Za-z0-9_.:+@-]")  # not in names of network devices; a parser could mistake them for cells
_LIST = re.compile(r"[0-9,-]+|N/A")
_LEGEND = {
    SELF: "Self",
    PcieDistance.SYS.value: "Connection traversing PCIe as well as the link between NUMA nodes",
    PcieDistance.NODE.value: "Connection traversing PCIe as well as the link between PCIe host bridges of a NUMA node",
    PcieDistance.PHB.value: "Connection traversing PCIe as well as a PCIe host bridge (typically the CPU)",
    PcieDistance.PXB.value: "Connection traversing several PCIe bridges (without a PCIe host bridge)",
    PcieDistance.PIX.value: "Connection traversing at most one PCIe bridge",
    "NV#": "Connection traversing a bonded set of # NVLinks",
    UNKNOWN: "Not known",
}


def render_matrix(topology: NodeTopology, *, ascii_only: bool = False, paint: Paint = without_colour) -> str:
    """Return the matrix, its legends, and the islands. Column widths fit the cells; ``paint`` adds colour."""
    if not topology.gpus:
        return "no GPU\n"
    glyphs = ASCII if ascii_only else UNICODE
    table = _table(topology)
    widths = [max(len(text) for _, text in column) for column in zip(*table, strict=True)]
    lines = [_line(row, widths, paint) for row in table]
    if topology.nics:
        lines += ["", "NIC Legend:", ""]
        lines += [f"  NIC{place}: {_ODD.sub(UNKNOWN, nic.name)}".rstrip() for place, nic in enumerate(topology.nics)]
    lines += ["", "Legend:", ""]
    lines += [f"  {word:4} = {meaning}" for word, meaning in _legend(table, nvlink=topology.nvlink is not None)]
    if islands := island_notes(topology, glyphs):
        lines += ["", "NVLink islands:", ""]
        lines += ["".join(paint(role, text) for role, text in note) for note in islands]
    return "\n".join(lines) + "\n"


def _line(row: list[Cell], widths: list[int], paint: Paint) -> str:
    """Return the cells padded to their columns, without trailing blanks."""
    while row and not row[-1][1]:
        row = row[:-1]
    cells = [paint(role, text) + " " * (width - len(text)) for (role, text), width in zip(row, widths, strict=False)]
    return "  ".join(cells).rstrip()


def _legend(table: list[list[Cell]], *, nvlink: bool) -> list[tuple[str, str]]:
    """Return the legend of the values that occur, in the order of nvidia-smi's legend.

    NV# is in it whenever NVLinks are known: a legend without NV# is that of ``topo -mp``, which shows no NVLinks.
    """
    seen = {"NV#"} if nvlink else set()
    seen |= {re.sub(r"^NV[0-9]+$", "NV#", text) for row in table[1:] for _, text in row[1:]}
    return [(word, meaning) for word, meaning in _LEGEND.items() if word in seen]


def _table(topology: NodeTopology) -> list[list[Cell]]:
    """Return header, GPU rows and NIC rows, of equal length; NICs have no affinities, so their rows end in blanks."""
    marked = island_marks(topology)
    names = {gpu.index: (_role(marked.get(gpu.index)), f"GPU{gpu.index}") for gpu in topology.gpus}
    nics = [("nic", f"NIC{place}") for place in range(len(topology.nics))]
    grace = any(gpu.memory_numa_node is not None for gpu in topology.gpus)
    titles = ["CPU Affinity", "NUMA Affinity", *(["GPU NUMA ID"] if grace else [])]
    header = [("text", ""), *names.values(), *nics, *(("text", title) for title in titles)]
    rows = [header]
    for place, gpu in enumerate(topology.gpus):
        pairs = [_pair(topology, gpu, far) for far in topology.gpus]
        beside = [_distance(nic.distances[place]) for nic in topology.nics]
        rows.append([names[gpu.index], *pairs, *beside, *_affinities(topology, gpu)[: len(titles)]])
    for place, nic in enumerate(topology.nics):
        others = [("dim", SELF if other == place else UNKNOWN) for other in range(len(nics))]
        blank = [("text", "")] * len(titles)
        rows.append([nics[place], *(_distance(distance) for distance in nic.distances), *others, *blank])
    return rows


def _role(mark: str | None) -> str:
    """A lost GPU has no mark."""
    return "bad" if mark is None else role_of(mark)


def _pair(topology: NodeTopology, gpu: Gpu, far: Gpu) -> Cell:
    """Return the cell of a pair. NVLink hides the distance, as in nvidia-smi: ``NV17`` if 1 of 18 is down."""
    if gpu.index == far.index:
        return "dim", SELF
    lanes = 0 if topology.nvlink is None else _lanes(topology.nvlink, gpu, far)
    if lanes:
        return "text", f"NV{lanes}"
    pair = (min(gpu.index, far.index), max(gpu.index, far.index))
    if topology.nvlink is None or pair in topology.nvlink.unknown:
        return "unknown", UNKNOWN  # a distance here would claim that there is no NVLink
    return _distance(topology.distance(gpu.index, far.index))


def _lanes(nvlink: Nvlink, gpu: Gpu, far: Gpu) -> int:
    """Return the number of active NVLinks between two GPUs; through a fabric the smaller number of the two."""
    if not (gpu.usable and far.usable) or True in (gpu.mig_enabled, far.mig_enabled):
        return 0
    ends = (min(gpu.index, far.index), max(gpu.index, far.index))
    direct = [link.lanes for link in nvlink.links if (link.a, link.b) == ends]
    ups = [up for up in nvlink.uplinks if up.gpu in ends]
    through = [min(up.lanes for up in ups)] if len({up.fabric for up in ups}) < len(ups) else []
    return max([*direct, *through], default=0)


def _distance(distance: PcieDistance | None) -> Cell:
    return ("unknown", UNKNOWN) if distance is None else ("dim", distance.value)


def _affinities(topology: NodeTopology, gpu: Gpu) -> list[Cell]:
    """Return CPU affinity, NUMA affinity, and the NUMA node that is the GPU's memory.

    A text that is not a list of numbers is not shown: a parser of the matrix could mistake it for cells.
    """
    node = None if gpu.numa_node is None else str(gpu.numa_node)
    cpus = next((each.cpus for each in topology.numa_nodes if str(each.id) == node), None)
    memory = "N/A" if gpu.memory_numa_node is None else str(gpu.memory_numa_node)
    texts = (gpu.cpu_affinity or cpus, gpu.numa_affinity or node, memory)
    shown = ["".join((text or "").split()) for text in texts]
    return [("text", text) if _LIST.fullmatch(text) else ("unknown", UNKNOWN) for text in shown]
