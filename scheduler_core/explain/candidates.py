"""The nodes that suit a pod best: their scores taken apart, and which GPUs it may get there. Pure."""

from __future__ import annotations

from scheduler_core.allocation.best_set import best_set
from scheduler_core.allocation.gpu_sets import AnyOf, OneOf, Sets
from scheduler_core.allocation.machine_shape import Shape
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.possible_gpus import outcomes
from scheduler_core.evaluation.score import MEASURES, Score
from scheduler_core.explain.gpu_wording import spot, surely_free
from scheduler_core.explain.model import Candidate, Factor, Spot
from scheduler_core.request.pod_request import Profile

_MOST_OUTCOMES = 4  # listed of each node


def candidate(name: str, profile: Profile, state: NodeState, found: Score) -> Candidate:
    """A node that suits the pod."""
    factors = tuple(
        Factor(part.factor, part.raw, part.weight, part.share, MEASURES[part.factor]) for part in found.parts
    )
    possible = outcomes(profile.ask, state)
    plain = Candidate(node=name, points=found.points, factors=factors, outcomes=None)
    # Where labels are all that is known, GPUs have no names.
    if state.shape is None or not state.described or len(possible) != 1 or state.free is None or not profile.gpus:
        return plain
    (only,) = possible
    ranked = None if isinstance(only.sets, AnyOf) else _ranked(state.shape, only.sets)
    listed = None if ranked is None else tuple(spot(state.shape, mask) for mask in ranked[:_MOST_OUTCOMES])
    unlisted = [] if ranked is None else ranked[_MOST_OUTCOMES:]
    return Candidate(
        node=name,
        points=found.points,
        factors=factors,
        outcomes=listed,
        more_outcomes=len(unlisted),
        worst=spot(state.shape, unlisted[-1]) if unlisted else None,
        may_crash=only.may_crash,
        choice=_choice(profile, state.shape, state.free),
    )


def _ranked(shape: Shape, sets: OneOf) -> list[int]:
    """The best ring first, then the fewest NUMA nodes."""
    return sorted(sets.masks, key=lambda mask: (_rank(shape, mask), -mask), reverse=True)


def _rank(shape: Shape, mask: int) -> tuple[object, ...]:
    ring, nodes = shape.ring(mask), shape.numa_nodes(mask)
    return (() if ring is None else ring.quality, -(mask.bit_count() if nodes is None else nodes))


def _choice(profile: Profile, shape: Shape, free: Sets) -> Spot | None:
    found = best_set(shape, surely_free(free), profile.gpus)
    return None if found is None else spot(shape, found.mask)
