"""Who waits for a place, why, and what they went through: the queue, last answers, nodes reached in vain. No I/O."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import CreateReservation, reserved_gang, reserved_gangs
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.members import GangMembers
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.events import refused_events, unplaced_events
from scheduler_core.planner.leader.queue import GangQueue
from scheduler_core.planner.packing.model import Unplaced

AVOID_NODE_S = 300.0  # nodes to which a member was sent in vain


class GangBacklog:
    """For one thread, and one term of leadership."""

    def __init__(self, given: TermContext, roster: GangMembers) -> None:
        self.queue = GangQueue(given.config.pace)
        self.unplaced: dict[GangName, Unplaced] = {}
        self._given, self._roster = given, roster
        self._avoid: dict[GangName, dict[str, float]] = {}  # gang -> node -> until, monotonic seconds

    def update_gang(self, name: GangName, gang: Gang | None) -> None:
        """What has become of a gang; None: it has no member any more."""
        if gang is None:
            self.queue.remove_gang(name)
            self.unplaced.pop(name, None)
            return
        self.queue.update_gang(gang, self._given.clock.monotonic())
        if gang.phase is GangPhase.REFUSED:
            for tell in refused_events(gang):
                self._given.executor.write_event(tell)

    def mark_unplaced(self, name: GangName, why: Unplaced, state: Hashable) -> None:
        """It was planned in vain, on that."""
        self.unplaced[name] = why
        self.queue.mark_unplaced(name, state)
        self._write_unplaced_events(name, why)

    def mark_overtaken(self, name: GangName, state: Hashable) -> None:
        """A plan that was given up is not made again at once."""
        self.unplaced[name] = Unplaced("there was a place, and others were faster")
        self.queue.mark_unplaced(name, state)

    def mark_refused(self, what: CreateReservation, error: str) -> None:
        """Its next plan would be refused like this one, and whoever is behind it would wait for ever."""
        if what.spec.held:
            return  # ``Holds`` waits by itself
        why = Unplaced(f"the API server does not take its reservation: {error}")
        for name in set(reserved_gangs(what.namespace, what.spec, self._roster.get_member)):
            self.queue.mark_rolled_back(name, self._given.clock.monotonic(), why.reason)
            self.unplaced[name] = why
            self._write_unplaced_events(name, why)

    def mark_rolled_back(self, reservation: ReservationUpdate, trouble: str | None) -> None:
        """Its gang waits, and does without the nodes that nobody reached. ``trouble``: why, for people."""
        now = self._given.clock.monotonic()
        # Kept while its gang has no member at all: a rollback deletes them, and they come again.
        self._avoid = {name: nodes for name, nodes in self._avoid.items() if max(nodes.values()) > now}
        for seat in reservation.spec.seats:
            member = self._roster.get_member(seat.uid)
            name = reserved_gang(reservation) or (
                member.gang_request.gang if member is not None and member.node is None else None
            )
            if name is None:
                continue
            if seat.node is not None and member is not None and member.node is None:
                self._avoid.setdefault(name, {})[seat.node] = now + AVOID_NODE_S
            if not reservation.spec.gang:
                self.queue.mark_rolled_back(name, now, trouble)
        if (name := reserved_gang(reservation)) is not None:
            self.queue.mark_rolled_back(name, now, trouble)

    def avoided_nodes(self, name: GangName, now: float) -> frozenset[str]:
        """Nodes that it reached in vain. ``now``: monotonic seconds."""
        return frozenset(node for node, end in self._avoid.get(name, {}).items() if end > now)

    def all_avoided_nodes(self, now: float) -> Mapping[GangName, frozenset[str]]:
        """The same of all gangs that do without some."""
        return {name: self.avoided_nodes(name, now) for name in self._avoid}

    def _write_unplaced_events(self, name: GangName, why: Unplaced) -> None:
        if (gang := self._roster.get_gang(name)) is not None:
            for tell in unplaced_events(gang, why):
                self._given.executor.write_event(tell)
