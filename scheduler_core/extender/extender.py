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
from scheduler_core.cache.assumed_pods import WITH_VOLUMES_S, Assumption
from scheduler_core.cache.cluster_cache import Knowledge
from scheduler_core.cache.node_record import is_held
from scheduler_core.cache.node_table import NodeTable, state_if
from scheduler_core.cache.owner_pods import related
from scheduler_core.evaluation.evaluate import most, remembered, tolerance
from scheduler_core.evaluation.in_flight import firm
from scheduler_core.evaluation.ranking import Outlook, Standing, Standings, near, points
from scheduler_core.evaluation.score import Score
from scheduler_core.evaluation.transient import soon
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import Placement, Policies
from scheduler_core.request.pod import Pod, waits_for_volumes
from scheduler_core.request.pod_request import PodRequest, Refused


class NotReadyError(Exception):
    """Says what is missing. The server answers 503, and kube-scheduler tries the pod again."""


class Filtered(NamedTuple):
    """What Filter answers."""

    nodes: tuple[str, ...]  # best first
    failed: Mapping[str, str]  # why none of the names suits; empty where one does
    single: bool = False  # ``nodes`` is one name because something must hold there: it is assumed
    soon: bool = False  # no node suits, but one may without an event that kube-scheduler hears of (``hopes``)


class Decides(Protocol):
    """``Extender``. Both raise ``NotReadyError``."""

    def filter(self, pod: Pod, names: AbstractSet[str], *, last: bool = True) -> Filtered:
        """Which of the named nodes suit the pod. ``last``: where none does, that is the answer."""
        ...

    def prioritize(self, pod: Pod, names: AbstractSet[str]) -> Iterable[tuple[str, int]]:
        """How well each does."""
        ...


class Phases(NamedTuple):
    """Seconds."""

    standing: float  # to read the request and catch up with what changed
    choice: float
    assumption: float


class Record(NamedTuple):
    """A decision, with all that it was made from: values that never change, so that keeping it costs little."""

    at: float  # seconds since 1970
    request: PodRequest
    policy: Policy
    table: NodeTable
    doubtful: tuple[Assumption, ...]  # pods that were on their way to one of several nodes
    names: AbstractSet[str]
    answer: Filtered
    phases: Phases
    shut: AbstractSet[str] = frozenset()  # names that were not looked at: others may be on their way there

    @property
    def considered(self) -> AbstractSet[str]:
        """The names that the answer was chosen from."""
        return self.names - self.shut if self.shut else self.names

    @property
    def scores(self) -> tuple[Score, ...]:
        """Of the nodes answered. Worked out when asked for: they may be 15,000, and few decisions are read."""
        judged = remembered(self.request.profile, self.policy)
        found = (judged(self.table.states[name]) for name in self.answer.nodes)
        return tuple(each for each in found if isinstance(each, Score))


