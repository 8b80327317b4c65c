"""The notes below the tree, a line each: islands, degraded hardware, unknown facts."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from gputopo.model import Interconnect, ProblemKind
from gputopo.render.wording import ALONE, format_number, gpu_names, island_marks, parse_subject, role_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gputopo.model import Island, NodeTopology, Nvlink
    from gputopo.render.glyphs import Glyphs
    from gputopo.render.wording import Cell

Note = tuple["Cell", ...]  # the cells of one line, to be joined without spaces

_KINDS = {
    ProblemKind.UNKNOWN: "not known",
    ProblemKind.CONFLICT: "sources disagree",
    ProblemKind.INCOMPLETE: "incomplete",
}


def sections(topology: NodeTopology, glyphs: Glyphs) -> Iterator[tuple[str, list[Note]]]:
    """Return headings with their notes; sections without notes are left out."""
    found = (
        ("NVLink islands", island_notes(topology, glyphs)),
        ("Multi-node NVLink", _fabric(topology, glyphs)),
        ("Degraded", _degraded(topology, glyphs)),
        ("Caveats", _problems(topology, glyphs)),
    )
    return ((heading, notes) for heading, notes in found if notes)


def island_facts(nvlink: Nvlink, island: Island) -> list[str]:
    """Return interconnect, bandwidth and missing pairs of an island: ``["NVSwitch", "600 GB/s per GPU"]``."""
    name = "NVSwitch" if island.interconnect is Interconnect.NVSWITCH else "NVLink"
    rate = "bandwidth unknown" if island.gbps is None else f"{format_number(island.gbps)} GB/s per GPU"
    facts = [name, rate]
    missing = _unlinked(nvlink, island)
    if missing:
        facts.append(f"{missing} of {island.size * (island.size - 1) // 2} pairs have no direct NVLink")
    return facts


def _unlinked(nvlink: Nvlink, island: Island) -> int:
    """Return the number of pairs that neither a link nor a common fabric connects."""
    fabric = {up.gpu: up.fabric for up in nvlink.uplinks if up.lanes}
    linked = {(link.a, link.b) for link in nvlink.links if link.lanes} | set(nvlink.unknown)
    return sum(
        (a, b) not in linked and (a not in fabric or fabric[a] != fabric.get(b))
        for a, b in combinations(island.gpus, 2)
    )


def island_notes(topology: NodeTopology, glyphs: Glyphs) -> list[Note]:
    """Return a line per island of several GPUs, and a line for all single GPUs."""
    islands = topology.islands
    if topology.nvlink is None or islands is None:
        return [(("unknown", "  ?  "), ("text", "NVLinks unknown: no source reports them"))] if topology.gpus else []
    marked = island_marks(topology)
    together = [island for island in islands if island.size > 1]
    alone = [island.gpus[0] for island in islands if island.size == 1]
    names = [gpu_names(island.gpus) for island in together] + ([gpu_names(alone)] if alone else [])
    width = max(map(len, names), default=0)
    notes: list[Note] = []
    for island, name in zip(together, names, strict=False):
        mark = marked[island.gpus[0]]
        doubt = ["perhaps more GPUs: see the caveats"] if topology.uncertain_gpus.intersection(island.gpus) else []
        facts = glyphs.joined([*island_facts(topology.nvlink, island), *doubt])
        notes.append(((role_of(mark), f"  {mark}  {name:{width}}"), ("text", f"  {facts}")))
    if alone:
        facts = "each on its own" if len(alone) > 1 else "on its own"
        if topology.uncertain_gpus.intersection(alone):
            facts += ", as far as is known: see the caveats"
        notes.append(((role_of(ALONE), f"  {glyphs.alone}  {names[-1]:{width}}"), ("text", f"  {facts}")))
    return notes


def _fabric(topology: NodeTopology, glyphs: Glyphs) -> list[Note]:
    fabric = topology.fabric
    if fabric is None:
        return []
    return [(("text", f"  cluster {glyphs.shown(fabric.cluster_uuid or '')}, clique {fabric.clique}"),)]


def _degraded(topology: NodeTopology, glyphs: Glyphs) -> list[Note]:
    return [
        (("bad", f"  ! {_named(*parse_subject(each.what), glyphs)}"), ("text", f": {glyphs.shown(each.why)}"))
        for each in topology.degraded
    ]


def _named(part: str, gpus: Sequence[int], glyphs: Glyphs) -> str:
    return f"{gpu_names(gpus)} {glyphs.shown(part)}".rstrip() if gpus else glyphs.shown(part)


def _problems(topology: NodeTopology, glyphs: Glyphs) -> list[Note]:
    """Return the problems in their order; the same problem of several GPUs is a single line."""
    merged: dict[tuple[str, ProblemKind, str], list[int]] = {}
    for each in topology.problems:
        part, gpus = parse_subject(each.what)
        merged.setdefault((part, each.kind, each.why), []).extend(gpus)
    return [
        (
            ("unknown", f"  ? {_named(part, indices, glyphs)}"),
            ("text", f": {_KINDS[kind]}: {glyphs.shown(why)}"),
        )
        for (part, kind, why), indices in merged.items()
    ]
