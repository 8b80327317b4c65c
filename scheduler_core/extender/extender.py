"""Filter and Prioritize: what kube-scheduler asks, answered from what is known. The only place that assumes anything.

Errors: ``NotReadyError`` where nothing can be answered yet. All else is an answer: a pod that asks for what cannot be
understood, and a node that is not known, are refused with their reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from math import inf
from time import perf_counter
from typing import NamedTuple, Protocol

from gputopo.labels.reasons import Reason
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import WITH_VOLUMES_S, AssumedPod
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.node_record import is_hold
from scheduler_core.cache.node_table import Snapshot, state_if
from scheduler_core.cache.owner_pods import for_owner
from scheduler_core.evaluation.evaluate import evaluator_for, max_nodes, tolerance
from scheduler_core.evaluation.in_flight import fits_with_all
from scheduler_core.evaluation.ranking import NodeRanking, PodRanking, Rankings, rounded_points, within_points
from scheduler_core.evaluation.score import Score
from scheduler_core.evaluation.transient import may_fit_soon
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import Policies, PolicyProfile
from scheduler_core.request.pod import Pod, waits_for_volumes
from scheduler_core.request.pod_request import InvalidRequest, PodRequest


class NotReadyError(Exception):
    """Says what is missing. The server answers 503, and kube-scheduler tries the pod again."""


class FilterResult(NamedTuple):
    """What Filter answers."""

    nodes: tuple[str, ...]  # best first
    rejected: Mapping[str, str]  # why none of the names suits; empty where one does
    single: bool = False  # ``nodes`` is one name because something must hold there: it is assumed
    may_fit_soon: bool = False  # no node suits, but one may without an event that kube-scheduler hears of (``hopes``)


class ExtenderCalls(Protocol):
    """``Extender``. Both raise ``NotReadyError``."""

    def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:
        """Which of the named nodes suit the pod. ``last``: where none does, that is the answer."""
        ...

    def prioritize(self, pod: Pod, names: AbstractSet[str]) -> Iterable[tuple[str, int]]:
        """How well each does."""
        ...


class DecisionPhases(NamedTuple):
    """Seconds."""

    ranking_s: float  # to read the request and catch up with what changed
    choice_s: float
    assumption_s: float


class DecisionRecord(NamedTuple):
    """A decision, with all that it was made from: values that never change, so that keeping it costs little."""

    at: float  # seconds since 1970
    request: PodRequest
    policy: Policy
    table: Snapshot
    in_flight: tuple[AssumedPod, ...]  # pods that were on their way to one of several nodes
    names: AbstractSet[str]
    answer: FilterResult
    phases: DecisionPhases
    closed_nodes: AbstractSet[str] = frozenset()  # names that were not looked at: others may be on their way there

    @property
    def considered(self) -> AbstractSet[str]:
        """The names that the answer was chosen from."""
        return self.names - self.closed_nodes if self.closed_nodes else self.names

    @property
    def scores(self) -> tuple[Score, ...]:
        """Of the nodes answered. Worked out when asked for: they may be 15,000, and few decisions are read."""
        judged = evaluator_for(self.request.profile, self.policy)
        found = (judged(self.table.states[name]) for name in self.answer.nodes)
        return tuple(each for each in found if isinstance(each, Score))


class Extender:
    """Answers for one scheduler."""

    def __init__(
        self,
        knowledge: ClusterCache,
        policy: Policy,
        clock: Callable[[], float],
        record: Callable[[DecisionRecord], None],
    ) -> None:
        self._knowledge = knowledge
        self.policies = Policies((PolicyProfile(policy),))  # in force
        # Whether pods that others let in may be on their way: then where something is kept there may be no room beside.
        self.settling = False
        self._clock = clock
        self._record = record
        self._standings = Rankings(knowledge)

    def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:
        """Which of the named nodes the pod may go to: the best of them, or one where a shape is required.

        ``last``: it is not asked again at once where none suits, so that is recorded.

        Raises ``NotReadyError``.
        """
        started = perf_counter()
        now = self._advance_time()
        request = self.policies.parse_pod(pod)
        self._knowledge.forget_assumed_pod(pod.metadata.uid)
        if isinstance(request, InvalidRequest):
            return FilterResult((), dict.fromkeys(names, request.reason))
        if not request.profile.device_request.steps_by_resource:
            return FilterResult(tuple(names), {})
        policy = self.policies.profile_for(request).policy
        request, standing = self._ranking_for(request, policy)
        ready = perf_counter()
        doubtful = self._knowledge.assumed_pods.on_several_nodes
        shut = self._closed_nodes(request.uid, standing.snapshot, names) if self.settling else frozenset[str]()
        found = _choose_nodes(request, standing, names - shut if shut else names, policy, doubtful)
        chosen = perf_counter()
        if found.nodes:
            lifetime = WITH_VOLUMES_S if waits_for_volumes(pod.spec) else ASSUMED_POD_LIFETIME_S
            nodes = names if len(found.nodes) == len(names) else frozenset(found.nodes)
            self._knowledge.assume_pod(_occupant(request), nodes, lifetime)
        if found.nodes or final:
            phases = DecisionPhases(ready - started, chosen - ready, perf_counter() - chosen)
            self._record(DecisionRecord(now, request, policy, standing.snapshot, doubtful, names, found, phases, shut))
        if shut and not found.nodes:
            return _with_closed_nodes(found, request, standing, shut, policy)
        return found

    def _closed_nodes(self, uid: str, table: Snapshot, names: AbstractSet[str]) -> frozenset[str]:
        """Nodes where a place is kept, but for the pod itself: its own was vouched for. Held room can wait a little."""
        own, records = self._knowledge.reservations.nodes_for(uid), table.records
        return frozenset(
            name
            for name in names
            if name not in own and name in records and not all(map(is_hold, records[name].reserved))
        )

    def prioritize(self, pod: Pod, names: AbstractSet[str]) -> Iterable[tuple[str, int]]:
        """How well each named node suits the pod, 0 to 10; 0 where it does not, or is not known.

        Raises ``NotReadyError``.
        """
        self._advance_time()
        request = self.policies.parse_pod(pod)
        if isinstance(request, InvalidRequest) or not request.profile.device_request.steps_by_resource:
            return [(name, 0) for name in names]
        # What is assumed of the pod itself must not stand in its way. Filter's answer assumes it anew.
        held = self._knowledge.assumed_pods.get_pod(request.uid)
        own = held.nodes if held is not None and held.is_on_one_node else ()
        request, standing = self._ranking_for(request, self.policies.profile_for(request).policy)
        table, judged = standing.snapshot, standing.evaluator
        apart = {name: table.records[name] for name in own if name in names and name in table.records}
        found = standing.points_of(names - apart.keys() if apart else names)
        for name, record in apart.items():
            others = [each for each in record.pods if each.uid != request.uid]
            found.append((name, rounded_points(judged(state_if(table, name, others)))))
        return found

    def _ranking_for(self, request: PodRequest, policy: Policy) -> tuple[PodRequest, NodeRanking | PodRanking]:
        """The request and how the nodes stand for it, given the other pods of its owner and the place kept for it."""
        table = self._knowledge.table
        places = self._knowledge.reservations.nodes_for(request.uid)
        others = self._knowledge.placed_pods_of(request.owner)
        request, seen = for_owner(request, others, self._knowledge.table_for_pod(request.uid) if places else table)
        standing = self._standings.ranking_for(request.profile, policy)
        if seen is table:
            return request, standing
        return request, PodRanking(standing, seen, {each.node for each in others}.union(places))

    def _advance_time(self) -> float:
        now = self._clock()
        if (trouble := self._knowledge.not_ready_reason) is not None:
            raise NotReadyError(trouble)
        self._knowledge.advance_time(now)
        return now


def _choose_nodes(
    request: PodRequest,
    standing: NodeRanking | PodRanking,
    names: AbstractSet[str],
    policy: Policy,
    doubtful: Sequence[AssumedPod],
) -> FilterResult:
    """The best nodes that suit, whichever of the doubtful pods are on their way to them."""
    profile, doubted = request.profile, list[str]()
    promising = names if profile.has_hard_constraints else standing.with_commitments

    def suits(name: str) -> bool:
        if name not in promising or fits_with_all(profile, standing.snapshot, name, doubtful, standing.evaluator):
            return True
        doubted.append(name)
        return False

    best = standing.best_nodes(names, request.uid)
    suitable = filter(suits, best) if doubtful and promising else best
    within = tolerance(request, policy)
    chosen = suitable if within == inf else within_points(suitable, standing.score_of, within)
    nodes = tuple(islice(chosen, max_nodes(request, policy)))
    if nodes:
        return FilterResult(nodes, {}, request.profile.has_hard_constraints)
    refused = standing.rejections_of(names).with_reasons(dict.fromkeys(doubted, Reason.RESERVED.value))
    passing = bool(doubted) or may_fit_soon(profile, standing.snapshot, refused, standing.uncertain_nodes(names))
    return FilterResult((), refused if passing else refused.as_dict(), may_fit_soon=passing)


def _with_closed_nodes(
    found: FilterResult, request: PodRequest, standing: NodeRanking | PodRanking, shut: AbstractSet[str], policy: Policy
) -> FilterResult:
    """The same with nodes that nobody looked at. What may suit once all is known will be looked at soon."""
    beside = frozenset(standing.best_nodes(shut, request.uid))
    others = _choose_nodes(request, standing, shut - beside, policy, ())
    failed = {**found.rejected, **others.rejected, **dict.fromkeys(beside, Reason.RESERVED.value)}
    return FilterResult((), failed, may_fit_soon=found.may_fit_soon or others.may_fit_soon or bool(beside))


def _occupant(request: PodRequest) -> Occupant:
    profile = request.profile._replace(sibling_hardware=None)  # what it is compared with is no wish of its own
    return Occupant(request.uid, request.namespace, request.name, profile, owner=request.owner)
