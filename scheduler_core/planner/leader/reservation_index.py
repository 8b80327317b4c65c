"""Reservations by what is asked of them again and again, so that it costs what is open and not what there is. No I/O.

Most of them are those of gangs that run: nothing is to be done about one of these before it, or one of its members, is
another. Tens of thousands may rest so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping

from gputopo.crd.reservations import Seat
from scheduler_core.cache.events import ReservationSeen
from scheduler_core.planner.commit.actions import gang_of
from scheduler_core.planner.commit.recovery import plans_of
from scheduler_core.planner.gang.member import GangName, Member


class Shelf:
    """For one thread, and one term of leadership."""

    def __init__(self, reservations: Mapping[str, ReservationSeen], member: Callable[[str], Member | None]) -> None:
        """``reservations``: all, by UID, as they are whenever something is asked; ``member``: one, by UID."""
        self._all, self._member = reservations, member
        self._of: dict[GangName, set[str]] = {}
        self._gangs: dict[str, GangName] = {}  # whose each is, by UID; single pods' are not in it
        self._plans: Counter[tuple[str, str]] = Counter()
        self._filed: dict[str, ReservationSeen] = {}
        self._awake: dict[str, None] = {}  # in the order in which they were woken
        self._resting: dict[GangName, set[str]] = {}  # by each gang of which a change wakes them
        self._wakers: dict[str, frozenset[GangName]] = {}  # the same by UID

    @property
    def awake(self) -> Collection[str]:
        """UIDs of those about which something may be to be done."""
        return self._awake.keys()

    @property
    def plans(self) -> Container[tuple[str, str]]:
        """``plans_of`` all of them."""
        return self._plans.keys()

    def seats(self, gangs: Iterable[GangName]) -> dict[str, Seat]:
        """Those that are, or were, kept for members of those gangs, by the pod's UID."""
        found = (self._all[uid] for name in gangs for uid in self._of.get(name, ()))
        return {seat.uid: seat for each in found for seat in each.spec.seats}

    def file(self, uids: Iterable[str]) -> None:
        """Those are others now, or gone."""
        for uid in uids:
            self._take_out(uid)
            each = self._all.get(uid)
            if each is None:
                continue
            self._awake[uid] = None
            if (name := gang_of(each)) is not None:
                self._gangs[uid] = name
                self._of.setdefault(name, set()).add(uid)
            self._filed[uid] = each
            self._plans.update(plans_of(each))

    def stir(self, names: Iterable[GangName]) -> None:
        """Members of those gangs are others now."""
        for name in names:
            self.wake(tuple(self._resting.get(name, ())))

    def wake(self, uids: Iterable[str]) -> None:
        """Something may be to be done about those."""
        for uid in uids:
            self._stop_resting(uid)
            self._awake[uid] = None

    def rest(self, uids: Iterable[str]) -> None:
        """Nothing is to be done about those for now."""
        for uid in uids:
            self._awake.pop(uid, None)
            members = map(self._member, (seat.uid for seat in self._all[uid].spec.seats))
            of_members = (each.wanted.gang for each in members if each is not None)  # they may be another's by now
            self._wakers[uid] = frozenset((self._gangs[uid], *of_members))
            for name in self._wakers[uid]:
                self._resting.setdefault(name, set()).add(uid)

    def _take_out(self, uid: str) -> None:
        name = self._gangs.pop(uid, None)
        if name is not None:
            self._of[name].discard(uid)
            if not self._of[name]:
                del self._of[name]
        self._stop_resting(uid)
        self._awake.pop(uid, None)
        for plan in plans_of(self._filed.pop(uid)) if uid in self._filed else ():
            self._plans[plan] -= 1
            if not self._plans[plan]:
                del self._plans[plan]

    def _stop_resting(self, uid: str) -> None:
        for name in self._wakers.pop(uid, ()):
            self._resting[name].discard(uid)
            if not self._resting[name]:
                del self._resting[name]
