"""Whether a single GPU breaks into an island that was free as a whole. Pure.

What is said is sure: an island is broken only if it was surely whole and the GPU is surely of it, and a node spares its
whole islands only if that holds for whatever GPU its device plugin takes.
"""

from __future__ import annotations

from functools import lru_cache

from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.possible_gpus import candidate_sets, whole_gpu_outcome
from scheduler_core.explain.gpu_wording import certainly_free
from scheduler_core.request.device_request import DeviceRequest


@lru_cache(maxsize=1 << 14)
def broken_island_size(state: NodeState, mask: int) -> int | None:
    """How many GPUs the whole island had that this GPU breaks, 0 where it breaks none; None where nobody can tell."""
    if state.shape is None or state.shape.islands is None or state.free is None:
        return None
    for island in state.shape.islands:
        if island & mask and island.bit_count() > 1:
            if island & ~certainly_free(state.free) == 0:
                return island.bit_count()
            return None if island & ~state.free.among == 0 else 0
    return 0


@lru_cache(maxsize=1 << 14)
def possible_broken_island_size(ask: DeviceRequest, state: NodeState) -> int | None:
    """The same of whatever GPU such a pod gets there; None where that depends."""
    found = whole_gpu_outcome(ask, state)
    sizes = set() if found is None else {broken_island_size(state, mask) for mask in candidate_sets(found.sets)}
    return sizes.pop() if len(sizes) == 1 else None
