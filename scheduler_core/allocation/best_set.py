"""The best set of free GPUs on a node, and the quality of a set. Pure.

This is the set that gputopo would choose; ``device_plugin`` predicts the sets that the node may choose. Criteria, in
this order: a faster ring (its weakest hop), fewer NUMA nodes, nearer NICs, and then what remains free: large islands,
then pairs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gputopo.rings import Ring
from scheduler_core.allocation.gpu_sets import count_subsets, member_places, subsets
from scheduler_core.allocation.machine_shape import MachineShape

MAX_EXACT_GPUS = 20_000  # sets that are compared, enough for 8 of 16 GPUs; greedy choice if there are more


class SetQuality(NamedTuple):
    """The quality of taking a set out of the free GPUs. A better set compares greater."""

    ring: tuple[bool, float, int, int, float]  # ``Ring.sort_key``; all zero for a single GPU
    fewer_numa_nodes: int  # negative number of NUMA nodes; the maximum possible if unknown
    nic: float  # mean nearness of each GPU's nearest NIC
    whole_islands: int  # sum of squares of the GPUs that stay free in each island: greater if large islands stay whole
    pairs: int  # disjoint pairs at the best hop of the free GPUs that stay free


class ScoredSet(NamedTuple):
    """A set of GPUs and its quality."""

    mask: int
    quality: SetQuality


def best_set(shape: MachineShape, free: int, size: int) -> ScoredSet | None:
    """Return the best ``size`` free GPUs; of equal sets the lowest mask. None: there are too few."""
    if not 0 < size <= free.bit_count():
        return None
    return _best(shape, free, size)


@lru_cache(maxsize=1 << 14)
def set_quality(shape: MachineShape, free: int, mask: int) -> SetQuality:
    """Return the quality of taking this set out of the free GPUs."""
    ring = shape.ring(mask)
    nodes = shape.count_numa_nodes(mask)
    members = list(member_places(mask))
    nics = shape.nic_nearness
    left = free & ~mask
    islands = shape.islands if shape.islands is not None else (shape.whole,)
    return SetQuality(
        ring=(False, 0.0, 0, 0, 0.0) if ring is None else ring.sort_key,
        fewer_numa_nodes=-len(members) if nodes is None else -nodes,
        nic=0.0 if nics is None else round(sum(nics[place] for place in members) / len(members), 6),
        whole_islands=sum((island & left).bit_count() ** 2 for island in islands),
        pairs=_pairs(shape, free, left),
    )


def _order(choice: ScoredSet) -> tuple[SetQuality, int]:
    return choice.quality, -choice.mask


@lru_cache(maxsize=1 << 14)
def _best(shape: MachineShape, free: int, size: int) -> ScoredSet:
    if count_subsets(free, size) <= MAX_EXACT_GPUS:
        return max((ScoredSet(mask, set_quality(shape, free, mask)) for mask in subsets(free, size)), key=_order)
    return max((_greedy_set(shape, free, start, size) for start in subsets(free, 2)), key=_order)


def _greedy_set(shape: MachineShape, free: int, mask: int, size: int) -> ScoredSet:
    """Extend a pair GPU by GPU, each time by the best GPU. The result is good, but not always the best."""
    while mask.bit_count() < size:
        candidates = [mask | one for one in subsets(free & ~mask, 1)]
        mask = max((ScoredSet(each, set_quality(shape, free, each)) for each in candidates), key=_order).mask
    return ScoredSet(mask, set_quality(shape, free, mask))


def _pairs(shape: MachineShape, free: int, left: int) -> int:
    """Count pairs greedily by their best hop. On all known machines, greedy pairing of the best hops is optimal."""
    joined = _best_pairs(shape, free)
    found = 0
    for pair in joined:
        if pair & left == pair:
            found += 1
            left &= ~pair
    return found


@lru_cache(maxsize=1 << 14)
def _best_pairs(shape: MachineShape, free: int) -> tuple[int, ...]:
    """Return the pairs of free GPUs with the best hop."""
    hops: list[tuple[Ring, int]] = [(ring, pair) for pair in subsets(free, 2) if (ring := shape.ring(pair)) is not None]
    if not hops:
        return ()
    best = max(ring.sort_key for ring, _ in hops)
    return tuple(pair for ring, pair in hops if ring.sort_key == best)
