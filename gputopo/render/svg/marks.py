"""The letter of each GPU's island, and the degraded parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gputopo.model import Link
from gputopo.render.wording import escape_invisible, parse_subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputopo.model import Island, NodeTopology, Uplink


class Marks(NamedTuple):
    """Islands of at least two GPUs, numbered by first GPU, and all degraded parts."""

    islands: tuple[Island, ...]
    number: dict[int, int]  # island number by GPU index, for GPUs in one of ``islands``
    gpus: frozenset[int]
    pairs: frozenset[tuple[int, int]]
    known: bool  # whether the NVLinks are known

    def is_degraded(self, edge: Link | Uplink) -> bool:
        """Return whether the edge has lost lanes, or is listed as degraded."""
        return edge.short or (isinstance(edge, Link) and (edge.a, edge.b) in self.pairs)


def mark(topology: NodeTopology) -> Marks:
    """Return the marks of a topology."""
    islands = tuple(island for island in topology.islands or () if island.size > 1)
    number = {gpu: place for place, island in enumerate(islands) for gpu in island.gpus}
    subjects = [parse_subject(each.what) for each in topology.degraded]
    degraded = [gpus for _, gpus in subjects]
    return Marks(
        islands,
        number,
        frozenset(gpus[0] for gpus in degraded if len(gpus) == 1),
        frozenset((gpus[0], gpus[1]) for gpus in degraded if len(gpus) == 2) | _weak_pair(topology, subjects),
        topology.nvlink is not None,
    )


def _weak_pair(topology: NodeTopology, subjects: Sequence[tuple[str, tuple[int, ...]]]) -> frozenset[tuple[int, int]]:
    """Return the pair of GPUs whose link has lost lanes.

    A lost NVLink is missing at both ends. If exactly two GPUs lack NVLinks and a link joins them, it is that one.
    """
    short = {gpus[0] for part, gpus in subjects if part == "NVLink" and len(gpus) == 1}
    links = () if topology.nvlink is None or len(short) != 2 else topology.nvlink.links
    return frozenset((link.a, link.b) for link in links if {link.a, link.b} == short)


def part_name(what: str) -> str:
    """Return a readable name of a part like ``gpu3.pcie``; other texts unchanged."""
    part, gpus = parse_subject(what)
    if len(gpus) == 2:
        return f"GPU {gpus[0]} to GPU {gpus[1]}"
    return escape_invisible(f"GPU {gpus[0]} {part}".rstrip() if gpus else part)
