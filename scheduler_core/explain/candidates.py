"""The best nodes for a pod: the factors of their scores, and the GPUs that it may get there. Pure."""

from __future__ import annotations

from scheduler_core.allocation.best_set import best_set
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, SomeSet, certainly_free
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.extensions import factor_measure
from scheduler_core.evaluation.possible_gpus import possible_gpus
from scheduler_core.evaluation.score import Score
from scheduler_core.explain.gpu_wording import gpu_set
from scheduler_core.explain.model import CandidateNode, FactorItem, GpuSet
from scheduler_core.policy.factors import FACTORS
from scheduler_core.request.pod_request import PodProfile

_LISTED = 4  # outcomes of each node


def candidate_node(name: str, profile: PodProfile, state: NodeState, found: Score) -> CandidateNode:
    """Return a node that the pod fits, with its score."""
    factors = tuple(
        FactorItem(part.factor, part.raw, part.weight, part.share, _measure(part.factor)) for part in found.parts
    )
    possible = possible_gpus(profile.device_request, state)
    plain = CandidateNode(node=name, points=found.points, factors=factors, outcomes=None)
    # A node that is known by labels alone has no GPU indices.
    if state.shape is None or not state.described or len(possible) != 1 or state.free is None or not profile.gpus:
        return plain
    (only,) = possible
    ranked = None if isinstance(only.sets, SomeSet) else _ranked(state.shape, only.sets)
    listed = None if ranked is None else tuple(gpu_set(state.shape, mask) for mask in ranked[:_LISTED])
    unlisted = [] if ranked is None else ranked[_LISTED:]
    return CandidateNode(
        node=name,
        points=found.points,
        factors=factors,
        outcomes=listed,
        more_outcomes=len(unlisted),
        worst=gpu_set(state.shape, unlisted[-1]) if unlisted else None,
        may_crash=only.may_crash,
        choice=_certain_choice(profile, state.shape, state.free),
    )


def _measure(factor: str) -> str:
    return FACTORS[factor].measure if factor in FACTORS else factor_measure(factor)


def _ranked(shape: MachineShape, sets: ExactSets) -> list[int]:
    """Sort by the best ring, then the fewest NUMA nodes."""
    return sorted(sets.masks, key=lambda mask: (_rank(shape, mask), -mask), reverse=True)


def _rank(shape: MachineShape, mask: int) -> tuple[object, ...]:
    ring, nodes = shape.ring(mask), shape.count_numa_nodes(mask)
    return (() if ring is None else ring.sort_key, -(mask.bit_count() if nodes is None else nodes))


def _certain_choice(profile: PodProfile, shape: MachineShape, free: Sets) -> GpuSet | None:
    found = best_set(shape, certainly_free(free), profile.gpus)
    return None if found is None else gpu_set(shape, found.mask)
