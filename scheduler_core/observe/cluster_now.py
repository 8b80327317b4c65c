"""The free GPUs and free islands of the cluster at one moment. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

import msgspec

from scheduler_core.cache.free_islands import free_islands, min_free
from scheduler_core.cache.node_state import NodeState


class ClusterNow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The cluster at one moment. Only GPUs that are certainly free, on nodes that take new pods, count as free."""

    nodes: int = 0  # with whole GPUs and known islands
    unknown_nodes: int = 0  # with GPUs and without known islands
    gpus: int = 0  # of the known nodes
    free: int = 0
    free_in_islands: int = 0  # of these, in islands of several GPUs
    free_in_whole_islands: int = 0  # of these, in wholly free islands
    islands_by_free_gpus: dict[int, int] = {}  # the number of islands with so many free GPUs, most first

    @property
    def broken_share(self) -> float | None:
        """The share of free GPUs of islands that are in partly used islands; None: no such GPU is free."""
        return 1 - self.free_in_whole_islands / self.free_in_islands if self.free_in_islands else None


def cluster_now(states: Mapping[str, NodeState], unusable: Container[str] = ()) -> ClusterNow:
    """Return the cluster with these nodes. ``unusable``: names of nodes that take no new pods."""
    nodes = unknown = gpus = free = in_islands = whole = 0
    for (state, is_usable), number in Counter((state, name not in unusable) for name, state in states.items()).items():
        shape = state.shape
        if shape is None or shape.islands is None or state.free is None:
            unknown += number * bool(state.free_counts)
            continue
        nodes += number
        gpus += number * shape.whole.bit_count()
        if not is_usable:
            continue
        free += number * min_free(state.free, shape.whole)
        for island in shape.islands:
            least, size = min_free(state.free, island), (island & shape.whole).bit_count()
            in_islands += number * (least if size > 1 else 0)
            whole += number * (least if least == size > 1 else 0)
    sizes = Counter[int]()
    for kind, number in free_islands({name: state for name, state in states.items() if name not in unusable}).items():
        sizes[kind.size] += number
    return ClusterNow(
        nodes=nodes,
        unknown_nodes=unknown,
        gpus=gpus,
        free=free,
        free_in_islands=in_islands,
        free_in_whole_islands=whole,
        islands_by_free_gpus=dict(sorted(sizes.items(), reverse=True)),
    )
