"""The best set of free GPUs on a node, and how good a set is. Pure.

What we would choose; what the node will choose is ``prediction``'s answer. Better means, in this order: a faster ring
(its weakest hop), fewer NUMA nodes, nearer NICs, and what it leaves behind: islands as whole as can be, then pairs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gputopo.rings import Ring
from scheduler_core.allocation.gpu_sets import count_subsets, member_places, subsets
from scheduler_core.allocation.machine_shape import MachineShape

MAX_EXACT_GPUS = 20_000  # sets compared, all 8 of 16 GPUs among them; where there are more, a greedy choice


class SetQuality(NamedTuple):
    """How good it is to take a set out of the free GPUs. Better ones are greater."""

    ring: tuple[bool, float, int, int, float]  # ``Ring.quality``; of a single GPU all zero
    fewer_numa_nodes: int  # how many it spans, negative; the most there can be where that is not known
    nic: float  # mean nearness of each GPU's nearest NIC
    whole_islands: int  # sum of squares of what stays free in each island: greater where big ones stay whole
    pairs: int  # pairs at the best hop of the free GPUs that stay whole: disjoint ones


class ScoredSet(NamedTuple):
    """A set of GPUs and how good it is."""

    mask: int
    quality: SetQuality


def best_set(shape: MachineShape, free: int, size: int) -> ScoredSet | None:
    """The best ``size`` of the free GPUs; of equals the one with the lowest mask. None: there are too few."""
    if not 0 < size <= free.bit_count():
        return None
    return _best(shape, free, size)


@lru_cache(maxsize=1 << 14)
def set_quality(shape: MachineShape, free: int, mask: int) -> SetQuality:
    """How good it is to take this set out of the free GPUs."""
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
    return max((_grown(shape, free, start, size) for start in subsets(free, 2)), key=_order)


def _grown(shape: MachineShape, free: int, mask: int, size: int) -> ScoredSet:
    """From a pair upwards, each time by the GPU that makes the best of it: good, not always best."""
    while mask.bit_count() < size:
        candidates = [mask | one for one in subsets(free & ~mask, 1)]
        mask = max((ScoredSet(each, set_quality(shape, free, each)) for each in candidates), key=_order).mask
    return ScoredSet(mask, set_quality(shape, free, mask))


def _pairs(shape: MachineShape, free: int, left: int) -> int:
    """GPUs are paired off greedily by their best hop; on every machine built the best hops do not overlap otherwise."""
    joined = _best_pairs(shape, free)
    found = 0
    for pair in joined:
        if pair & left == pair:
            found += 1
            left &= ~pair
    return found


@lru_cache(maxsize=1 << 14)
def _best_pairs(shape: MachineShape, free: int) -> tuple[int, ...]:
    """The pairs of free GPUs that are joined as well as any."""
    hops: list[tuple[Ring, int]] = [(ring, pair) for pair in subsets(free, 2) if (ring := shape.ring(pair)) is not None]
    if not hops:
        return ()
    best = max(ring.sort_key for ring, _ in hops)
    return tuple(pair for ring, pair in hops if ring.sort_key == best)
