"""Index of reservations, so that the cost of a round depends on open reservations and not on all. No I/O.

Most reservations belong to running gangs: the planner has nothing to do about such a reservation until it, or one of
its members, changes. Tens of thousands of them may be parked. So are the plans whose members are ungated, while they
wait for kube-scheduler: each second they are checked all the same, because they have a timeout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping

from gputopo.crd.reservations import PlannedMember
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import reserved_gang
from scheduler_core.planner.commit.recovery import plan_keys
from scheduler_core.planner.gang.member import GangName


class GangReservationIndex:
    """Reservations by gang, by pod, by plan, and active or parked. For one thread, and one term of leadership."""

    def __init__(self, reservations: Mapping[str, ReservationUpdate]) -> None:
        """``reservations``: a live view of all reservations, by UID."""
        self._reservations = reservations
        self._by_gang: dict[GangName, set[str]] = {}
        self._by_pod: dict[str, tuple[str, ...]] = {}  # UIDs of the reservations with a seat for a pod: mostly one
        self._holds: set[str] = set()  # UIDs of capacity holds
        self._plans: Counter[tuple[str, str]] = Counter()
        self._indexed: dict[str, ReservationUpdate] = {}
        self._active: dict[str, None] = {}  # ordered: as they became active

    @property
    def active(self) -> Collection[str]:
        """UIDs of the reservations that the next round must check."""
        return self._active.keys()

    @property
    def holds(self) -> Collection[str]:
        """UIDs of all capacity holds."""
        return self._holds

    @property
    def plans(self) -> Container[tuple[str, str]]:
        """``plan_keys`` of all reservations."""
        return self._plans.keys()

    def seats(self, gangs: Iterable[GangName]) -> dict[str, PlannedMember]:
        """Return the present and former places of members of these gangs, by pod UID."""
        found = (self._reservations[uid] for name in gangs for uid in self._by_gang.get(name, ()))
        return {seat.uid: seat for each in found for seat in each.spec.seats}

    def update_reservations(self, uids: Iterable[str]) -> None:
        """Index these reservations again: they changed, or were removed."""
        for uid in uids:
            self._active.pop(uid, None)
            each, indexed = self._reservations.get(uid), self._indexed.get(uid)
            if indexed is not None and (each is None or each.spec != indexed.spec):
                self._remove(indexed)
                indexed = None
            if each is not None:
                self._active[uid] = None
                if indexed is None:
                    self._add(each)

    def mark_gangs_dirty(self, names: Iterable[GangName]) -> None:
        """Activate the reservations of these gangs: their members or sizes changed."""
        for name in names:
            self.mark_dirty(self._by_gang.get(name, ()))

    def mark_pods_dirty(self, uids: Iterable[str]) -> None:
        """Activate the reservations of these pods: they changed, or a write of them was answered."""
        for uid in uids:
            self.mark_dirty(self._by_pod.get(uid, ()))

    def mark_dirty(self, uids: Iterable[str]) -> None:
        """Activate these reservations."""
        self._active |= dict.fromkeys(uids)

    def park(self, uids: Iterable[str]) -> None:
        """Deactivate these reservations until they, their gangs or their pods change."""
        for uid in uids:
            self._active.pop(uid, None)

    def _add(self, reservation: ReservationUpdate) -> None:
        uid = reservation.key
        self._indexed[uid] = reservation
        self._plans.update(plan_keys(reservation))
        if reservation.spec.held:
            self._holds.add(uid)
        if (name := reserved_gang(reservation)) is not None:
            self._by_gang.setdefault(name, set()).add(uid)
        for seat in reservation.spec.seats:
            self._by_pod[seat.uid] = (*self._by_pod.get(seat.uid, ()), uid)

    def _remove(self, reservation: ReservationUpdate) -> None:
        uid = reservation.key
        del self._indexed[uid]
        self._holds.discard(uid)
        for plan in plan_keys(reservation):
            self._plans[plan] -= 1
            if not self._plans[plan]:
                del self._plans[plan]
        if (name := reserved_gang(reservation)) is not None:
            self._by_gang[name].discard(uid)
            if not self._by_gang[name]:
                del self._by_gang[name]
        for seat in reservation.spec.seats:
            left = tuple(each for each in self._by_pod.pop(seat.uid, ()) if each != uid)
            if left:
                self._by_pod[seat.uid] = left
