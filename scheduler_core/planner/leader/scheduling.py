"""What is planned next, and on what: places for gangs and single pods, one plan at a time. No I/O.

Where to hold room is sought beside that, for one gang at a time: it may take longer than others shall wait.
"""

from __future__ import annotations

import secrets

from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.leader.backlog import Backlog
from scheduler_core.planner.leader.capacity_holds import Holds, Sought
from scheduler_core.planner.leader.context import Given
from scheduler_core.planner.leader.hold_search import Held, HoldTask
from scheduler_core.planner.leader.in_progress import spoken_for
from scheduler_core.planner.leader.plan_task import Names, Placing, Task, options_of
from scheduler_core.planner.leader.queue import Waiting
from scheduler_core.planner.leader.view import View
from scheduler_core.planner.packing.model import NodeView
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest

PLAN_S = 1.0  # for one plan
_AGAIN_UNPLACED_S = 0.5  # between two plans for those that did not fit
_BATCH = 256  # single pods in a reservation


class Planning:
    """For one thread, and one term of leadership."""

    def __init__(self, given: Given, view: View, backlog: Backlog) -> None:
        self.holds = Holds(view, backlog.queue)
        self._given, self._view, self._backlog = given, view, backlog
        self._under_way = False
        self._seeking = False  # where to hold room
        self._not_before = 0.0  # monotonic: for those that did not fit
        self._tried: object = None

    def begin(self, now: float) -> None:
        """Have the next of the queue planned, unless something planned is still to be listed."""
        if self._view.memory.made:
            return
        if not self._seeking and (sought := self.holds.sought(now)) is not None:
            self._seeking = True
            self._given.hands.hold(self._hold_task(sought, now))
        if not self._under_way and (batches := self._batches(now)):
            if now < self._not_before and all(one.misfit is not None for each in batches for one in each):
                self._given.hands.wake(self._not_before - now)
                return
            self._under_way, self._tried = True, self._view.state(now)
            self._given.hands.plan(self._task(batches, now))

    def planned(self, found: Placing, now: float) -> None:
        """What came of a plan."""
        self._under_way = False
        for name, why in found.unplaced.items():
            self._backlog.unfit(name, why, self._tried)
        for name in found.gangs:
            self._backlog.unplaced.pop(name, None)
        if not found.created:
            self._not_before = now + _AGAIN_UNPLACED_S

    def found_room(self, found: Held, now: float) -> CreateReservation | None:
        """Where room is to be held."""
        self._seeking = False
        return self.holds.found(found, now)

    def _batches(self, now: float) -> tuple[tuple[Waiting, ...], ...]:
        """Whose turn it is. Where it is nobody's, what the nodes look like need not be worked out."""
        queue, spoken = self._backlog.queue, spoken_for(self._view)
        if not queue.has(spoken.is_free):
            return ()
        apart = {each.gang for each in self.holds.open()}
        found = tuple(queue.batches(now, self._view.state(now), _BATCH, apart, spoken.is_free))
        if not found and (due := queue.next_due(now)) is not None:
            self._given.hands.wake(max(0.0, due - now))
        return found

    def _hold_task(self, sought: Sought, now: float) -> HoldTask:
        gang = sought.waiting.gang
        options = options_of(gang, self._view.shelf.seats((gang.name,)), self._given.settled.levels)
        return HoldTask(
            gang,
            sought.held,
            self._node_view(),
            sought.nodes,
            sought.ends,
            options._replace(avoid=self._backlog.avoided(gang.name, now), there=self._view.there()),
            self._new_names(),
            self._given.clock.wall(),
            self._given.policies().common,
        )

    def _task(self, batches: tuple[tuple[Waiting, ...], ...], now: float) -> Task:
        until = now + PLAN_S
        return Task(
            batches,
            self._node_view(),
            self.holds.tables(batches),
            self._view.shelf.seats(each.gang.name for batch in batches for each in batch),
            self._backlog.all_avoided(now),
            self._given.settled.levels,
            self._new_names(),
            lambda: self._given.clock.monotonic() > until,
            self._view.there(),
        )

    def _node_view(self) -> NodeView:
        policies = self._given.policies()

        def judged_by(request: PodRequest) -> Policy:
            return policies.placement(request).policy

        return NodeView(self._view.knowledge.table, self._view.rules, judged_by)

    def _new_names(self) -> Names:
        return Names(self._given.settled.namespace, lambda: secrets.token_hex(3))
