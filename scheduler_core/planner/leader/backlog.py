"""Gangs that wait for a place: the queue, the last result of a plan, avoided nodes, and waiting times. No I/O.

The waiting time of each attempt is counted once, by its outcome.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import CreateReservation, reserved_gang, reserved_gangs
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.members import GangMembers
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.events import refused_events, unplaced_events
from scheduler_core.planner.leader.in_progress import InProgress
from scheduler_core.planner.leader.queue import GangQueue
from scheduler_core.planner.packing.model import RequestId, Unplaced
from scheduler_core.policy.limits import LimitReached
from scheduler_core.runtime.event_writer import EventDraft

AVOID_NODE_S = 300.0  # a node on which a member was not bound in time is avoided for this time
WITHDRAWN_NODE_S = 60.0  # and a node of a proposal that was withdrawn: longer than a pod counts as admitted or ended
WITHDRAWN = "a place was found, but other pods were admitted there or have just ended there: other nodes come first now"


class Wait(NamedTuple):
    """A gang that waited; its members may be gone by now."""

    gang: Gang
    seconds: float


class GangBacklog:
    """Waiting gangs in one term of leadership. For one thread."""

    def __init__(self, context: TermContext, members: GangMembers) -> None:
        self.queue = GangQueue(context.config.pace, lambda: context.policies().limits)
        self.unplaced: dict[GangName, Unplaced] = {}
        self._context, self._members = context, members
        self._avoided: dict[GangName, dict[str, float]] = {}  # gang -> node -> until, monotonic seconds
        self._released: set[GangName] = set()  # gangs with a counted release: pods are released one by one
        self._rolling_back: dict[str, Wait] = {}  # by UID of the reservation

    def update_gang(self, name: GangName, gang: Gang | None) -> None:
        """Apply the present state of a gang; None: it has no members any more."""
        if gang is None or not gang.placed:  # the released pods are gone
            self._released.discard(name)
        if gang is None:
            self.queue.remove_gang(name)
            self.unplaced.pop(name, None)
            return
        self.queue.update_gang(gang, self._context.clock.monotonic())
        if gang.phase is GangPhase.REFUSED:
            self._write_events(refused_events(gang))

    def limit_reached(self, name: GangName, in_progress: InProgress) -> LimitReached | None:
        """Return the limit because of which a queued gang is not planned; None: it is planned."""
        limits = self._context.policies().limits
        return self.queue.limit_reached(name) or in_progress.limit_reached(name.namespace, limits)

    def mark_unplaced(
        self, name: GangName, unplaced: Unplaced, state: Hashable, request_id: RequestId | None = None
    ) -> None:
        """Record that no place was found for a gang, on this state. ``request_id``: as in ``UnfitState``."""
        is_known = self.unplaced.get(name) == unplaced
        self.unplaced[name] = unplaced
        self.queue.mark_unplaced(name, state, request_id)
        if unplaced.missing and not is_known:
            self._write_unplaced_events(name, unplaced)

    def mark_withdrawn(self, name: GangName, nodes: AbstractSet[str], state: Hashable) -> None:
        """Record that a proposal was withdrawn: it is planned again later, on other nodes where possible."""
        now = self._context.clock.monotonic()
        self.unplaced[name] = Unplaced(WITHDRAWN)
        self.queue.mark_unplaced(name, state)
        self._forget_avoided(now)
        for node in nodes:
            self._avoid_node(name, node, now + WITHDRAWN_NODE_S)

    def mark_refused(self, action: CreateReservation, error: str) -> None:
        """Start a back-off for gangs whose reservation is refused: else each plan would fail, and block the queue."""
        if action.spec.held:
            return  # ``CapacityHolds`` has its own back-off
        unplaced = Unplaced(f"the API server refuses its reservation: {error}")
        for name in set(reserved_gangs(action.namespace, action.spec, self._members.get_member)):
            self.queue.mark_rolled_back(name, self._context.clock.monotonic(), unplaced.reason)
            self.unplaced[name] = unplaced
            self._write_unplaced_events(name, unplaced)

    def mark_rolled_back(self, reservation: ReservationUpdate, reason: str | None) -> None:
        """Start the back-off of gangs that are rolled back, and avoid the nodes on which members were not bound."""
        now = self._context.clock.monotonic()
        self._forget_avoided(now)
        for seat in reservation.spec.seats:
            member = self._members.get_member(seat.uid)
            name = reserved_gang(reservation) or (
                member.gang_request.gang if member is not None and member.node is None else None
            )
            if name is None:
                continue
            if seat.node is not None and member is not None and member.node is None:
                self._avoid_node(name, seat.node, now + AVOID_NODE_S)
            if not reservation.spec.gang:
                self.queue.mark_rolled_back(name, now, reason)
        if (name := reserved_gang(reservation)) is not None:
            self.queue.mark_rolled_back(name, now, reason)

    def _avoid_node(self, name: GangName, node: str, until: float) -> None:
        nodes = self._avoided.setdefault(name, {})
        nodes[node] = max(until, nodes.get(node, 0.0))

    def _forget_avoided(self, now: float) -> None:
        """Forget nodes that are avoided no more.

        Avoided nodes outlive all members of a gang: a rollback deletes them, and their controller recreates them.
        """
        self._avoided = {name: self._avoided[name] for name in self.avoiding_gangs(now)}

    def avoided_nodes(self, name: GangName, now: float) -> frozenset[str]:
        """Return the nodes that this gang avoids. ``now``: monotonic seconds."""
        return frozenset(node for node, end in self._avoided.get(name, {}).items() if end > now)

    def avoiding_gangs(self, now: float) -> AbstractSet[GangName]:
        """Return the gangs that avoid nodes. ``now``: monotonic seconds."""
        return {name for name, nodes in self._avoided.items() if max(nodes.values()) > now}

    def all_avoided_nodes(self, names: Iterable[GangName], now: float) -> Mapping[GangName, frozenset[str]]:
        """Return the nodes that these gangs avoid."""
        return {name: self.avoided_nodes(name, now) for name in names if name in self._avoided}

    def end_wait(self, outcome: str, name: GangName) -> None:
        """Count the waiting time of a gang. ``outcome``: bound, rolled back, released."""
        self._count_wait(outcome, self._wait_of(name))

    def mark_released(self, name: GangName) -> None:
        """Count the waiting time of a gang when its first pod is released."""
        if name not in self._released:
            self._released.add(name)
            self.end_wait("released", name)

    def mark_rolling_back(self, uid: str, name: GangName) -> None:
        """Keep the waiting time of a gang until its rollback ends: in ``mark_failed`` or ``mark_removed``."""
        wait = self._wait_of(name)
        if wait is not None:
            self._rolling_back[uid] = wait

    def mark_failed(self, uid: str, name: GangName) -> None:
        """Count the waiting time of a gang whose rollback failed."""
        self._count_wait("failed", self._rolling_back.pop(uid, None) or self._wait_of(name))

    def mark_removed(self, uid: str) -> None:
        """Count the waiting time of a gang that was rolled back: the ledger lists its reservation no more."""
        self._count_wait("rolled back", self._rolling_back.pop(uid, None))

    def _wait_of(self, name: GangName) -> Wait | None:
        """Return how long a gang has waited since its newest member was created; None: it has no members any more."""
        gang = self._members.get_gang(name)
        if gang is None or not gang.newest:
            return None
        return Wait(gang, max(0.0, self._context.clock.wall() - gang.newest))

    def _count_wait(self, outcome: str, wait: Wait | None) -> None:
        if wait is not None:
            self._context.executor.count_wait(outcome, wait.gang, wait.seconds)

    def _write_unplaced_events(self, name: GangName, unplaced: Unplaced) -> None:
        if (gang := self._members.get_gang(name)) is not None:
            self._write_events(unplaced_events(gang, unplaced))

    def _write_events(self, drafts: Iterable[EventDraft]) -> None:
        for draft in drafts:
            self._context.executor.write_event(draft)
