"""Index of reservations, so that the cost of a round depends on open reservations and not on all. No I/O.

Most reservations belong to running gangs: the planner has nothing to do about such a reservation until it, or one of
its members, changes. Tens of thousands of them may be parked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping

from gputopo.crd.reservations import PlannedMember
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import reserved_gang
from scheduler_core.planner.commit.recovery import plan_keys
from scheduler_core.planner.gang.member import GangName, Member


class GangReservationIndex:
    """Reservations by gang, by plan, and active or parked. For one thread, and one term of leadership."""

    def __init__(
        self, reservations: Mapping[str, ReservationUpdate], get_member: Callable[[str], Member | None]
    ) -> None:
        """``reservations``: a live view of all reservations, by UID; ``get_member``: a member by UID."""
        self._reservations, self._get_member = reservations, get_member
        self._by_gang: dict[GangName, set[str]] = {}
        self._gangs: dict[str, GangName] = {}  # by UID of the reservation, without reservations of single pods
        self._plans: Counter[tuple[str, str]] = Counter()
        self._indexed: dict[str, ReservationUpdate] = {}
        self._active: dict[str, None] = {}  # ordered: as they became active
        self._parked: dict[GangName, set[str]] = {}  # by each gang of which a change activates the reservation
        self._gangs_of_parked: dict[str, frozenset[GangName]] = {}  # the inverse of ``_parked``

    @property
    def active(self) -> Collection[str]:
        """UIDs of the reservations that the next round must check."""
        return self._active.keys()

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
            self._remove(uid)
            each = self._reservations.get(uid)
            if each is None:
                continue
            self._active[uid] = None
            if (name := reserved_gang(each)) is not None:
                self._gangs[uid] = name
                self._by_gang.setdefault(name, set()).add(uid)
            self._indexed[uid] = each
            self._plans.update(plan_keys(each))

    def mark_gangs_dirty(self, names: Iterable[GangName]) -> None:
        """Activate the parked reservations of these gangs: their members changed."""
        for name in names:
            self.mark_dirty(tuple(self._parked.get(name, ())))

    def mark_dirty(self, uids: Iterable[str]) -> None:
        """Activate these reservations."""
        for uid in uids:
            self._unpark(uid)
            self._active[uid] = None

    def park(self, uids: Iterable[str]) -> None:
        """Deactivate these reservations until they, or gangs of their members, change."""
        for uid in uids:
            self._active.pop(uid, None)
            members = map(self._get_member, (seat.uid for seat in self._reservations[uid].spec.seats))
            # A member may have moved to another gang meanwhile.
            current = (each.gang_request.gang for each in members if each is not None)
            own = (self._gangs[uid],) if uid in self._gangs else ()  # none: for single pods
            self._gangs_of_parked[uid] = frozenset((*own, *current))
            for name in self._gangs_of_parked[uid]:
                self._parked.setdefault(name, set()).add(uid)

    def _remove(self, uid: str) -> None:
        name = self._gangs.pop(uid, None)
        if name is not None:
            self._by_gang[name].discard(uid)
            if not self._by_gang[name]:
                del self._by_gang[name]
        self._unpark(uid)
        self._active.pop(uid, None)
        for plan in plan_keys(self._indexed.pop(uid)) if uid in self._indexed else ():
            self._plans[plan] -= 1
            if not self._plans[plan]:
                del self._plans[plan]

    def _unpark(self, uid: str) -> None:
        for name in self._gangs_of_parked.pop(uid, ()):
            self._parked[name].discard(uid)
            if not self._parked[name]:
                del self._parked[name]
