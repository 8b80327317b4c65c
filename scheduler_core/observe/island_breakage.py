"""Determines if a single GPU breaks a wholly free island. Pure.

Only certain facts count: an island is broken if it was certainly free and the GPU is certainly in it, and a node spares
its islands if that holds for every GPU that its device plugin may take.
"""

from __future__ import annotations

from gputopo.recent_results import recent_results
from scheduler_core.allocation.gpu_sets import certainly_free
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.possible_gpus import candidate_sets, whole_gpu_outcome
from scheduler_core.request.device_request import DeviceRequest


@recent_results(1 << 14)
def broken_island_size(state: NodeState, mask: int) -> int | None:
    """Return the size of the free island that this GPU breaks; 0: none; None: unknown."""
    if state.shape is None or state.shape.islands is None or state.free is None:
        return None
    for island in state.shape.islands:
        if island & mask and island.bit_count() > 1:
            if island & ~certainly_free(state.free) == 0:
                return island.bit_count()
            return None if island & ~state.free.among == 0 else 0
    return 0


@recent_results(1 << 14)
def possible_broken_island_size(ask: DeviceRequest, state: NodeState) -> int | None:
    """Return the same for every GPU that the pod may get there; None: it depends on the GPU."""
    found = whole_gpu_outcome(ask, state)
    sizes = set() if found is None else {broken_island_size(state, mask) for mask in candidate_sets(found.sets)}
    return sizes.pop() if len(sizes) == 1 else None