class Extender:
    """Answers for one scheduler."""

    def __init__(
        self, knowledge: Knowledge, policy: Policy, clock: Callable[[], float], record: Callable[[Record], None]
    ) -> None:
        self._knowledge = knowledge
        self.policies = Policies((Placement(policy),))  # in force
        # Whether pods that others let in may be on their way: then where something is kept there may be no room beside.
        self.unsure = False
        self._clock = clock
        self._record = record
        self._standings = Standings(knowledge)

    def filter(self, pod: Pod, names: AbstractSet[str], *, last: bool = True) -> Filtered:
        """Which of the named nodes the pod may go to: the best of them, or one where a shape is required.

        ``last``: it is not asked again at once where none suits, so that is recorded.

        Raises ``NotReadyError``.
        """
        started = perf_counter()
        now = self._ready()
        request = self.policies.read(pod)
        self._knowledge.forget(pod.metadata.uid)
        if isinstance(request, Refused):
            return Filtered((), dict.fromkeys(names, request.reason))
        if not request.profile.ask.programs:
            return Filtered(tuple(names), {})
        policy = self.policies.placement(request).policy
        request, standing = self._stands(request, policy)
        ready = perf_counter()
        doubtful = self._knowledge.assumptions.doubtful
        shut = self._shut(request.uid, standing.table, names) if self.unsure else frozenset[str]()
        found = _choose(request, standing, names - shut if shut else names, policy, doubtful)
        chosen = perf_counter()
        if found.nodes:
            lifetime = WITH_VOLUMES_S if waits_for_volumes(pod.spec) else ASSUMED_POD_LIFETIME_S
            nodes = names if len(found.nodes) == len(names) else frozenset(found.nodes)
            self._knowledge.assume(_occupant(request), nodes, lifetime)
        if found.nodes or last:
            phases = Phases(ready - started, chosen - ready, perf_counter() - chosen)
            self._record(Record(now, request, policy, standing.table, doubtful, names, found, phases, shut))
        if shut and not found.nodes:
            return _with_shut(found, request, standing, shut, policy)
        return found

    def _shut(self, uid: str, table: NodeTable, names: AbstractSet[str]) -> frozenset[str]:
        """Nodes where a place is kept, but for the pod itself: its own was vouched for. Held room can wait a little."""
        own, records = self._knowledge.reserved.places(uid), table.records
        return frozenset(
            name
            for name in names
            if name not in own and name in records and not all(map(is_held, records[name].reserved))
        )

    def prioritize(self, pod: Pod, names: AbstractSet[str]) -> Iterable[tuple[str, int]]:
        """How well each named node suits the pod, 0 to 10; 0 where it does not, or is not known.

        Raises ``NotReadyError``.
        """
        self._ready()
        request = self.policies.read(pod)
        if isinstance(request, Refused) or not request.profile.ask.programs:
            return [(name, 0) for name in names]
        # What is assumed of the pod itself must not stand in its way. Filter's answer assumes it anew.
        held = self._knowledge.assumptions.of(request.uid)
        own = held.nodes if held is not None and held.exact else ()
        request, standing = self._stands(request, self.policies.placement(request).policy)
        table, judged = standing.table, standing.judged
        apart = {name: table.records[name] for name in own if name in names and name in table.records}
        found = standing.points(names - apart.keys() if apart else names)
        for name, record in apart.items():
            others = [each for each in record.pods if each.uid != request.uid]
            found.append((name, points(judged(state_if(table, name, others)))))
        return found

    def _stands(self, request: PodRequest, policy: Policy) -> tuple[PodRequest, Standing | Outlook]:
        """The request and how the nodes stand for it, given the other pods of its owner and the place kept for it."""
        table = self._knowledge.table
        places = self._knowledge.reserved.places(request.uid)
        others = self._knowledge.placed(request.owner)
        request, seen = related(request, others, self._knowledge.seen_by(request.uid) if places else table)
        standing = self._standings.of(request.profile, policy)
        if seen is table:
            return request, standing
        return request, Outlook(standing, seen, {each.node for each in others}.union(places))

    def _ready(self) -> float:
        now = self._clock()
        if (trouble := self._knowledge.unready) is not None:
            raise NotReadyError(trouble)
        self._knowledge.tick(now)
        return now


def _choose(
    request: PodRequest,
    standing: Standing | Outlook,
    names: AbstractSet[str],
    policy: Policy,
    doubtful: Sequence[Assumption],
) -> Filtered:
    """The best nodes that suit, whichever of the doubtful pods are on their way to them."""
    profile, doubted = request.profile, list[str]()
    promising = names if profile.must_hold else standing.promising

    def suits(name: str) -> bool:
        if name not in promising or firm(profile, standing.table, name, doubtful, standing.judged):
            return True
        doubted.append(name)
        return False

    best = standing.best(names, request.uid)
    suitable = filter(suits, best) if doubtful and promising else best
    within = tolerance(request, policy)
    chosen = suitable if within == inf else near(suitable, standing.score, within)
    nodes = tuple(islice(chosen, most(request, policy)))
    if nodes:
        return Filtered(nodes, {}, request.profile.must_hold)
    refused = standing.refused(names).but(dict.fromkeys(doubted, Reason.RESERVED.value))
    passing = bool(doubted) or soon(profile, standing.table, refused, standing.unsure(names))
    return Filtered((), refused if passing else refused.whole(), soon=passing)


def _with_shut(
    found: Filtered, request: PodRequest, standing: Standing | Outlook, shut: AbstractSet[str], policy: Policy
) -> Filtered:
    """The same with nodes that nobody looked at. What may suit once all is known will be looked at soon."""
    beside = frozenset(standing.best(shut, request.uid))
    others = _choose(request, standing, shut - beside, policy, ())
    failed = {**found.failed, **others.failed, **dict.fromkeys(beside, Reason.RESERVED.value)}
    return Filtered((), failed, soon=found.soon or others.soon or bool(beside))


def _occupant(request: PodRequest) -> Occupant:
    profile = request.profile._replace(like=None)  # what it is compared with is no wish of its own
    return Occupant(request.uid, request.namespace, request.name, profile, owner=request.owner)
