"""How the cluster stands now: how many GPUs are free, and in how whole islands. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from scheduler_core.cache.free_islands import free_islands, min_free
from scheduler_core.cache.node_state import NodeState


class ClusterNow(NamedTuple):
    """The cluster at one moment. What is free is so for certain."""

    nodes: int = 0  # with whole GPUs whose islands are known
    unknown: int = 0  # with GPUs of which that is not known
    gpus: int = 0  # of the known nodes
    free: int = 0
    free_in_islands: int = 0  # of these, in islands of several GPUs
    free_in_whole: int = 0  # of these, in such as are free as a whole
    islands: tuple[tuple[int, int], ...] = ()  # free GPUs in an island, and how many islands have that many; most first

    @property
    def broken_share(self) -> float | None:
        """The share of free GPUs of islands that are in partly taken ones; None: no GPU of such an island is free."""
        return 1 - self.free_in_whole / self.free_in_islands if self.free_in_islands else None


def cluster_now(states: Mapping[str, NodeState]) -> ClusterNow:
    """The cluster as those nodes are."""
    nodes = unknown = gpus = free = in_islands = whole = 0
    for state, number in Counter(states.values()).items():
        shape = state.shape
        if shape is None or shape.islands is None or state.free is None:
            unknown += number * bool(state.counts)
            continue
        nodes += number
        gpus += number * shape.whole.bit_count()
        free += number * min_free(state.free, shape.whole)
        for island in shape.islands:
            least, size = min_free(state.free, island), (island & shape.whole).bit_count()
            in_islands += number * (least if size > 1 else 0)
            whole += number * (least if least == size > 1 else 0)
    sizes = Counter[int]()
    for kind, number in free_islands(states).items():
        sizes[kind.size] += number
    return ClusterNow(nodes, unknown, gpus, free, in_islands, whole, tuple(sorted(sizes.items(), reverse=True)))
