"""Outcomes of preemptions that have begun: whether their gangs were bound. No I/O.

A preemption ends when the ledger no longer lists its hold. While the ledger lists another hold, a proposal or places of
the gang, the outcome is open. Once it lists none, all members with places are bound, or their plan was rolled back: the
preemption is won if they are bound, else the pods were evicted in vain. If no pod was evicted, the preemption was
stopped.

If the gang was deleted, and not rolled back, the other gangs of its namespace wait too: else a tenant could have pods
of others evicted again and again, for gangs of new names that it deletes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from gputopo.crd.reservations import EntryPhase, LedgerEntry, PlannedEviction, Preemption, ReservationState
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import EvictPod, reserved_gang, reserved_gangs
from scheduler_core.planner.commit.ledger import active_entries
from scheduler_core.planner.commit.members import is_bound
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.events import stopped_events
from scheduler_core.planner.leader.eviction_history import EvictionHistory, gang_key
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.leader.won_capacity import WonCapacity


class _BegunPreemption(NamedTuple):
    """A hold with a preemption of which a unit has begun."""

    reservation: ReservationUpdate
    intent: Preemption
    gang: GangName
    gang_key: str
    places: frozenset[str] = frozenset()  # UIDs of the committed reservations of the gang since the hold has ended
    is_deleted: bool = False  # its members with places were deleted before these were rolled back
    is_refused: bool = False  # the API server refused an eviction: that the gang does not start is not its fault


class PreemptionOutcomes:
    """Outcomes in one term of leadership. For one thread."""

    def __init__(self, view: PlannerView, history: EvictionHistory, context: TermContext) -> None:
        self._view, self._history, self._context = view, history, context
        self._begun: dict[str, _BegunPreemption] = {}  # by UID of the hold, while the ledger lists it
        self._open: list[_BegunPreemption] = []  # the hold is no longer listed, and the outcome is open
        self._won = WonCapacity(view)

    def observe_ledger(self, now: float) -> None:
        """Count the preemptions that have ended since the last call. Called after each change of the ledger."""
        ledger = self._view.ledger
        entries = {} if ledger is None else active_entries(ledger.spec, self._view.reservations)
        before, self._begun = self._begun, {}
        for uid, entry in entries.items():
            if entry.phase is EntryPhase.HELD and (found := self._begun_preemption(uid, before.get(uid))) is not None:
                self._begun[uid] = found
        for uid, each in before.items():
            if uid not in entries:
                self._end(each)
        if self._open:
            self._decide(entries, now)
        if (used := self._won.use_since_last(now)) is not None:
            self._context.executor.count_won_capacity(used.gpu_hours, used.cost)

    def abandoned_namespaces(self) -> frozenset[str]:
        """Return the namespaces of gangs that were deleted, and whose preemptions are not counted yet."""
        gangs, found = self._view.gang_members, (*self._begun.values(), *self._open)
        deleted = (each for each in found if each.is_deleted or gangs.get_gang(each.gang) is None)
        return frozenset(each.gang.namespace for each in deleted if not self._is_refused(each))

    def _end(self, ended: _BegunPreemption) -> None:
        """Report the pods that are not evicted, of units of which other pods were."""
        left, evictions = [each for each in ended.intent.evictions if self._is_left(each)], ended.intent.evictions
        if len(left) == len(evictions):  # killed before the first eviction, and the gang is gone
            self._context.executor.count_preemption("stopped", ended.intent)
            return
        self._open.append(ended._replace(is_refused=self._is_refused(ended)))
        sizes, found = Counter(each.unit for each in evictions), Counter(each.unit for each in left)
        partly = [each for each in left if found[each.unit] < sizes[each.unit]]
        for draft in stopped_events(ended.reservation, partly) if partly else ():
            self._context.executor.write_event(draft)

    def _is_left(self, eviction: PlannedEviction) -> bool:
        """Return True if the pod exists and is not evicted."""
        uid, view = eviction.uid, self._view
        exists = uid in view.cache.pods if eviction.gpus else view.disruptions.pod(uid) is not None
        return exists and view.gone_by(uid) is None and not self._history.has_evicted(uid)

    def _is_refused(self, begun: _BegunPreemption) -> bool:
        refused = self._view.observations.refused_writes
        return begun.is_refused or any((EvictPod, each.uid) in refused for each in begun.intent.evictions)

    def _begun_preemption(self, uid: str, before: _BegunPreemption | None) -> _BegunPreemption | None:
        reservation = self._view.reservations[uid]
        intent, name = reservation.spec.preemption, reserved_gang(reservation)
        if intent is None or name is None or not reservation.status.evicting:
            return None
        if before is not None:  # its gang may be gone by now
            return before._replace(reservation=reservation, is_refused=self._is_refused(before))
        gang = self._view.gang_members.get_gang(name)
        key = name.title if gang is None else gang_key(gang)
        return _BegunPreemption(reservation, intent, name, key)

    def _decide(self, entries: Mapping[str, LedgerEntry], now: float) -> None:
        places: dict[GangName, set[str]] = {}
        listed: set[GangName] = set()
        for uid, entry in entries.items():
            found = self._view.reservations[uid]
            gangs = tuple(reserved_gangs(found.namespace, found.spec, self._view.gang_members.get_member))
            listed.update(gangs)
            if entry.phase is EntryPhase.COMMITTED:
                for name in gangs:
                    places.setdefault(name, set()).add(uid)
        before, self._open = self._open, []
        for each in before:
            changed = each._replace(places=each.places.union(places.get(each.gang, ())))
            changed = changed._replace(is_deleted=each.is_deleted or self._was_deleted(changed))
            is_listed = each.gang in listed
            if any(self._is_bound(uid, each.gang, is_listed=is_listed) for uid in changed.places):
                self._context.executor.count_preemption("won", each.intent)
                self._history.mark_won(each.gang_key)
                self._won.add_gang(each.gang, now)
            elif is_listed:
                self._open.append(changed)
            else:
                self._count_in_vain(changed, now)

    def _count_in_vain(self, ended: _BegunPreemption, now: float) -> None:
        self._context.executor.count_preemption("in-vain", ended.intent)
        self._history.mark_failed(ended.gang_key, now)
        is_gone = not ended.places and self._view.gang_members.get_gang(ended.gang) is None
        if (is_gone or ended.is_deleted) and not ended.is_refused:
            self._history.mark_given_up(ended.gang.namespace, now)

    def _was_deleted(self, each: _BegunPreemption) -> bool:
        """Return True if members with places are gone, and their plan is not rolled back yet."""
        found = (self._view.reservations.get(uid) for uid in each.places)
        open_ = [plan for plan in found if plan is not None and plan.status.state is ReservationState.COMMITTED]
        if any(not plan.spec.gang for plan in open_) and self._view.gang_members.get_gang(each.gang) is None:
            return True
        seats = (seat for plan in open_ if plan.spec.gang for seat in plan.spec.seats)
        members = (self._view.gang_members.get_member(seat.uid) for seat in seats)
        return any(member is None or member.is_terminating for member in members)

    def _is_bound(self, uid: str, gang: GangName, *, is_listed: bool) -> bool:
        """Return True if the members of a gang in a reservation are bound; they may have ended since."""
        reservation = self._view.reservations.get(uid)
        if reservation is None or reservation.status.state is ReservationState.FAILED:
            return False
        if reservation.status.state is ReservationState.BOUND:
            return True
        if is_listed and reservation.spec.gang:  # other members are not bound
            return False
        members = map(self._view.gang_members.get_member, (seat.uid for seat in reservation.spec.seats))
        left = [each for each in members if each is not None and each.gang_request.gang == gang]
        return any(is_bound(each) and not each.is_terminating for each in left)
