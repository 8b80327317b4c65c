"""What is worth pointing at: the letter of each GPU's island, and what is worse than it should be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gputopo.model import Link
from gputopo.render.svg.words import printable

if TYPE_CHECKING:
    from gputopo.model import Island, NodeTopology, Uplink

_GPU = re.compile(r"gpu(\d+)(?:\.(\w+))?")
_PAIR = re.compile(r"gpu(\d+)-gpu(\d+)")
_PARTS = {None: "", "nvlink": "NVLink", "pcie": "PCIe", "fabric": "NVSwitch fabric"}


class Marks(NamedTuple):
    """Islands of two and more, numbered by their first GPU, and everything degraded."""

    islands: tuple[Island, ...]
    number: dict[int, int]  # island number by GPU index, for GPUs in one of ``islands``
    gpus: frozenset[int]
    pairs: frozenset[tuple[int, int]]
    known: bool  # whether anybody could tell which NVLinks there are

    def hurts(self, edge: Link | Uplink) -> bool:
        """Whether the edge has lost lanes, or is listed as degraded."""
        missing = edge.expected_lanes is not None and edge.lanes < edge.expected_lanes
        return missing or (isinstance(edge, Link) and (edge.a, edge.b) in self.pairs)


def mark(topology: NodeTopology) -> Marks:
    """Collect the marks of a topology."""
    islands = tuple(island for island in topology.islands or () if island.size > 1)
    number = {gpu: place for place, island in enumerate(islands) for gpu in island.gpus}
    matches = [_GPU.fullmatch(each.what) for each in topology.degraded]
    pairs = [_PAIR.fullmatch(each.what) for each in topology.degraded]
    return Marks(
        islands,
        number,
        frozenset(int(match[1]) for match in matches if match),
        frozenset((int(match[1]), int(match[2])) for match in pairs if match),
        topology.nvlink is not None,
    )


def letter(number: int) -> str:
    """A, B, ... Z, AA, AB, ...: at most two letters for the 32 islands that 64 GPUs can form."""
    return chr(65 + number) if number < 26 else chr(64 + number // 26) + chr(65 + number % 26)


def degraded_name(what: str) -> str:
    """``gpu3.pcie`` as people say it; other texts as they are."""
    if pair := _PAIR.fullmatch(what):
        return f"GPU {int(pair[1])} to GPU {int(pair[2])}"
    if (match := _GPU.fullmatch(what)) and match[2] in _PARTS:
        return f"GPU {int(match[1])} {_PARTS[match[2]]}".rstrip()
    return printable(what)
