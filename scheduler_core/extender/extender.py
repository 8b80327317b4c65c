"""Filter and Prioritize, answered from the cluster cache. Only this module adds assumed pods to the cache.

Errors: ``NotReadyError`` while the cache is incomplete. All else is an answer: a pod with a malformed request and an
unknown node are rejected with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from math import inf
from time import perf_counter, thread_time
from typing import NamedTuple, Protocol

from gputopo.labels.reasons import Reason
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import WITH_VOLUMES_S, AssumedPod
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import PodUpdate
from scheduler_core.cache.node_record import is_hold
from scheduler_core.cache.node_table import ClusterSnapshot, state_if
from scheduler_core.cache.owner_pods import with_owner
from scheduler_core.cache.sibling_proximity import with_near_siblings
from scheduler_core.evaluation.evaluate import evaluator_for
from scheduler_core.evaluation.ranking import NodeRanking, PodRanking, Rankings, rounded_points
from scheduler_core.evaluation.score import Score
from scheduler_core.evaluation.waiting_nodes import WaitingNodes
from scheduler_core.extender.node_choice import FilterResult, choose_nodes, with_closed_nodes
from scheduler_core.extender.protected_victims import ProtectedVictims, beneficiary_of
from scheduler_core.extender.victims import (
    DropCause,
    NodeVictims,
    PreemptionResult,
    fits_after_eviction,
    plausible_nodes,
)
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import Policies, PolicyProfile
from scheduler_core.request.pod import Pod, waits_for_volumes
from scheduler_core.request.pod_request import InvalidRequest, PodRequest

_AHEAD = 16  # profiles whose nodes are evaluated before they are requested again


class NotReadyError(Exception):
    """The cache is incomplete; the message says what is missing. Answered with 503; kube-scheduler retries the pod."""


class ExtenderCalls(Protocol):
    """The calls of ``Extender`` that place a pod. Both raise ``NotReadyError``."""

    def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:
        """Return the named nodes that suit the pod. ``final``: record a rejection, because no retry follows."""
        ...

    def prioritize(self, pod: Pod, names: AbstractSet[str]) -> Iterable[tuple[str, int]]:
        """Return the score of each named node."""
        ...


class SchedulerCalls(ExtenderCalls, Protocol):
    """All calls of ``Extender``. Each raises ``NotReadyError``."""

    def preempt(self, pod: Pod, victims: Mapping[str, NodeVictims]) -> PreemptionResult:
        """Return the nodes on which the pod fits once their victims are gone."""
        ...


class DecisionPhases(NamedTuple):
    """The durations of a decision, in seconds."""

    ranking_s: float  # to parse the request and update the ranking
    choice_s: float
    assumption_s: float


class DecisionRecord(NamedTuple):
    """A decision with its inputs: immutable values, so that keeping it costs little."""

    at: float  # seconds since 1970
    request: PodRequest
    policy: Policy
    table: ClusterSnapshot
    in_flight: tuple[AssumedPod, ...]  # assumed pods that may be on any of several nodes
    names: AbstractSet[str]
    answer: FilterResult
    phases: DecisionPhases
    # Not considered: unknown pods may be in flight to them, or the check with the in-flight pods took too long.
    closed_nodes: AbstractSet[str] = frozenset()
    waiting: WaitingNodes = WaitingNodes()  # not considered: they are not evaluated yet
    rejection_counts: Mapping[str, int] = {}  # of all known nodes, by reason; without nodes that are not evaluated
    suitable: int | None = None  # of all known nodes, those that are evaluated and not rejected; None: not counted
    # Of a preemption: the victims on each offered node. ``table`` has the nodes without them, ``names`` are those that
    # were evaluated, and ``answer`` has the kept ones. None: a decision of Filter.
    victims: Mapping[str, NodeVictims] | None = None
    dropped: Mapping[str, DropCause] = {}  # offered nodes that were not evaluated

    @property
    def considered(self) -> AbstractSet[str]:
        """The names that the answer was chosen from. Takes milliseconds if nodes were waiting."""
        return self.names - self.closed_nodes - self.waiting.among(self.names, self.table)

    @property
    def scores(self) -> tuple[Score, ...]:
        """Return the scores of the answered nodes. Not stored: there may be 15,000, and few decisions are read."""
        evaluator = evaluator_for(self.request.profile, self.policy)
        found = (evaluator(self.table.states[name]) for name in self.answer.nodes)
        return tuple(each for each in found if isinstance(each, Score))


class EvaluationLimits(NamedTuple):
    """How long one call may evaluate nodes, in seconds of CPU time.

    The rest is evaluated between calls, or in the next call.
    """

    enough_s: float = inf  # from the first evaluation: nodes are evaluated for this long in any case
    most_s: float = inf  # from the start of the call: until then also while no node fits, or for ``min_evaluations``
    min_evaluations: int = 0  # or steps of long ones, so that few nodes need not wait


class _CallTime:
    """The CPU time that a call has used, from the creation of this object."""

    def __init__(self, limits: EvaluationLimits) -> None:
        self._limits = limits
        self._started_at = thread_time()
        self._first_evaluation_at = inf
        self._evaluations = 0

    def request_evaluation(self, ranking: NodeRanking) -> bool:
        """Count one more evaluation. Return whether it may be done."""
        enough_s, most_s, min_evaluations = self._limits
        now = thread_time()
        self._evaluations += 1
        self._first_evaluation_at = min(self._first_evaluation_at, now)
        if now - self._first_evaluation_at < enough_s:
            return True
        return now - self._started_at < most_s and (self._evaluations <= min_evaluations or not ranking.accepts_some)

    def check_limit(self) -> Callable[[], bool]:
        """Return a function that returns whether checks with the in-flight pods may continue.

        They may until the time of the call ends, but for at least half of that time from now.
        """
        most_s = self._limits.most_s
        until = max(self._started_at + most_s, thread_time() + most_s / 2)
        return lambda: thread_time() < until


class Extender:
    """Answers the calls of one scheduler."""

    def __init__(
        self,
        cache: ClusterCache,
        policy: Policy,
        clock: Callable[[], float],
        record: Callable[[DecisionRecord], None],
        limits: EvaluationLimits = EvaluationLimits(),  # noqa: B008  immutable
    ) -> None:
        self._limits = limits
        self._cache = cache
        self.policies = Policies((PolicyProfile(policy),))  # in force
        # True while pods that other extenders accepted may be in flight: they may occupy the GPUs beside a reservation.
        self.settling = False
        self._clock = clock
        self._record = record
        self._rankings = Rankings(cache)
        self._protected = ProtectedVictims()

    def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:
        """Return the best named nodes that suit the pod; a single node if the pod has hard constraints.

        ``final``: record a rejection too. False if the caller repeats a rejected call at once.

        Raises ``NotReadyError``.
        """
        started, call_time = perf_counter(), _CallTime(self._limits)
        now = self._advance_time()
        request = self.policies.parse_pod(pod)
        self._cache.forget_assumed_pod(pod.metadata.uid)
        if isinstance(request, InvalidRequest):
            return FilterResult((), dict.fromkeys(names, request.reason))
        if not request.profile.device_request.steps_by_resource:
            return FilterResult(tuple(names), {})
        policy = self.policies.policy_for(request)
        request, ranking = self._ranking_for(request, policy, call_time=call_time)
        ready = perf_counter()
        in_flight = self._cache.assumed_pods.on_several_nodes
        closed = self._closed_nodes(request.uid, ranking.snapshot, names) if self.settling else frozenset[str]()
        not_closed = names - closed if closed else names

        def choose(request: PodRequest, ranking: NodeRanking | PodRanking) -> FilterResult:
            return choose_nodes(request, ranking, not_closed, policy, in_flight, call_time.check_limit())

        result, waiting = choose(request, ranking), ranking.waiting
        if not result.nodes and waiting.includes_some(not_closed, ranking.snapshot):
            request, ranking = self._ranking_for(request, policy, call_time=call_time, with_long=True)
            before, waiting = waiting, ranking.waiting
            if waiting.number < before.number:
                result = choose(request, ranking)
        # Held GPUs are used only if no other GPUs suit. Another reason for a rejection holds without reservations too.
        ignored = frozenset[str]() if result.nodes else self._ignored_holds(pod, names)
        if ignored and Reason.RESERVED.value in result.rejected.values():
            request, ranking = self._ranking_for(request, policy, ignored, call_time=call_time)
            result, waiting = choose(request, ranking), ranking.waiting
        chosen = perf_counter()
        if result.nodes:
            lifetime = WITH_VOLUMES_S if waits_for_volumes(pod.spec) else ASSUMED_POD_LIFETIME_S
            nodes = names if len(result.nodes) == len(names) else frozenset(result.nodes)
            self._cache.assume_pod(_occupant(request), nodes, lifetime)
        if result.nodes or final:
            phases = DecisionPhases(ready - started, chosen - ready, perf_counter() - chosen)
            self._record(
                DecisionRecord(
                    at=now,
                    request=request,
                    policy=policy,
                    table=ranking.snapshot,
                    in_flight=in_flight,
                    names=names,
                    answer=result,
                    phases=phases,
                    closed_nodes=closed | result.unchecked,
                    waiting=waiting,
                    rejection_counts=(counts := ranking.rejection_counts),
                    suitable=max(0, len(ranking.snapshot.states) - sum(counts.values()) - waiting.number),
                )
            )
        if result.nodes:
            return result
        if result.unchecked or waiting.includes_some(names, ranking.snapshot):
            return result._replace(may_fit_soon=True, unfinished=True)
        return result if not closed else with_closed_nodes(result, request, ranking, closed, policy)

    def evaluate_ahead(self, for_s: float) -> bool:
        """Evaluate nodes for profiles requested last, before they are requested again. Return whether some are left."""
        if self._cache.not_ready_reason is not None:
            return False
        until = thread_time() + for_s
        return self._rankings.evaluate_ahead(_AHEAD, lambda: thread_time() < until)

    def _ignored_holds(self, pod: Pod, names: AbstractSet[str]) -> frozenset[str]:
        """Return the UIDs of capacity holds that the pod ignores, if any of them is on a named node."""
        found = self._cache.reservations.holds_below(pod.spec.priority or 0)
        return found if found and not names.isdisjoint(self._cache.reservations.nodes_of(found)) else frozenset()

    def _closed_nodes(self, uid: str, table: ClusterSnapshot, names: AbstractSet[str]) -> frozenset[str]:
        """Return the nodes with reservations for other pods. Capacity holds do not count: they can wait a little.

        The nodes reserved for the pod itself stay open, because an extender acknowledged that reservation.
        """
        own, records = self._cache.reservations.nodes_for(uid), table.records
        return frozenset(
            name
            for name in names & self._cache.reservations.reserved_nodes
            if name not in own and name in records and not all(map(is_hold, records[name].reserved))
        )

    def prioritize(self, pod: Pod, names: AbstractSet[str]) -> Iterable[tuple[str, int]]:
        """Return the score of each named node, 0 to 10; 0 for unsuitable and unknown nodes.

        Raises ``NotReadyError``.
        """
        self._advance_time()
        request = self.policies.parse_pod(pod)
        if isinstance(request, InvalidRequest) or not request.profile.device_request.steps_by_resource:
            return [(name, 0) for name in names]
        # The pod's own assumption from Filter must not count against it.
        assumed = self._cache.assumed_pods.get_pod(request.uid)
        own = assumed.nodes if assumed is not None and assumed.is_on_one_node else ()
        ignored = self._ignored_holds(pod, names)
        policy = self.policies.policy_for(request)
        request, ranking = self._ranking_for(request, policy, ignored, with_long=True)
        table, evaluator = ranking.snapshot, ranking.evaluator
        own_records = {name: table.records[name] for name in own if name in names and name in table.records}
        found = ranking.points_of(names - own_records.keys() if own_records else names)
        for name, record in own_records.items():
            others = [each for each in record.pods if each.uid != request.uid]
            found.append((name, rounded_points(evaluator(state_if(table, name, others)))))
        return found

    def preempt(self, pod: Pod, victims: Mapping[str, NodeVictims]) -> PreemptionResult:
        """Return the nodes on which the pod fits once their victims are gone, with all their victims.

        Changes nothing: kube-scheduler chooses one of the nodes, and calls Filter for it when the victims are gone.

        Raises ``NotReadyError``.
        """
        started = perf_counter()
        now = self._advance_time()
        request = self.policies.parse_pod(pod)
        if isinstance(request, InvalidRequest):
            return PreemptionResult({}, {}, dict.fromkeys(victims, request.reason))
        for_gpus = bool(request.profile.device_request.steps_by_resource)
        pods, beneficiary = self._cache.pods, beneficiary_of(request, pod.spec.priority or 0)
        self._protected.forget_pods(pods)

        def is_protected(victim: PodUpdate) -> bool:
            return self._protected.protection_of(victim, beneficiary, self.policies.preemption, now) is not None

        plausible, dropped = plausible_nodes(victims, pods, is_protected, for_gpus=for_gpus)
        if not for_gpus:
            return PreemptionResult(plausible, dropped, {})
        policy = self.policies.policy_for(request)
        if self.settling:
            closed = self._closed_nodes(request.uid, self._cache.snapshot, plausible.keys())
            plausible = {name: each for name, each in plausible.items() if name not in closed}
            dropped |= dict.fromkeys(closed, DropCause.UNSETTLED)
        ready = perf_counter()
        in_flight = tuple(each for each in self._cache.assumed_pods.on_several_nodes if each.pod.uid != request.uid)
        request, _ = with_owner(request, self._cache.placed_siblings_of(request), self._cache.snapshot)
        tables = [partial(self._cache.snapshot_after, uid=request.uid)]
        if ignored := self._ignored_holds(pod, plausible.keys()):
            tables.append(partial(self._cache.snapshot_after, uid=request.uid, ignored=ignored))
        found = fits_after_eviction(request, tables, plausible, in_flight, policy)
        late = dict.fromkeys(plausible.keys() - found.evaluated, DropCause.OUT_OF_TIME)
        self._record(
            DecisionRecord(
                at=now,
                request=request,
                policy=policy,
                table=found.table,
                in_flight=in_flight,
                names=found.evaluated,
                answer=FilterResult(found.fitting, found.rejected),
                phases=DecisionPhases(ready - started, perf_counter() - ready, 0.0),
                victims=victims,
                dropped=dropped | late,
            )
        )
        return PreemptionResult({name: victims[name] for name in found.fitting}, dropped | late, found.rejected)

    def _ranking_for(
        self,
        request: PodRequest,
        policy: Policy,
        ignored: Collection[str] = (),
        *,
        call_time: _CallTime | None = None,
        with_long: bool = False,
    ) -> tuple[PodRequest, NodeRanking | PodRanking]:
        """Return the request and its ranking of the nodes, given its siblings and the pod's own reservation.

        ``ignored``: UIDs of capacity holds. ``call_time``: None: the call begins now.
        ``with_long``: also do long evaluations while another node fits; without a limit they are always done.
        """
        table = self._cache.snapshot
        reserved = self._cache.reservations.nodes_for(request.uid) or self._cache.reservations.nodes_of(ignored)
        others = self._cache.placed_siblings_of(request)
        request, own_table = with_owner(request, others, self._cache.snapshot_for_pod(request.uid, ignored))
        request, own_table, near = with_near_siblings(request, others, own_table, self._cache.domains)
        with_long = with_long or self._limits.enough_s == inf
        may_continue = (call_time or _CallTime(self._limits)).request_evaluation
        ranking = self._rankings.ranking_for(request.profile, policy, may_continue, with_long=with_long)
        if own_table is table:
            return request, ranking
        return request, PodRanking(ranking, own_table, {each.node for each in others}.union(reserved, near))

    def _advance_time(self) -> float:
        now = self._clock()
        if (reason := self._cache.not_ready_reason) is not None:
            raise NotReadyError(reason)
        self._cache.advance_time(now)
        return now


def _occupant(request: PodRequest) -> Occupant:
    profile = request.profile._replace(
        sibling_hardware=None, near_siblings=False, has_peers=False
    )  # these fields describe the siblings; they do not constrain the pod
    return Occupant(request.uid, request.namespace, request.name, profile, owner=request.owner)
