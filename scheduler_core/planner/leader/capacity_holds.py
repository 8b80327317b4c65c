"""What is held for gangs that do not fit: for whom room is sought, and which holds are not wanted any more. No I/O.

One hold for each priority at most: for the first that waits and would fit if others ended. Who has the higher priority
takes no heed of a hold of a lower one. A hold stays as long as its gang waits and would still fit there; where it would
not (a node went, the gang grew), room is sought anew, and the ledger exchanges the two in one write. A single pod is a
gang of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import isinf
from typing import Any, NamedTuple

from gputopo.crd.reservations import EntryPhase, Holding
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.planner.commit.actions import CreateReservation, reserved_gang, reserved_gangs
from scheduler_core.planner.commit.ledger import active_entries
from scheduler_core.planner.gang.gang import GangPhase
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.pod_deadlines import PodDeadlines
from scheduler_core.planner.leader.hold_candidates import node_deadlines
from scheduler_core.planner.leader.hold_search import HoldResult, other_pods
from scheduler_core.planner.leader.in_progress import in_progress
from scheduler_core.planner.leader.queue import GangQueue, QueuedGang, fit_key
from scheduler_core.planner.leader.view import PlannerView

RETRY_S = 30.0  # before room is sought again for a gang for which there is none, whoever ends; doubled each time
MAX_RETRY_S = 300.0
SOON_S = 5.0  # the same where there was some, which came to nothing
AWAY_S = 10.0  # a gang may be incomplete for so long, or its objects not listed yet, before its hold ends
EVERY_S = 0.5  # between two looks at all that wait
REST_FACTOR = 9.0  # times as long as a search took none is begun for the next: they take a tenth of the time
ESTIMATE_S = 10.0  # between two estimates
_UNDER_WAY = (GangPhase.WAITING_FOR_MEMBERS, GangPhase.WAITING, GangPhase.QUEUED)


class HoldRequest(NamedTuple):
    """For whom room is to be found, and where."""

    waiting: QueuedGang
    held: tuple[Holding, ...]  # for it already
    nodes: tuple[str, ...]
    deadlines: PodDeadlines


class CapacityHold(NamedTuple):
    """A reservation of room."""

    reservation: ReservationUpdate
    gang: GangName
    priority: int

    @property
    def nodes(self) -> set[str]:
        """Where room is held."""
        return {each.node for each in self.reservation.spec.held}


class CapacityHolds:
    """For one thread, and one term of leadership."""

    def __init__(self, view: PlannerView, queue: GangQueue) -> None:
        self._view, self._queue = view, queue
        self._sufficient: dict[str, tuple[Any, ...]] = {}  # by UID: what a hold was found to be enough for
        self._useless: set[str] = set()  # UIDs
        self._away: dict[str, float] = {}  # since when its gang does not wait, monotonic seconds, by UID
        self._not_before: dict[GangName, float] = {}  # monotonic seconds
        self._failures: Counter[GangName] = Counter()  # times in a row that there was no room, whoever ends
        self._estimates: dict[str, float | None] = {}
        self._next_estimate = 0.0
        self._next_search = 0.0

    def open_holds(self) -> tuple[CapacityHold, ...]:
        """Those that count, and those that were written and are about to; the highest priority first."""
        view, ledger = self._view, self._view.ledger
        entries = () if ledger is None else active_entries(ledger.spec, view.reservations)
        found = [
            CapacityHold(each, name, gang.priority)
            for uid in {*entries, *view.observations.made}
            if (each := view.reservations.get(uid)) is not None
            and each.spec.held
            and (name := reserved_gang(each)) is not None
            and (gang := view.gang_members.get_gang(name)) is not None
        ]
        return tuple(sorted(found, key=lambda each: (-each.priority, each.gang, each.reservation.name)))

    def unwanted_holds(self, now: float) -> frozenset[str]:
        """UIDs of those that are not wanted any more. ``now``: monotonic seconds."""
        holds = self.open_holds()
        waits = {each.reservation.key: self._queue.get_queued(each.gang) is not None for each in holds}
        self._away = {uid: self._away.get(uid, now) for uid, there in waits.items() if not there}
        self._sufficient = {uid: sound for uid, sound in self._sufficient.items() if uid in waits}
        self._useless &= waits.keys()
        over = {uid for uid, since in self._away.items() if now - since >= AWAY_S}
        over |= {each.reservation.key for each in holds if self._is_not_waiting(each)}
        return frozenset(over | self._useless | set(_preempted(holds)) | set(self._with_places(holds)))

    def estimates(self, now: float) -> Mapping[str, float | None]:
        """When what is held will be free, by UID, in seconds since 1970; None: nobody can say."""
        holds = self.open_holds()
        uids = {each.reservation.key for each in holds}
        if now >= self._next_estimate or not uids <= self._estimates.keys():
            self._next_estimate = now + ESTIMATE_S
            self._estimates = {each.reservation.key: self._estimate(each) for each in holds}
        return self._estimates

    def next_request(self, now: float) -> HoldRequest | None:
        """For whom room is to be found now: who has some that may not do any more, and then who waited too long."""
        holds = self.open_holds()
        for each in holds:
            waiting = self._queue.get_queued(each.gang)
            if waiting is None or not (_covers(each, waiting) or self._queue.is_entitled(waiting, now)):
                continue  # a gang that has grown waits anew before more is held for it
            if self._sufficient.get(each.reservation.key) != self._sufficiency_key(each, waiting):
                self._sufficient[each.reservation.key] = self._sufficiency_key(each, waiting)
                return self._request_for(waiting, holds, each.reservation.spec.held)
        if now < self._next_search:
            return None
        self._next_search = now + EVERY_S
        levels, spoken = {each.priority for each in holds}, in_progress(self._view)
        for waiting in self._queue.entitled_to_hold(now):
            gang = waiting.gang
            due = now >= self._not_before.get(gang.name, 0.0)
            if gang.priority in levels or not spoken.is_free(gang) or (self._failures[gang.name] and not due):
                continue
            if due and waiting.unfit_state is not None:
                return self._request_for(waiting, holds)
            levels.add(gang.priority)  # it is the first, and may fit in a moment
        return None

    def apply_result(self, what: HoldResult, now: float) -> CreateReservation | None:
        """What is to be written.

        Where nothing can be held what is held is of no use. Else it stays until the ledger exchanges them.
        """
        name, queue = what.gang.name, self._queue
        self._next_search = now + max(EVERY_S, REST_FACTOR * what.took)
        self._not_before = {of: at for of, at in self._not_before.items() if queue.get_queued(of) is not None}
        self._failures = Counter(
            {of: times for of, times in self._failures.items() if queue.get_queued(of) is not None}
        )
        if what.create is not None:
            del self._failures[name]
            self._not_before[name] = now + SOON_S
        elif not what.is_enough:
            self._not_before[name] = now + min(MAX_RETRY_S, RETRY_S * 2.0 ** self._failures[name])
            self._failures[name] += 1
            self._useless |= {each.reservation.key for each in self.open_holds() if each.gang == name}
        waiting = queue.get_queued(name)  # others were planned meanwhile: it may have its places
        return what.create if waiting is not None and in_progress(self._view).is_free(waiting.gang) else None

    def tables_without_holds(self, batches: Iterable[tuple[QueuedGang, ...]]) -> dict[GangName, Snapshot]:
        """The cluster as those see it who may take what is held: their own, or that of lower priorities."""
        holds = self.open_holds()
        known: dict[frozenset[str], Snapshot] = {}
        found: dict[GangName, Snapshot] = {}
        for first, *_ in batches if holds else ():
            gang = first.gang
            free = frozenset(
                each.reservation.key for each in holds if each.gang == gang.name or each.priority < gang.priority
            )
            if free:
                if free not in known:
                    known[free] = self._view.cache.table_without(free)
                found[gang.name] = known[free]
        return found

    def _with_places(self, holds: Iterable[CapacityHold]) -> Iterator[str]:
        """Whose gang has its places."""
        view, ledger = self._view, self._view.ledger
        entries = {} if ledger is None else active_entries(ledger.spec, view.reservations)
        places = [view.reservations[uid] for uid, each in entries.items() if each.phase is EntryPhase.COMMITTED]
        served = {
            name for each in places for name in reserved_gangs(each.namespace, each.spec, view.gang_members.get_member)
        }
        yield from (each.reservation.key for each in holds if each.gang in served)

    def _is_not_waiting(self, hold: CapacityHold) -> bool:
        """Whether it waits for no place any more, and is not about to."""
        gang = self._view.gang_members.get_gang(hold.gang)
        return gang is not None and gang.phase not in _UNDER_WAY

    def _sufficiency_key(self, hold: CapacityHold, waiting: QueuedGang) -> tuple[Any, ...]:
        """All that decides whether a hold still is enough, other than who is there now."""
        records, rules = self._view.cache.table.records, self._view.rules
        nodes = sorted(hold.nodes)
        machines = [None if name not in records else records[name].machine for name in nodes]
        return fit_key(waiting.gang), tuple(machines), tuple(rules.get(name) for name in nodes)

    def _request_for(
        self, waiting: QueuedGang, holds: Iterable[CapacityHold], held: tuple[Holding, ...] = ()
    ) -> HoldRequest:
        """On all nodes that are not held for others whom it must not disturb."""
        gang, records = waiting.gang, self._view.cache.table.records
        others = [each for each in holds if each.gang != gang.name and each.priority >= gang.priority]
        taken = set[str]().union(*(each.nodes for each in others))
        nodes = tuple(name for name in self._view.rules if name in records and name not in taken)
        return HoldRequest(waiting, held, nodes, self._view.deadlines.copy())

    def _estimate(self, hold: CapacityHold) -> float | None:
        records = self._view.cache.table.records
        there = {name: other_pods(records[name]) for name in hold.nodes if name in records}
        ends = [each.at for each in node_deadlines(there, self._view.deadlines)]
        known = [each for each in ends if each is not None and not isinf(each)]
        return max(known, default=None) if None not in ends else None


def _covers(hold: CapacityHold, waiting: QueuedGang) -> bool:
    """Whether as many devices are held as the gang asks for."""
    held = Counter[str]()
    for each in hold.reservation.spec.held:
        held[each.resource] += each.gpus
    return waiting.gang.asks <= held


def _preempted(holds: Iterable[CapacityHold]) -> Iterator[str]:
    """Those of which another, of a higher priority, holds a node. ``holds``: that first."""
    taken: dict[str, GangName] = {}
    for each in holds:
        if any(taken.get(node, each.gang) != each.gang for node in each.nodes):
            yield each.reservation.key
        else:
            taken |= dict.fromkeys(each.nodes, each.gang)
