"""Who waits for a place, why, and what they went through: the queue, last answers, nodes reached in vain. No I/O."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from scheduler_core.cache.events import ReservationSeen
from scheduler_core.planner.commit.actions import CreateReservation, gang_of, whose
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.members import Roster
from scheduler_core.planner.leader.context import Given
from scheduler_core.planner.leader.events import of_refused, of_unplaced
from scheduler_core.planner.leader.queue import Queue
from scheduler_core.planner.packing.model import Unplaced

AVOID_S = 300.0  # nodes to which a member was sent in vain


class Backlog:
    """For one thread, and one term of leadership."""

    def __init__(self, given: Given, roster: Roster) -> None:
        self.queue = Queue(given.settled.pace)
        self.unplaced: dict[GangName, Unplaced] = {}
        self._given, self._roster = given, roster
        self._avoid: dict[GangName, dict[str, float]] = {}  # gang -> node -> until, monotonic seconds

    def put(self, name: GangName, gang: Gang | None) -> None:
        """What has become of a gang; None: it has no member any more."""
        if gang is None:
            self.queue.forget(name)
            self.unplaced.pop(name, None)
            return
        self.queue.put(gang, self._given.clock.monotonic())
        if gang.phase is GangPhase.REFUSED:
            for tell in of_refused(gang):
                self._given.hands.tell(tell)

    def unfit(self, name: GangName, why: Unplaced, state: Hashable) -> None:
        """It was planned in vain, on that."""
        self.unplaced[name] = why
        self.queue.unplaced(name, state)
        self._tell(name, why)

    def overtaken(self, name: GangName, state: Hashable) -> None:
        """A plan that was given up is not made again at once."""
        self.unplaced[name] = Unplaced("there was a place, and others were faster")
        self.queue.unplaced(name, state)

    def set_back(self, what: CreateReservation, error: str) -> None:
        """Its next plan would be refused like this one, and whoever is behind it would wait for ever."""
        if what.spec.held:
            return  # ``Holds`` waits by itself
        why = Unplaced(f"the API server does not take its reservation: {error}")
        for name in set(whose(what.namespace, what.spec, self._roster.member)):
            self.queue.rolled_back(name, self._given.clock.monotonic(), why.reason)
            self.unplaced[name] = why
            self._tell(name, why)

    def taken_back(self, reservation: ReservationSeen, trouble: str | None) -> None:
        """Its gang waits, and does without the nodes that nobody reached. ``trouble``: why, for people."""
        now = self._given.clock.monotonic()
        # Kept while its gang has no member at all: a rollback deletes them, and they come again.
        self._avoid = {name: nodes for name, nodes in self._avoid.items() if max(nodes.values()) > now}
        for seat in reservation.spec.seats:
            member = self._roster.member(seat.uid)
            name = gang_of(reservation) or (member.wanted.gang if member is not None and member.node is None else None)
            if name is None:
                continue
            if seat.node is not None and member is not None and member.node is None:
                self._avoid.setdefault(name, {})[seat.node] = now + AVOID_S
            if not reservation.spec.gang:
                self.queue.rolled_back(name, now, trouble)
        if (name := gang_of(reservation)) is not None:
            self.queue.rolled_back(name, now, trouble)

    def avoided(self, name: GangName, now: float) -> frozenset[str]:
        """Nodes that it reached in vain. ``now``: monotonic seconds."""
        return frozenset(node for node, end in self._avoid.get(name, {}).items() if end > now)

    def all_avoided(self, now: float) -> Mapping[GangName, frozenset[str]]:
        """The same of all gangs that do without some."""
        return {name: self.avoided(name, now) for name in self._avoid}

    def _tell(self, name: GangName, why: Unplaced) -> None:
        if (gang := self._roster.gang(name)) is not None:
            for tell in of_unplaced(gang, why):
                self._given.hands.tell(tell)
