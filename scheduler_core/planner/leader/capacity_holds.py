"""Capacity holds for gangs that do not fit: which gang gets one, and which holds are not wanted any more. No I/O.

Each namespace has at most one hold of each priority: for its first waiting gang that would fit if other pods ended.
So no tenant keeps others from holding capacity. All holds of one priority together are limited. Gangs of a higher
priority ignore a hold of a lower priority. A hold stays as long as its gang waits and would still fit into it. Where it
would not (a node went, the gang grew), a new hold is searched, and the ledger replaces the old one in one write. A
single pod is a gang of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from math import inf
from typing import Any, NamedTuple

from gputopo.crd.reservations import EntryPhase, ReservationSpec
from scheduler_core.planner.commit.actions import CreateReservation, reserved_gang, reserved_gangs
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.equal_requests import ignored_holds, is_ignored
from scheduler_core.planner.leader.hold_candidates import PodEnds
from scheduler_core.planner.leader.hold_limits import CapacityHold, HoldLimits
from scheduler_core.planner.leader.hold_search import HoldResult, other_pods
from scheduler_core.planner.leader.late_pods import LatePods
from scheduler_core.planner.leader.queue import GangQueue, QueuedGang, fit_inputs
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.packing.backfill import hold_start
from scheduler_core.planner.packing.free_resources import free_without_gpu_pods
from scheduler_core.planner.packing.model import TableVariant
from scheduler_core.policy.limits import LimitReached
from scheduler_core.request.node_load import NO_LOAD

RETRY_S = 30.0  # until the next search for a gang that fits nowhere, whatever pods end; doubled each time
MAX_RETRY_S = 300.0
SOON_S = 5.0  # until the next search where a hold was found and did not come to be
AWAY_S = 10.0  # a hold outlives its gang for this time: while it is incomplete, or its objects are not listed yet
EVERY_S = 0.5  # between two passes over the queue
PAUSE_FACTOR = 9.0  # after a search, none is started for nine times its CPU time: searches use a tenth of the time
ESTIMATE_S = 10.0  # between two estimates
LATE_S = 300.0  # between two searches for a hold on whose nodes pods are late
_WAITING_PHASES = (GangPhase.WAITING_FOR_MEMBERS, GangPhase.WAITING, GangPhase.QUEUED)


class HoldRequest(NamedTuple):
    """A gang that needs a hold, and the nodes to search."""

    waiting: QueuedGang
    hold: ReservationSpec | None  # its present hold
    nodes: tuple[str, ...]
    ends: PodEnds
    late_nodes: frozenset[str] = frozenset()  # of the present hold: pods there did not end when they should have


class _Sufficient(NamedTuple):
    """For what a hold was found to be enough."""

    key: tuple[Any, ...]
    most_members: tuple[int, ...]
    at: float  # monotonic seconds

    def is_outdated_by(self, now: _Sufficient) -> bool:
        """Return whether the hold must be searched again. Pods without GPUs may come and go all the time."""
        return self.key != now.key or (self.most_members != now.most_members and now.at - self.at >= RETRY_S)


class _FoundHold(NamedTuple):
    """A hold that was found for a gang, and is too large beside the holds of others."""

    gpus: int
    requested: int  # by the gang; the hold may have more, such as all GPUs of a node
    at: float  # monotonic seconds; a smaller one may be found later


class CapacityHolds:
    """Capacity holds in one term of leadership. For one thread."""

    def __init__(self, view: PlannerView, queue: GangQueue, context: TermContext) -> None:
        self.limits = HoldLimits(queue, context, self._count_gpus, self._own_use)
        self.users: Mapping[str, tuple[str, ...]] = {}  # by UID: pods of a higher priority that use the capacity
        self._view, self._queue = view, queue
        self._late_pods = LatePods(view, context)
        self._known_pods: dict[str, set[str]] = {}  # by UID of a hold: UIDs of pods on its nodes when it began
        self._sufficient: dict[str, _Sufficient] = {}  # by UID: for what a hold was found to be enough
        self._useless: set[str] = set()  # UIDs
        self._away: dict[str, float] = {}  # by UID: since when its gang is not queued, monotonic seconds
        self._not_before: dict[GangName, float] = {}  # monotonic seconds
        self._failures: Counter[GangName] = Counter()  # searches in a row without a result
        self._too_large: dict[GangName, _FoundHold] = {}
        self._avoided_holds: dict[GangName, frozenset[str]] = {}  # UIDs: the last search left out their nodes
        self._estimates: dict[str, float | None] = {}
        self._next_estimate = 0.0
        self._next_search = 0.0

    def open_holds(self) -> tuple[CapacityHold, ...]:
        """Return the holds that the ledger lists, or is about to list; the highest priority first."""
        view = self._view
        if not view.reservation_index.holds:  # each round asks several times
            return ()
        entries = view.entries()
        found = [
            CapacityHold(each, name)
            for uid in view.reservation_index.holds
            if (uid in entries or uid in view.observations.created)
            and (name := reserved_gang(each := view.reservations[uid])) is not None
            and view.gang_members.get_gang(name) is not None
        ]
        return tuple(sorted(found, key=lambda each: (-each.priority, each.gang, each.reservation.name)))

    def unwanted_holds(self, now: float) -> frozenset[str]:
        """Return the UIDs of holds to drop. ``now``: monotonic seconds."""
        holds = self.open_holds()
        queued = {each.reservation.key: self._queue.get_queued(each.gang) is not None for each in holds}
        self._away = {uid: self._away.get(uid, now) for uid, is_queued in queued.items() if not is_queued}
        self._sufficient = {uid: key for uid, key in self._sufficient.items() if uid in queued}
        self._useless &= queued.keys()
        self.limits.forget_gone()
        over = {uid for uid, since in self._away.items() if now - since >= AWAY_S}
        over |= {each.reservation.key for each in holds if self._is_not_waiting(each)}
        over |= set(self.limits.exceeding(holds, now))
        return frozenset(over | self._useless | set(_preempted(holds)) | set(self._placed(holds)))

    def estimates(self, now: float) -> Mapping[str, float | None]:
        """Return when the held devices will be free, by UID, in seconds since 1970; None: unknown."""
        holds = self.open_holds()
        uids = {each.reservation.key for each in holds}
        if now >= self._next_estimate or not uids <= self._estimates.keys():
            self._next_estimate = now + ESTIMATE_S
            self._estimates = {each.reservation.key: self._estimate(each) for each in holds}
            self._late_pods.update(holds)
            self.users = {each.reservation.key: self._users_of(each) for each in holds}
            self._known_pods = {uid: pods for uid, pods in self._known_pods.items() if uid in uids}
        return self._estimates

    def next_request(
        self, now: float, kept: Collection[str] = (), has_given_up: Callable[[str], bool] = lambda _: False
    ) -> HoldRequest | None:
        """Return the next gang to search for: first gangs with a hold that may not fit any more, then the queue.

        ``kept``: UIDs of holds that are not replaced now. ``has_given_up``: whether a namespace gets no new hold now.
        """
        holds = self.open_holds()
        for each in holds:
            waiting = self._queue.get_queued(each.gang)
            if each.reservation.key in kept:
                continue
            if waiting is None or not (_covers(each, waiting) or self._queue.is_entitled(waiting, now)):
                continue  # a gang that has grown waits again before more is held for it
            late_nodes = self._late_pods.nodes_of(each, {member.uid for member in waiting.gang.placed})
            if late_nodes and now < self._next_search:
                continue
            key = *self._sufficiency_key(each, waiting), late_nodes, bool(late_nodes) and now // LATE_S
            found = _Sufficient(key, self._most_members(each, waiting), now)
            known = self._sufficient.get(each.reservation.key)
            if known is None or known.is_outdated_by(found):
                self._sufficient[each.reservation.key] = found
                return self._request_for(waiting, holds, each.reservation.spec)._replace(late_nodes=late_nodes)
        if now < self._next_search:
            return None
        self._next_search = now + EVERY_S
        served, in_progress = {(each.gang.namespace, each.priority) for each in holds}, self._view.in_progress()
        uids = {each.reservation.key for each in holds}
        self.limits.clear_shares()
        for waiting in self._queue.entitled_to_hold(now):
            gang = waiting.gang
            is_retry_due = now >= self._not_before.get(gang.name, 0.0)
            is_due = is_retry_due or not self._avoided_holds.get(gang.name, frozenset()) <= uids
            if (gang.name.namespace, gang.priority) in served:
                self.limits.mark_other_holder(gang.name)
                continue
            if has_given_up(gang.name.namespace) or not in_progress.is_free(gang):
                continue
            if self._failures[gang.name] and not is_due:
                continue
            requested = gang.asks.total()
            if not self.limits.allow(gang.name, gang.priority, requested, holds, now):
                continue
            found_hold = self._known_hold(gang, now)
            gpus = requested if found_hold is None else found_hold.gpus
            is_allowed = self.limits.allow_together(gang.name, gang.priority, gpus, holds, now)
            if (is_allowed or found_hold is None) and is_due and waiting.unfit_state is not None:
                return self._request_for(waiting, holds)
            if found_hold is not None:
                self.limits.keep_share(waiting, gpus)
            served.add((gang.name.namespace, gang.priority))  # it is the first, and may fit soon
        return None

    def _known_hold(self, gang: Gang, now: float) -> _FoundHold | None:
        """Return the hold that is too large for now; None: none is known, or a smaller one may be found."""
        found = self._too_large.get(gang.name)
        is_old = found is None or now - found.at >= MAX_RETRY_S or found.requested != gang.asks.total()
        return None if is_old else found

    def apply_result(self, result: HoldResult, now: float) -> CreateReservation | None:
        """Return the hold to create.

        Where no hold is possible, the present hold is dropped; else it stays until the ledger replaces it.
        """
        name, queue = result.gang.name, self._queue
        held = 0 if result.create is None else sum(each.gpus for each in result.create.spec.held)
        wanted = name, result.gang.priority, held, self.open_holds(), now
        self._next_search = now + max(EVERY_S, PAUSE_FACTOR * result.cpu_s)
        self._too_large = {
            gang: each for gang, each in self._too_large.items() if gang != name and queue.get_queued(gang) is not None
        }
        if held and not self.limits.allow(*wanted):
            result = result._replace(create=None)
        elif held and not self.limits.allow_together(*wanted):
            self._too_large[name] = _FoundHold(held, result.gang.asks.total(), now)
            return None
        self._not_before = {gang: at for gang, at in self._not_before.items() if queue.get_queued(gang) is not None}
        self._avoided_holds = {
            gang: uids for gang, uids in self._avoided_holds.items() if queue.get_queued(gang) is not None
        }
        self._failures = Counter(
            {gang: times for gang, times in self._failures.items() if queue.get_queued(gang) is not None}
        )
        if result.reason is not None:
            self.limits.reached[name] = LimitReached("heldGpus", result.reason)
        if result.create is not None:
            del self._failures[name]
            self._not_before[name] = now + SOON_S
        elif not result.is_enough:
            self._not_before[name] = now + min(MAX_RETRY_S, RETRY_S * 2.0 ** self._failures[name])
            self._failures[name] += 1
            self._useless |= {each.reservation.key for each in self.open_holds() if each.gang == name}
        waiting = queue.get_queued(name)  # plans ran meanwhile: the gang may have its places
        return result.create if waiting is not None and self._view.in_progress().is_free(waiting.gang) else None

    def tables_without_holds(self, batches: Iterable[tuple[QueuedGang, ...]]) -> dict[GangName, TableVariant]:
        """Return, by gang, the snapshot without the holds that it may use: its own, and holds of lower priorities."""
        holds, variant_without = self.open_holds(), cache(self._view.variant_without)
        gangs = [batch[0].gang for batch in batches] if holds else []
        return {gang.name: variant_without(free) for gang in gangs if (free := ignored_holds(gang, holds))}

    def _count_gpus(self) -> int:
        records = self._view.cache.snapshot.records.values()
        return sum(number for each in records for _, number in each.machine.allocatable)

    def _own_use(self, hold: CapacityHold) -> int:
        records, found = self._view.cache.snapshot.records, 0
        for each in hold.spec.held:
            pods = other_pods(records[each.node]) if each.node in records else []
            own = [pod.profile.device_request.totals for pod in pods if pod.namespace == hold.gang.namespace]
            found += min(each.gpus, sum(dict(totals).get(each.resource, 0) for totals in own))
        return found

    def _users_of(self, hold: CapacityHold) -> tuple[str, ...]:
        """Return the pods of a higher priority that came to the nodes of a hold since it began, or since this term."""
        records, pods = self._view.cache.snapshot.records, self._view.cache.pods
        present = {pod.uid for name in hold.nodes if name in records for pod in other_pods(records[name])}
        new = present - self._known_pods.setdefault(hold.reservation.key, present)
        found = [pods[uid] for uid in new if uid in pods and pods[uid].priority > hold.priority]
        return tuple(sorted(f"{each.occupant.namespace}/{each.occupant.name}" for each in found))

    def _placed(self, holds: Collection[CapacityHold]) -> Iterator[str]:
        """Yield the UIDs of holds whose gang has its places."""
        if not holds:  # most rounds; the rest costs as much as all reservations have members
            return
        view = self._view
        places = [view.reservations[uid] for uid, each in view.entries().items() if each.phase is EntryPhase.COMMITTED]
        served = {
            name for each in places for name in reserved_gangs(each.namespace, each.spec, view.gang_members.get_member)
        }
        yield from (each.reservation.key for each in holds if each.gang in served)

    def _is_not_waiting(self, hold: CapacityHold) -> bool:
        """Return True if the gang exists and no longer waits for capacity, or is complete with another priority."""
        gang = self._view.gang_members.get_gang(hold.gang)
        has_changed = gang is not None and gang.phase is GangPhase.QUEUED and gang.priority != hold.priority
        return has_changed or (gang is not None and gang.phase not in _WAITING_PHASES)

    def _sufficiency_key(self, hold: CapacityHold, waiting: QueuedGang) -> tuple[Any, ...]:
        """Return all that decides whether a hold is enough, except the pods on its nodes (see ``_most_members``)."""
        records, rules = self._view.cache.snapshot.records, self._view.rules
        nodes = sorted(hold.nodes)
        machines = [None if name not in records else records[name].machine for name in nodes]
        return fit_inputs(waiting.gang), tuple(machines), tuple(rules.get(name) for name in nodes)

    def _most_members(self, hold: CapacityHold, waiting: QueuedGang) -> tuple[int, ...]:
        """Return how many members the pods without GPUs on the nodes of a hold leave CPU, memory and pod slots for."""
        records, others = self._view.cache.snapshot.records, self._view.loads.by_node
        loads = sorted({each.load for each in waiting.gang.ready})
        free = [
            free_without_gpu_pods(records[name], others.get(name) or NO_LOAD)
            for name in sorted(hold.nodes)
            if name in records
        ]
        return tuple(min(each.most(load), len(waiting.gang.ready)) for each in free for load in loads)

    def _request_for(
        self, waiting: QueuedGang, holds: Iterable[CapacityHold], hold: ReservationSpec | None = None
    ) -> HoldRequest:
        """Return a request on all nodes without holds of other gangs of the same or a higher priority."""
        gang, records = waiting.gang, self._view.cache.snapshot.records
        others = [each for each in holds if not is_ignored(each, gang)]
        taken = nodes_of_other_holds(gang, others)
        self._avoided_holds[gang.name] = frozenset(each.reservation.key for each in others)
        nodes = tuple(name for name in self._view.rules if name in records and name not in taken)
        return HoldRequest(waiting, hold, nodes, self._late_pods.ends())

    def _estimate(self, hold: CapacityHold) -> float | None:
        found = hold_start(hold.spec.held, self._view.cache.snapshot, self._view.deadlines.deadline_of)
        return None if found == -inf else found


def nodes_of_other_holds(gang: Gang, holds: Iterable[CapacityHold]) -> set[str]:
    """Return the nodes of holds whose capacity a gang may not use: nothing is held or evicted for it there."""
    return set[str]().union(*(each.nodes for each in holds if not is_ignored(each, gang)))


def _covers(hold: CapacityHold, waiting: QueuedGang) -> bool:
    """Return True if the hold has as many devices as the gang requests."""
    held = Counter[str]()
    for each in hold.reservation.spec.held:
        held[each.resource] += each.gpus
    return waiting.gang.asks <= held


def _preempted(holds: Iterable[CapacityHold]) -> Iterator[str]:
    """Yield the UIDs of holds with a node that an earlier hold, of a higher priority, has too."""
    taken: dict[str, GangName] = {}
    for each in holds:
        if any(taken.get(node, each.gang) != each.gang for node in each.nodes):
            yield each.reservation.key
        else:
            taken |= dict.fromkeys(each.nodes, each.gang)
