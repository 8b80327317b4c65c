"""Filter and score nodes for a pod, and decide: the reference implementation. Pure.

The same request, snapshot and names give the same decision, whatever the order of the names. Nodes in the same state
are evaluated once. Results are cached for each profile, which changes only the time that an evaluation takes.
``ranking`` gives the same answers incrementally; tests compare it with this module.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from heapq import nsmallest
from math import inf
from typing import NamedTuple

from gputopo.labels.reasons import Reason
from gputopo.recent_results import RecentResults
from scheduler_core.allocation.admission import FEW_GPUS, MAX_FREE_SETS
from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.node_state import NodeState, canonical_state
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.evaluation.in_flight import fits_with_all
from scheduler_core.evaluation.possible_gpus import predict_whole_gpus_in_steps
from scheduler_core.evaluation.score import Score, score_state, scorer_for, scores_indices, scoring_key
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile, PodRequest

Evaluation = Reason | Score
_MAX_PROFILES = 256  # most share their reasons and scores with others; each takes about a tenth of a megabyte
_MAX_STATES = 1 << 14  # of each profile
_MANY_SETS = 64  # possible sets of free GPUs
HASH_RANGE = 1 << 32


class Decision(NamedTuple):
    """The answer to kube-scheduler about a pod."""

    generation: int  # of the snapshot
    nodes: tuple[str, ...]  # answered by Filter, best first: all that pass, or the best of them
    rejected: Mapping[str, Reason]
    scores: Mapping[str, Score]  # of all nodes that pass
    single: bool  # ``nodes`` has one name, on which the pod must be assumed, because a hard constraint must hold there


class Evaluator(RecentResults[NodeState, Evaluation]):
    """Returns the reason for which a node in a state is rejected for pods of one profile, or its score; cached."""

    def __init__(self, profile: PodProfile, policy: Policy, max_states: int = _MAX_STATES) -> None:
        self.profile, self.policy = profile, policy
        # Extensions may read all of a profile.
        scored = profile if policy.factors else scoring_key(profile)._replace(extras=None)
        score = _cached_scores(scored, policy)
        filtered = profile if policy.filters else profile._replace(extras=None)
        filtered = filtered._replace(device_request=filtered.device_request._replace(cpu_milli=0))
        reason = _cached_reasons(filtered, policy)
        self._may_exchange = not _names_places(profile, policy)
        self._reason = reason
        super().__init__(partial(_evaluate_with, reason, score, self._may_exchange), max_states)

    def rejection_reason(self, state: NodeState) -> Reason | None:
        """Return the reason against a node in this state; None: it fits. Cached."""
        return self._reason(canonical_state(state) if self._may_exchange else state)

    def may_take_long(self, state: NodeState) -> bool:
        """Return whether the evaluation may take tens of milliseconds: on many GPUs, with many possible free sets."""
        if not _has_many_sets(state) or self.known(state) is not None:
            return False
        return all(devices <= state.free_devices(resource) for resource, devices in self.profile.device_request.totals)

    def steps(self, state: NodeState) -> Iterator[None]:
        """Do the longest part of an evaluation in steps. Its results are cached, so that the rest takes less time."""
        same = canonical_state(state) if self._may_exchange else state
        return predict_whole_gpus_in_steps(self.profile.device_request, same)


def _has_many_sets(state: NodeState) -> bool:
    if state.shape is None or len(state.shape.gpus) <= FEW_GPUS or not isinstance(state.free, ExactSets):
        return False
    return _MANY_SETS < len(state.free.masks) <= MAX_FREE_SETS  # with more, none is predicted


def _evaluate_with(
    reason: Callable[[NodeState], Reason | None],
    score: Callable[[NodeState], Score],
    exchanges: bool,
    state: NodeState,
) -> Evaluation:
    same = canonical_state(state) if exchanges else state
    found = reason(same)
    return score(same) if found is None else found


def evaluate(
    request: PodRequest,
    snapshot: ClusterSnapshot,
    names: Iterable[str],
    policy: Policy,
    in_flight: Iterable[AssumedPod] = (),
) -> Decision:
    """Evaluate the named nodes for the pod. ``in_flight``: other pods, each assumed on one of several nodes."""
    groups: defaultdict[NodeState | None, list[str]] = defaultdict(list)
    state_of = snapshot.states.get
    for name in names:  # the only loop over all names: the main cost at 15,000 nodes
        groups[state_of(name)].append(name)
    rejected: dict[str, Reason] = {}
    scores: dict[str, Score] = {}
    evaluator = evaluator_for(request.profile, policy)
    for state, members in groups.items():
        found = Reason.UNKNOWN_NODE if state is None else evaluator(state)
        if isinstance(found, Score):
            scores.update(dict.fromkeys(members, found))
        else:
            rejected.update(dict.fromkeys(members, found))
    in_flight = tuple(in_flight)
    for name in [name for name in scores if not fits_with_all(request.profile, snapshot, name, in_flight, evaluator)]:
        del scores[name]
        rejected[name] = Reason.RESERVED
    ranked: defaultdict[float, list[str]] = defaultdict(list)
    for name, each in scores.items():
        ranked[each.points].append(name)
    chosen = shortlist(ranked, max_nodes(request, policy), request.uid, max_points_below_best(request, policy))
    return Decision(snapshot.generation, chosen, rejected, scores, request.profile.has_hard_constraints)


def max_nodes(request: PodRequest, policy: Policy) -> int | None:
    """Return the greatest number of nodes that Filter answers; None: all that pass."""
    if request.profile.has_hard_constraints:
        return 1
    return None if request.has_soft_preferences else policy.shortlist


def max_points_below_best(request: PodRequest, policy: Policy) -> float:
    """Return how many points below the best node a node may score that Filter answers."""
    return inf if max_nodes(request, policy) is None else policy.tolerance


def evaluate_state(profile: PodProfile, state: NodeState, policy: Policy) -> Evaluation:
    """Return the reason for which a node in this state is rejected for the profile, or its score."""
    same = state if _names_places(profile, policy) else canonical_state(state)
    reason = rejection_reason(profile, same, policy)
    return score_state(profile, same, policy) if reason is None else reason


def _names_places(profile: PodProfile, policy: Policy) -> bool:
    """Return whether the indices of GPUs matter: then no GPU can be exchanged for another."""
    if policy.factors or policy.filters:  # extensions may read all of a state
        return True
    return profile.constraints.parallel is not None or scores_indices(profile, policy)


def spread_hash(text: str) -> int:
    """Return a hash that spreads names evenly over 2^32 values, the same in every process."""
    return zlib.crc32(text.encode())


def shortlist(
    ranked: Mapping[float, Sequence[str]], count: int | None, uid: str, max_points_below_best: float = inf
) -> tuple[str, ...]:
    """Return the best ``count`` nodes, and none that scores more than ``max_points_below_best`` below the best.

    Nodes of equal points are ordered by hash, starting at the pod's: pods that arrive together get different nodes.
    """
    start = spread_hash(uid)
    least = max(ranked, default=0.0) - max_points_below_best
    left = sum(map(len, ranked.values())) if count is None else count
    chosen: list[str] = []
    for points in sorted((each for each in ranked if each >= least), reverse=True):
        distances = (((spread_hash(name) - start) % HASH_RANGE, name) for name in ranked[points])
        chosen += (name for _, name in nsmallest(left - len(chosen), distances))
    return tuple(chosen)


@lru_cache(maxsize=_MAX_PROFILES)
def evaluator_for(profile: PodProfile, policy: Policy) -> Evaluator:
    """Return the cached evaluator of a profile and policy."""
    return Evaluator(profile, policy)


@lru_cache(maxsize=_MAX_PROFILES)
def _cached_reasons(profile: PodProfile, policy: Policy) -> Callable[[NodeState], Reason | None]:
    """Return a cached ``rejection_reason``. The profile has no CPU request, because kube-scheduler checks CPU."""
    return RecentResults[NodeState, Reason | None](lambda state: rejection_reason(profile, state, policy), _MAX_STATES)


@lru_cache(maxsize=_MAX_PROFILES)
def _cached_scores(profile: PodProfile, policy: Policy) -> Callable[[NodeState], Score]:
    """Return a cached scorer. Most new profiles differ from known ones only in hard constraints."""
    return RecentResults(scorer_for(profile, policy), _MAX_STATES)
