"""A topology as a tree: the machine, its NUMA nodes and PCIe switches, GPUs and NICs, then notes.

The default view of ``gputopo show``. One line per GPU, its cells aligned over the whole tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gputopo.render.folding import MIN_WIDTH, folded_line, text_length
from gputopo.render.glyphs import ASCII, UNICODE
from gputopo.render.gpu_cells import gpu_cells
from gputopo.render.notes import sections
from gputopo.render.places import deviceless, numa_places
from gputopo.render.wording import ALONE, format_gib, island_marks, role_of, without_colour

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gputopo.model import Gpu, Nic, NodeTopology
    from gputopo.render.glyphs import Glyphs
    from gputopo.render.places import NumaPlace
    from gputopo.render.wording import Cell, Paint

_GAP = "  "
_HANGING = (("text", _GAP),)
_HANGING_NOTE = (("text", _GAP * 3),)
# Columns of a GPU that a narrow terminal does without: product, memory, bandwidth. The title and the notes below the
# tree have them, too.
_DROPPED = (1, 2, 4)


class TreeRow(msgspec.Struct, frozen=True):
    """A line of the tree: a label, and for a GPU cells that are aligned with those of other GPUs."""

    label: tuple[Cell, ...]
    columns: tuple[Cell, ...] = ()
    below: tuple[TreeRow, ...] = ()


def render_tree(
    topology: NodeTopology,
    name: str | None = None,
    *,
    ascii_only: bool = False,
    paint: Paint = without_colour,
    width: int | None = None,
) -> str:
    """Return the tree and the notes below it. ``paint(role, text)`` adds colour (roles: ``wording.without_colour``).

    ``width``: columns of the terminal; None: unlimited. Where a GPU's line does not fit, the columns of products,
    memory and bandwidths are left out, in this order, and then lines are folded between words.
    """
    glyphs = ASCII if ascii_only else UNICODE
    columns = None if width is None else max(width, MIN_WIDTH)
    lines = [each for line in _title(topology, name, glyphs) for each in folded_line(line, columns, _HANGING)]
    lines += _drawn(_rows(topology, glyphs), glyphs, columns)
    for heading, notes in sections(topology, glyphs):
        lines += [(), (("title", heading),)]
        lines += [each for note in notes for each in folded_line(note, columns, _HANGING_NOTE)]
    return "".join("".join(paint(role, text) for role, text in _trimmed(line)) + "\n" for line in lines)


def _trimmed(line: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """Return a line without trailing blanks, also if the last cells are empty."""
    while line and not line[-1][1].rstrip():
        line = line[:-1]
    return (*line[:-1], (line[-1][0], line[-1][1].rstrip())) if line else ()


def _title(topology: NodeTopology, name: str | None, glyphs: Glyphs) -> Iterator[tuple[Cell, ...]]:
    names = [glyphs.shown(text) for text in (name, topology.machine) if text]
    versions = (("driver", topology.driver_version), ("CUDA", topology.cuda_version))
    software = [f"{what} {glyphs.shown(version)}" for what, version in versions if version]
    separator = f" {glyphs.dot} " if software else ""
    inventory = glyphs.joined(_inventory(topology, glyphs))
    yield ("title", glyphs.joined(names) if names else inventory), ("dim", separator + glyphs.joined(software))
    if names:
        yield (("text", inventory),)


def _inventory(topology: NodeTopology, glyphs: Glyphs) -> list[str]:
    """Return ``8 x NVIDIA H100 80GB HBM3, 79.6 GiB``; several products in order of their first GPU."""
    counts: dict[str, int] = {}
    named = any(gpu.product for gpu in topology.usable)
    for gpu in topology.usable:
        product = glyphs.shown(gpu.product) if gpu.product else "GPU of unknown product" if named else "GPU"
        text = product if gpu.memory_mib is None else f"{product}, {format_gib(gpu.memory_mib)}"
        counts[text] = counts.get(text, 0) + 1
    facts = [f"{count} {glyphs.times} {text}" for text, count in counts.items()]
    if lost := len(topology.gpus) - len(topology.usable):
        facts.append(f"{lost} lost")
    if topology.partial:
        facts.append("only a part of the machine is visible here")
    return facts or ["no GPU"]


def _rows(topology: NodeTopology, glyphs: Glyphs) -> list[TreeRow]:
    marked = island_marks(topology)
    rows = [_place(topology, place, marked, glyphs) for place in numa_places(topology)]
    if bare := deviceless(topology):
        ids = ", ".join(str(node.id) for node in bare)
        rows.append(TreeRow((("dim", f"NUMA {ids}  no GPU, no NIC"),)))
    return rows


def _place(topology: NodeTopology, place: NumaPlace, marked: dict[int, str], glyphs: Glyphs) -> TreeRow:
    title = ("unknown", "NUMA ?") if place.numa is None else ("title", f"NUMA {glyphs.shown(place.numa)}")
    facts = [f"CPUs {glyphs.shown(cpus)}"] if (cpus := _cpus(place)) else []
    if place.node is not None and place.node.memory_mib is not None:
        facts.append(format_gib(place.node.memory_mib))
    below = tuple(_devices(topology, place, marked, glyphs))
    return TreeRow((title, ("dim", "  " + glyphs.joined(facts))), (), below)


def _cpus(place: NumaPlace) -> str | None:
    """Return the CPUs of the NUMA node, or else the common CPU affinity of its GPUs."""
    if place.node is not None and place.node.cpus:
        return place.node.cpus
    near = {gpu.cpu_affinity for gpu in place.gpus}
    return near.pop() if len(near) == 1 else None


def _devices(topology: NodeTopology, place: NumaPlace, marked: dict[int, str], glyphs: Glyphs) -> Iterator[TreeRow]:
    """Yield the rows of the devices. A GPU with its NICs is one row; NICs without a GPU are last."""
    for group in place.groups:
        if len(group.gpus) == 1:
            yield _gpu(topology, group.gpus[0], marked, glyphs, group.nics)
        elif group.gpus:
            gpus = [_gpu(topology, gpu, marked, glyphs) for gpu in group.gpus]
            yield TreeRow((("dim", "PCIe switch"),), (), (*gpus, *_nics(group.nics, glyphs)))
    yield from _nics(tuple(nic for group in place.groups if not group.gpus for nic in group.nics), glyphs)


def _gpu(
    topology: NodeTopology, gpu: Gpu, marked: dict[int, str], glyphs: Glyphs, nics: tuple[Nic, ...] = ()
) -> TreeRow:
    mark = marked.get(gpu.index, "")
    role = role_of(mark) if mark else "bad"
    # A letter would suggest other GPUs: a single GPU gets a dot.
    shown = glyphs.alone if mark == ALONE else mark
    beside = glyphs.joined(f"{names} {speed}".rstrip() for names, speed in _by_rate(nics, glyphs))
    columns = ((role, shown), *gpu_cells(topology, gpu, glyphs), ("nic", f"+ {beside}" if beside else ""))
    return TreeRow(((role, f"GPU{gpu.index}"),), columns)


def _nics(nics: tuple[Nic, ...], glyphs: Glyphs) -> Iterator[TreeRow]:
    for names, speed in _by_rate(nics, glyphs):
        yield TreeRow((("nic", names), ("dim", f"  {speed}")))


def _by_rate(nics: tuple[Nic, ...], glyphs: Glyphs) -> list[tuple[str, str]]:
    """Return names and speed of the NICs, grouped by speed."""
    names: dict[int | None, list[str]] = {}
    for nic in nics:
        names.setdefault(nic.rate_gbps, []).append(glyphs.shown(nic.name))
    return [
        (" ".join(some), "" if rate is None else f"{rate} Gb/s{' each' if len(some) > 1 else ''}")
        for rate, some in names.items()
    ]


def _drawn(rows: list[TreeRow], glyphs: Glyphs, width: int | None) -> list[tuple[Cell, ...]]:
    """Return the lines, with branches before the labels and the columns of all GPUs aligned."""
    walked = list(_walked(rows, "", glyphs))
    gpus = [(prefix, row) for prefix, _, row in walked if row.columns]
    indent = max((len(prefix) + text_length(row.label) for prefix, row in gpus), default=0)
    widths = [max(len(cell[1]) for cell in column) for column in zip(*(row.columns for _, row in gpus), strict=True)]
    for place in _DROPPED if width is not None and widths else ():
        if indent + sum(each + len(_GAP) for each in widths if each) <= (width or 0):
            break
        widths[place] = 0
    lines: list[tuple[Cell, ...]] = []
    for prefix, hanging, row in walked:
        pad = " " * (indent - len(prefix) - text_length(row.label)) if row.columns else ""
        cells = [
            (role, f"{_GAP}{text:{column}}")
            for (role, text), column in zip(row.columns, widths, strict=False)
            if column
        ]
        line = _trimmed((*row.label, ("text", pad), *cells))
        room = None if width is None else width - len(prefix)
        for number, each in enumerate(folded_line(line, room, (("text", _GAP),))):
            lines.append((("frame", hanging if number else prefix), *each))
    return lines


def _walked(
    rows: list[TreeRow] | tuple[TreeRow, ...], prefix: str, glyphs: Glyphs
) -> Iterator[tuple[str, str, TreeRow]]:
    """Yield every row, top to bottom, with the branches before it and before the lines that continue it."""
    for place, row in enumerate(rows, start=1):
        is_last = place == len(rows)
        below = prefix + (" " * len(glyphs.pipe) if is_last else glyphs.pipe)
        yield prefix + (glyphs.last if is_last else glyphs.branch), below, row
        yield from _walked(row.below, below, glyphs)
