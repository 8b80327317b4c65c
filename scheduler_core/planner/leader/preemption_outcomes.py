"""Outcomes of preemptions that have begun: whether their gangs were bound. No I/O.

A preemption ends when the ledger no longer lists its hold. While the ledger lists another hold, a proposal or places of
the gang, the outcome is open. Once it lists none, all members with places are bound, or their plan was rolled back: the
preemption is won if they are bound, else the pods were evicted in vain. If no pod was evicted, the preemption was
stopped.

If members were deleted, changed or ungated by others before the gang was bound or rolled back, or further members or
its declared size prevent its plan, its owner gave it up: the other gangs of its namespace wait too. Else a tenant could
have pods of others evicted again and again, for gangs of new names that it deletes, or changes so that they fit
nowhere. Later than ``GIVE_UP_S`` this is not counted: then pods that end late have delayed the gang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from gputopo.crd.reservations import EntryPhase, LedgerEntry, PlannedEviction, Preemption, ReservationState
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import EvictPod, reserved_gang, reserved_gangs
from scheduler_core.planner.commit.members import is_bound, is_gated
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.events import stopped_events
from scheduler_core.planner.leader.eviction_history import EvictionHistory, gang_key
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.leader.won_capacity import WonCapacity

GIVE_UP_S = 60.0  # pods end within 30 s by default, and the gang has its places then


class _BegunPreemption(NamedTuple):
    """A hold with a preemption of which a unit has begun."""

    reservation: ReservationUpdate
    intent: Preemption
    gang: GangName
    gang_key: str
    at: float  # when it was first observed, monotonic seconds
    whole_gang: Gang | None  # as it was then; None: it was gone
    members: tuple[Member, ...]  # that the planner had to place then, as they were last observed
    places: frozenset[str] = frozenset()  # UIDs of the committed reservations of the gang since the hold has ended
    is_given_up: bool = False  # its owner gave it up before it was bound or rolled back
    is_refused: bool = False  # the API server refused an eviction: that the gang does not start is not its fault


class PreemptionOutcomes:
    """Outcomes in one term of leadership. For one thread."""

    def __init__(self, view: PlannerView, history: EvictionHistory, context: TermContext) -> None:
        self._view, self._history, self._context = view, history, context
        self._begun: dict[str, _BegunPreemption] = {}  # by UID of the hold, while the ledger lists it
        self._open: list[_BegunPreemption] = []  # the hold is no longer listed, and the outcome is open
        self._won = WonCapacity(view)
        # Namespaces of gangs that were given up, and whose preemptions are not counted yet; read for each waiting gang.
        self.abandoned_namespaces: frozenset[str] = frozenset()

    def observe_ledger(self, now: float) -> None:
        """Count the preemptions that have ended since the last call. Called after each change of the ledger."""
        entries = self._view.entries()
        before, self._begun = self._begun, {}
        for uid, entry in entries.items():
            if entry.phase is not EntryPhase.HELD:
                continue
            if (found := self._begun_preemption(uid, before.get(uid), now)) is not None:
                self._begun[uid] = found
        for uid, each in before.items():
            if uid not in entries:
                self._end(each)
        if self._open:
            self._decide(entries, now)
        given_up = (each for each in (*self._begun.values(), *self._open) if each.is_given_up)
        self.abandoned_namespaces = frozenset(each.gang.namespace for each in given_up if not self._is_refused(each))
        if (used := self._won.use_since_last(now)) is not None:
            self._context.executor.count_won_capacity(used.gpu_hours, used.cost)

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

    def _begun_preemption(self, uid: str, before: _BegunPreemption | None, now: float) -> _BegunPreemption | None:
        reservation = self._view.reservations[uid]
        intent, name = reservation.spec.preemption, reserved_gang(reservation)
        if intent is None or name is None or not reservation.status.evicting:
            return None
        if before is not None:  # its gang may be gone by now
            changed = before._replace(reservation=reservation, is_refused=self._is_refused(before))
            return self._with_changes(changed, now)
        gang = self._view.gang_members.get_gang(name)
        if gang is None:
            return _BegunPreemption(reservation, intent, name, name.title, now, None, (), is_given_up=True)
        found = map(self._view.gang_members.get_member, (each.uid for each in gang.ready))
        members = tuple(each for each in found if each is not None)
        return _BegunPreemption(reservation, intent, name, gang_key(gang), now, gang, members)

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
            changed = self._with_changes(changed, now)
            is_listed = each.gang in listed
            has_bound_members = any(self._is_bound(uid, each.gang, is_listed=is_listed) for uid in changed.places)
            if has_bound_members and (not changed.is_given_up or self._has_started(each.gang)):
                self._context.executor.count_preemption("won", each.intent)
                self._history.mark_won(each.gang_key)
                self._won.add_gang(each.gang, now)
            elif is_listed:
                self._open.append(changed)
            else:
                self._count_in_vain(changed, now)

    def _has_started(self, gang: GangName) -> bool:
        """Return True if the gang has its minimum: of one that was given up, other members may be bound."""
        found = self._view.gang_members.get_gang(gang)
        if found is None or found.required_members is None:
            return False
        return sum(each.node is not None for each in found.placed) + len(found.succeeded) >= found.required_members

    def _count_in_vain(self, ended: _BegunPreemption, now: float) -> None:
        self._context.executor.count_preemption("in-vain", ended.intent)
        self._history.mark_failed(ended.gang_key, now)
        if ended.is_given_up and not ended.is_refused:
            self._history.mark_given_up(ended.gang.namespace, now)

    def _with_changes(self, begun: _BegunPreemption, now: float) -> _BegunPreemption:
        """Return the preemption with its members as they are now, or given up."""
        if begun.is_given_up or now - begun.at > GIVE_UP_S:
            return begun._replace(whole_gang=None, members=())
        plans = [self._view.reservations.get(uid) for uid in begun.places]
        if any(plan is None or plan.status.state is not ReservationState.COMMITTED for plan in plans):
            return begun  # bound, or rolled back: the planner itself deletes members
        found = [self._view.gang_members.get_member(each.uid) for each in begun.members]
        pairs = list(zip(begun.members, found, strict=True))
        is_given_up = any(_is_changed(before, after) for before, after in pairs)
        if not is_given_up and not plans and begun.whole_gang is not None:  # the planner has removed no gate yet
            is_given_up = any(is_gated(before) and after is not None and not is_gated(after) for before, after in pairs)
            is_given_up |= _prevents_plan(begun.whole_gang, self._view.gang_members.get_gang(begun.gang))
        # The next round compares with these: each change of a member is compared once.
        members = tuple(each for each in found if each is not None)
        return begun._replace(members=members, is_given_up=is_given_up)

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


def _is_changed(before: Member, now: Member | None) -> bool:
    """Return True if the owner of the member deleted it, or changed it so that it may not be placed as planned."""
    if now is before:
        return False
    if now is None or now.is_terminating:
        return True
    if now.node is not None:  # its place is certain; the API server adds labels of the node when it binds a pod
        return False
    fields = ["request", "labels", "load", "priority", "gang_request"]
    if is_gated(now):  # the planner pins a member to its node when it removes the gate
        fields += ["rules", "terms", "anti_affinity", "claims", "blocked"]
    return any(getattr(before, name) != getattr(now, name) for name in fields)


def _prevents_plan(before: Gang, now: Gang | None) -> bool:
    """Return True if the owner of a gang prevents its plan without a change of its members.

    Further members can do this, and the object that declares the size.
    """
    if now is None or now.phase is GangPhase.REFUSED:
        return True
    is_unknown = now.required_members is None and before.required_members is not None
    is_larger = (now.required_members or 0) > (before.required_members or 0)
    fields = ("required", "priority", "unplanned")
    return is_unknown or is_larger or any(getattr(before, name) != getattr(now, name) for name in fields)
