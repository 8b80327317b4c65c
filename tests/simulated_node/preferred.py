"""The GPUs that NVIDIA's device plugin prefers: the best-effort policy of go-gpuallocator, as it behaves.

The plugin divides all available GPUs into sets of the size asked for, in every way there is, takes the division with
the highest total score, and of that the set with the highest score; where scores are equal, what it saw first. The
order in which the GPUs were offered therefore decides ties, and the kubelet offers them in random order.

What it does wrong is modelled too, because pods meet it:

* GPUs that do not fill a last set are padded. A padded set may win, and then the plugin dereferences a null pointer
  and crashes (NVIDIA/go-gpuallocator#80).
* Two GPUs of which only one reports the links between them make it panic, in any division that it scores
  (``calculateGPUPairScore``).
* A division into seven or more sets is overwritten in part while the search goes on: see ``_as_remembered``.
* An NVSwitch is not seen: only links whose far end is a GPU count.

Source: ``gpuallocator/besteffort_policy.go`` and ``internal/links/device.go`` of NVIDIA/go-gpuallocator, against which
this was compared on random machines (docs/testing.md). Pure.

    PluginCrashError(Exception)    the plugin would crash
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

from gputopo.model import NodeTopology, PcieDistance

# Points for a pair of GPUs by what lies between them (NVML's common ancestor), and for each NVLink that joins them.
# ``PcieDistance`` has no word for two GPUs on one board (60): NVML tells that only of dual-GPU cards such as the K80.
PCIE_POINTS = {
    PcieDistance.SYS: 10,
    PcieDistance.NODE: 20,
    PcieDistance.PHB: 30,
    PcieDistance.PXB: 40,
    PcieDistance.PIX: 50,
}
NVLINK_POINTS = 100
MOST_NVLINKS = 18  # further ones are not counted

# (GPU index, greater GPU index) -> points; both orders of a pair where its ends report different links. None: only one
# end reports links.
Scores = Mapping[tuple[int, int], int | None]
Members = tuple[int, ...]  # GPU indices in the order in which they were offered


class PluginCrashError(Exception):
    """The device plugin dereferences a null pointer, or panics, here."""


class Group(NamedTuple):
    """One set of a division. A padded one holds fewer GPUs than were asked for."""

    members: Members
    padding: int


class Division(NamedTuple):
    """All available GPUs, divided into sets."""

    score: int
    groups: tuple[Group, ...]


def pair_scores(topology: NodeTopology) -> Scores:
    """Points of every pair of GPUs of a machine. Its PCIe matrix must be complete."""
    scores: dict[tuple[int, int], int | None] = {}
    for a, b in combinations([gpu.index for gpu in topology.gpus], 2):
        if (distance := topology.distance(a, b)) is None:
            raise ValueError(f"what lies between GPU {a} and GPU {b} is not known")
        scores[a, b] = PCIE_POINTS[distance]
    for link in () if topology.nvlink is None else topology.nvlink.links:
        points = (scores[link.a, link.b] or 0) + NVLINK_POINTS * min(link.lanes, MOST_NVLINKS)
        scores[link.a, link.b] = None if link.one_sided else points
    return scores


def best_effort(available: Sequence[int], required: Collection[int], size: int, scores: Scores) -> Members:
    """The GPUs that the plugin prefers; () where it has no preference, for then nothing fits.

    ``available`` are GPU indices in the order offered; ``required`` of them must be among the preferred ones. Raises
    ``PluginCrashError`` where the plugin crashes.
    """
    if size <= 0 or len(available) < size or len(required) > size:
        return ()
    if size == 1:  # every GPU is a division of its own, and all score 0: the first one that will do
        return next((gpu,) for gpu in available if set(required) <= {gpu})
    division = _best_division(tuple(available), frozenset(required), size, scores)
    remembered = _as_remembered(division, available, size)
    groups = [group for group in remembered if set(required) <= set(group.members)]
    if not groups:  # what held the required ones was overwritten
        return ()
    best = max(groups, key=lambda group: _score(group.members, scores))  # max takes the first of equals
    if best.padding:
        raise PluginCrashError(f"{len(available)} GPUs in sets of {size}: the padded set {best.members} wins")
    return best.members


def _best_division(available: Members, required: frozenset[int], size: int, scores: Scores) -> Division:
    """The first of the divisions with the highest total that have a full set with all required GPUs.

    The plugin enumerates; divisions share their tails, so remembering those gives the same answer in time for tests.
    """
    groups = -(-len(available) // size)

    @cache
    def best(left: Members, padding: int, satisfied: bool) -> Division | None:
        first: Division | None = None
        for group, rest in _first_groups(left, padding, size):
            suits = satisfied or (not group.padding and required <= set(group.members))
            rest_padding = padding - group.padding
            tail = best(rest, rest_padding, suits) if rest else Division(0, ()) if suits else None
            if tail is None:
                continue
            score = _score(group.members, scores) + tail.score
            if first is None or score > first.score:
                first = Division(score, (group, *tail.groups))
        return first

    found = best(available, groups * size - len(available), False)
    assert found is not None  # at least one full set exists, and the required GPUs fit into one
    return found


def _first_groups(left: Members, padding: int, size: int) -> Iterator[tuple[Group, Members]]:
    """Every set that holds the first GPU left, with what remains, in the plugin's order. Padding goes into one set."""
    head, *others = left
    full = range(len(others))
    for places in combinations(range(len(others) + padding), size - 1):
        chosen = [place for place in places if place in full]
        padded = len(places) - len(chosen)
        if padded in {0, padding}:
            group = Group((head, *(others[place] for place in chosen)), padded)
            yield group, tuple(gpu for place, gpu in enumerate(others) if place not in chosen)


def _as_remembered(division: Division, available: Sequence[int], size: int) -> list[Group]:
    """The best division as the plugin remembers it when the search is over.

    It keeps a reference to a Go slice that ``append`` goes on writing to: once a slice of capacity 2^k is full, a
    longer one shares its array with every later candidate that begins with the same 2^(k-1) + 1 sets. So a division
    of seven or eight sets keeps five, and of the others the last candidate that was tried.
    """
    groups = list(division.groups)
    count = len(groups)
    if count < 3 or (count - 1).bit_count() == 1:  # the last append made an array of its own
        return groups
    kept = 2 ** ((count - 2).bit_length() - 1) + 1
    gone = {gpu for group in groups[:kept] for gpu in group.members}
    padding = sum(group.padding for group in groups[kept:])
    return groups[:kept] + _last_groups(tuple(gpu for gpu in available if gpu not in gone), padding, size)


def _last_groups(left: Members, padding: int, size: int) -> list[Group]:
    groups = []
    while left:
        *_, (group, left) = _first_groups(left, padding, size)
        padding -= group.padding
        groups.append(group)
    return groups


def _score(members: Members, scores: Scores) -> int:
    """The points of each pair, as read at the GPU that was offered first."""
    points = 0
    for pair in combinations(members, 2):
        found = scores.get(pair, scores.get(pair[::-1], 0))
        if found is None:
            raise PluginCrashError(f"links between GPU {pair[0]} and GPU {pair[1]} are not bidirectional")
        points += found
    return points
