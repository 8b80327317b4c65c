"""A pod, the nodes, and the names that kube-scheduler asks about -> a decision. Pure: nothing is changed or looked up.

The same request, table and names give the same decision, whatever the order of the names. Nodes in the same state are
judged once. Pods of the same profile get their judgements from memory, which changes only how long it takes.
``standings`` gives the same answers from what it keeps between requests.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from math import inf
from typing import NamedTuple

from gputopo.labels.reasons import Reason
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.evaluation.in_flight import fits_with_all
from scheduler_core.evaluation.score import Score, score_state, scorer_for, scoring_key
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile, PodRequest

Evaluation = Reason | Score
_REMEMBERED_PROFILES = 64
_REMEMBERED_STATES = 1 << 14  # of each profile
HASH_RANGE = 1 << 32


class Decision(NamedTuple):
    """What kube-scheduler is told about a pod."""

    generation: int  # of the table
    nodes: tuple[str, ...]  # what Filter answers, best first: all that pass, or the best of them
    rejected: Mapping[str, Reason]
    scores: Mapping[str, Score]  # of all that pass
    single: bool  # ``nodes`` is one name because something must hold there: it is to be assumed


class Evaluator:
    """What has been judged for pods of one profile: a bounded memory."""

    def __init__(self, profile: PodProfile, policy: Policy, most: int = _REMEMBERED_STATES) -> None:
        self.profile, self.policy = profile, policy
        self._score = _remembered_scores(scoring_key(profile), policy)
        self._reason = _remembered_reasons(
            profile._replace(device_request=profile.device_request._replace(cpu_milli=0)), policy
        )
        self._evaluated: dict[NodeState, Evaluation] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._evaluated)

    def __call__(self, state: NodeState) -> Evaluation:
        """Why a node in that state does not suit, or how well it does."""
        found = self._evaluated.get(state)
        if found is None:
            if len(self._evaluated) >= self._most:
                self._evaluated.clear()
            found = self._evaluated[state] = self._evaluate(state)
        return found

    def _evaluate(self, state: NodeState) -> Evaluation:
        """As ``judge``."""
        reason = self._reason(state)
        return self._score(state) if reason is None else reason


def evaluate(
    request: PodRequest,
    table: Snapshot,
    names: Iterable[str],
    policy: Policy,
    in_flight: Iterable[AssumedPod] = (),
) -> Decision:
    """Judge the named nodes for the pod. ``doubtful``: other pods, each on its way to one of several nodes."""
    groups: defaultdict[NodeState | None, list[str]] = defaultdict(list)
    state_of = table.states.get
    for name in names:  # the only loop over names: what costs at 15,000 of them
        groups[state_of(name)].append(name)
    failed: dict[str, Reason] = {}
    scores: dict[str, Score] = {}
    judged = evaluator_for(request.profile, policy)
    for state, members in groups.items():
        found = Reason.UNKNOWN_NODE if state is None else judged(state)
        if isinstance(found, Score):
            scores.update(dict.fromkeys(members, found))
        else:
            failed.update(dict.fromkeys(members, found))
    in_flight = tuple(in_flight)
    for name in [name for name in scores if not fits_with_all(request.profile, table, name, in_flight, judged)]:
        del scores[name]
        failed[name] = Reason.RESERVED
    ranked: defaultdict[float, list[str]] = defaultdict(list)
    for name, each in scores.items():
        ranked[each.points].append(name)
    chosen = shortlist(ranked, max_nodes(request, policy), request.uid, tolerance(request, policy))
    return Decision(table.generation, chosen, failed, scores, request.profile.has_hard_constraints)


def max_nodes(request: PodRequest, policy: Policy) -> int | None:
    """How many nodes Filter answers at most; None: all that pass."""
    if request.profile.has_hard_constraints:
        return 1
    return None if request.has_soft_preferences else policy.shortlist


def tolerance(request: PodRequest, policy: Policy) -> float:
    """How many points less than the best a node may have that Filter answers."""
    return inf if max_nodes(request, policy) is None else policy.tolerance


def evaluate_state(profile: PodProfile, state: NodeState, policy: Policy) -> Evaluation:
    """Why a node in that state does not suit pods of that profile, or how well it does."""
    reason = rejection_reason(profile, state, policy)
    return score_state(profile, state, policy) if reason is None else reason


def spread_hash(text: str) -> int:
    """A name's place on a ring of 2^32 places: always the same, and as good as random."""
    return zlib.crc32(text.encode())


def shortlist(
    ranked: Mapping[float, Sequence[str]], count: int | None, uid: str, within: float = inf
) -> tuple[str, ...]:
    """The best of nodes by their points. Of equals each pod gets others, so that pods that arrive together spread.

    Of equals those come first that follow the pod on the ring. ``within``: so many points of the best.
    """
    start = spread_hash(uid)
    least = max(ranked, default=0.0) - within
    left = sum(map(len, ranked.values())) if count is None else count
    chosen: list[str] = []
    for points in sorted((each for each in ranked if each >= least), reverse=True):
        distances = (((spread_hash(name) - start) % HASH_RANGE, name) for name in ranked[points])
        chosen += (name for _, name in nsmallest(left - len(chosen), distances))
    return tuple(chosen)


@lru_cache(maxsize=_REMEMBERED_PROFILES)
def evaluator_for(profile: PodProfile, policy: Policy) -> Evaluator:
    """What has been judged for such pods."""
    return Evaluator(profile, policy)


@lru_cache(maxsize=_REMEMBERED_PROFILES)
def _remembered_reasons(profile: PodProfile, policy: Policy) -> Callable[[NodeState], Reason | None]:
    """Why nodes do not suit such pods, whatever CPU they ask for: kube-scheduler sees to that."""
    return lru_cache(maxsize=_REMEMBERED_STATES)(lambda state: rejection_reason(profile, state, policy))


@lru_cache(maxsize=_REMEMBERED_PROFILES)
def _remembered_scores(profile: PodProfile, policy: Policy) -> Callable[[NodeState], Score]:
    """How well nodes suit such pods. Most profiles that are new differ from known ones only in what they refuse."""
    return lru_cache(maxsize=_REMEMBERED_STATES)(scorer_for(profile, policy))
