"""How many islands have how many free GPUs: what fragmentation looks like in a graph. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from scheduler_core.allocation.gpu_sets import ExactSets, Sets, lowest_bit
from scheduler_core.cache.node_state import NodeState


class FreeIsland(NamedTuple):
    """A kind of island."""

    size: int  # free GPUs in it, at the least
    product: str  # "" where unknown


def free_islands(states: Mapping[str, NodeState]) -> Counter[FreeIsland]:
    """How many islands of each kind the nodes have. Islands without a free GPU, or of unknown NVLinks, are not told."""
    found = Counter[FreeIsland]()
    for state, nodes in Counter(states.values()).items():
        for island in _of(state):
            found[island] += nodes
    return found


@lru_cache(maxsize=1 << 14)
def _of(state: NodeState) -> tuple[FreeIsland, ...]:
    if state.shape is None or state.shape.islands is None or state.free is None:
        return ()
    sizes = [(min_free(state.free, island), island) for island in state.shape.islands]
    gpus = state.shape.gpus
    return tuple(FreeIsland(size, gpus[lowest_bit(island)].product or "") for size, island in sizes if size)


def min_free(free: Sets, island: int) -> int:
    """GPUs of the island that are free at the least, whichever are the free ones."""
    if isinstance(free, ExactSets):
        return min(((mask & island).bit_count() for mask in free.masks), default=0)
    return max(0, free.size - (free.among & ~island).bit_count())
