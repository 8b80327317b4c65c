"""Count NVLink islands by their free GPUs: how fragmented the cluster is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gputopo.recent_results import recent_results
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, lowest_bit
from scheduler_core.cache.node_state import NodeState


class FreeIsland(NamedTuple):
    """A kind of island."""

    size: int  # free GPUs in it, at the least
    product: str  # "" where unknown


def free_islands(states: Mapping[str, NodeState], pause: Callable[[], None] = lambda: None) -> Counter[FreeIsland]:
    """Return the number of islands of each kind. Islands without a free GPU, or with unknown NVLinks, are left out.

    ``pause``: is called before each different state.
    """
    found = Counter[FreeIsland]()
    for state, nodes in Counter(states.values()).items():
        pause()
        for island in _islands_of(state):
            found[island] += nodes
    return found


@recent_results(1 << 14)
def _islands_of(state: NodeState) -> tuple[FreeIsland, ...]:
    if state.shape is None or state.shape.islands is None or state.free is None:
        return ()
    sizes = [(min_free(state.free, island), island) for island in state.shape.islands]
    gpus = state.shape.gpus
    return tuple(FreeIsland(size, gpus[lowest_bit(island)].product or "") for size, island in sizes if size)


def min_free(free: Sets, island: int) -> int:
    """Return the least number of GPUs of the island that are free, over all sets that may be free."""
    if isinstance(free, ExactSets):
        return min(((mask & island).bit_count() for mask in free.masks), default=0)
    return max(0, free.size - (free.among & ~island).bit_count())
