"""Reservations by what is asked of them again and again, so that it costs what is open and not what there is. No I/O.

Most of them are those of gangs that run: nothing is to be done about one of these before it, or one of its members, is
another. Tens of thousands may rest so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping

from gputopo.crd.reservations import Seat
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import reserved_gang
from scheduler_core.planner.commit.recovery import plan_keys
from scheduler_core.planner.gang.member import GangName, Member


class GangReservationIndex:
    """For one thread, and one term of leadership."""

    def __init__(self, reservations: Mapping[str, ReservationUpdate], member: Callable[[str], Member | None]) -> None:
        """``reservations``: all, by UID, as they are whenever something is asked; ``member``: one, by UID."""
        self._all, self._member = reservations, member
        self._by_gang: dict[GangName, set[str]] = {}
        self._gangs: dict[str, GangName] = {}  # whose each is, by UID; single pods' are not in it
        self._plans: Counter[tuple[str, str]] = Counter()
        self._indexed: dict[str, ReservationUpdate] = {}
        self._active: dict[str, None] = {}  # in the order in which they were woken
        self._parked: dict[GangName, set[str]] = {}  # by each gang of which a change wakes them
        self._gangs_of_parked: dict[str, frozenset[GangName]] = {}  # the same by UID

    @property
    def active(self) -> Collection[str]:
        """UIDs of those about which something may be to be done."""
        return self._active.keys()

    @property
    def plans(self) -> Container[tuple[str, str]]:
        """``plans_of`` all of them."""
        return self._plans.keys()

    def seats(self, gangs: Iterable[GangName]) -> dict[str, Seat]:
        """Those that are, or were, kept for members of those gangs, by the pod's UID."""
        found = (self._all[uid] for name in gangs for uid in self._by_gang.get(name, ()))
        return {seat.uid: seat for each in found for seat in each.spec.seats}

    def update_reservations(self, uids: Iterable[str]) -> None:
        """Those are others now, or gone."""
        for uid in uids:
            self._remove(uid)
            each = self._all.get(uid)
            if each is None:
                continue
            self._active[uid] = None
            if (name := reserved_gang(each)) is not None:
                self._gangs[uid] = name
                self._by_gang.setdefault(name, set()).add(uid)
            self._indexed[uid] = each
            self._plans.update(plan_keys(each))

    def mark_gangs_dirty(self, names: Iterable[GangName]) -> None:
        """Members of those gangs are others now."""
        for name in names:
            self.mark_dirty(tuple(self._parked.get(name, ())))

    def mark_dirty(self, uids: Iterable[str]) -> None:
        """Something may be to be done about those."""
        for uid in uids:
            self._unpark(uid)
            self._active[uid] = None

    def park(self, uids: Iterable[str]) -> None:
        """Nothing is to be done about those for now."""
        for uid in uids:
            self._active.pop(uid, None)
            members = map(self._member, (seat.uid for seat in self._all[uid].spec.seats))
            of_members = (
                each.gang_request.gang for each in members if each is not None
            )  # they may be another's by now
            self._gangs_of_parked[uid] = frozenset((self._gangs[uid], *of_members))
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
