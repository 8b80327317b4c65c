"""Score a node for a pod, 0 to 10, on an absolute scale: the same placement always has the same score. Pure.

    score = 10 x (sum of weight x raw) / (sum of weights)

over the factors that apply to the pod, by ``policy.factors``. Each raw score is between 0 and 1 (``score_hardware``,
``score_workload``), and is that of the worst set of GPUs that the device plugin may choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation import score_hardware, score_workload
from scheduler_core.evaluation.extensions import extension_factors
from scheduler_core.policy.factors import FACTORS, Weights
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile, Strength
from scheduler_core.request.workload_type import WorkloadType

MAX_POINTS = 10

Raw = Callable[[PodProfile, NodeState, Policy], float]
RAW_SCORES: dict[str, Raw] = {
    name: getattr(score_hardware, name, None) or getattr(score_workload, name) for name in FACTORS
}


class FactorScore(NamedTuple):
    """The contribution of one factor."""

    factor: str
    raw: float  # 0 to 1
    weight: float
    share: float  # in points of the score


class Score(NamedTuple):
    """The score of a node, with the contribution of each factor."""

    points: float  # 0 to 10
    parts: tuple[FactorScore, ...]

    @property
    def rounded(self) -> int:
        """The score as the extender protocol requires it."""
        return int(self.points + 0.5)


def score_state(profile: PodProfile, node: NodeState, policy: Policy) -> Score:
    """Return the score of a node that passes the filters."""
    return scorer_for(profile, policy)(node)


def scorer_for(profile: PodProfile, policy: Policy) -> Callable[[NodeState], Score]:
    """Return a function that scores nodes. Values that do not depend on the node are computed once."""
    weights = _weights_for(profile, policy)._asdict()
    applying = {name: weights[name] * factor.applies(profile) for name, factor in FACTORS.items()}
    counted = [(name, RAW_SCORES[name], weight) for name, weight in applying.items() if weight]
    counted += extension_factors(policy)

    def score_of(node: NodeState) -> Score:
        return combine_factors([(factor, raw(profile, node, policy), weight) for factor, raw, weight in counted])

    return score_of


def scores_indices(profile: PodProfile, policy: Policy) -> bool:
    """Return whether the score depends on the indices of the GPUs."""
    return bool(_weights_for(profile, policy).contiguous * FACTORS["contiguous"].applies(profile))


def scoring_key(profile: PodProfile) -> PodProfile:
    """Return the profile without the constraints that only filters use: both have the same scores."""
    constraints = profile.constraints
    return profile._replace(
        constraints=constraints._replace(
            model=None,
            min_vram_mib=None,
            min_gbps=None,
            interconnect=None,
            parallel=None,
            same_product=None,
            island=_effective_strength(constraints.island),
            numa=_effective_strength(constraints.numa),
            isolation=_effective_strength(constraints.isolation),
        )
    )


def combine_factors(values: Sequence[tuple[str, float, float]]) -> Score:
    """Return the score from factors with their raw values (0 to 1) and weights."""
    whole = sum(weight for _, _, weight in values) or 1.0  # a policy may set all weights to 0: then all nodes score 0
    parts = [
        FactorScore(factor, round(raw, 6), weight, round(MAX_POINTS * weight * raw / whole, 6))
        for factor, raw, weight in values
    ]
    # The shares are rounded for output, so their sum may exceed the maximum.
    return Score(min(MAX_POINTS, round(sum(part.share for part in parts), 6)), tuple(parts))


def _effective_strength(strength: Strength | None) -> Strength | None:
    """Return the strength for scoring: required counts as preferred."""
    return Strength.PREFERRED if strength is Strength.REQUIRED else strength


def _weights_for(profile: PodProfile, policy: Policy) -> Weights:
    kinds, workload = policy.workload_weights, profile.constraints.workload
    if profile.scavenger:
        return kinds.scavenger
    if workload is None:
        return policy.weights
    return {
        WorkloadType.TRAINING: kinds.training,
        WorkloadType.INFERENCE: kinds.inference,
        WorkloadType.BATCH: kinds.batch,
    }[workload]
