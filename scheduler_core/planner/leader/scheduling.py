"""What is planned next, and on what: places for gangs and single pods, one plan at a time. No I/O.

Where to hold room is sought beside that, for one gang at a time: it may take longer than others shall wait.
"""

from __future__ import annotations

import secrets

from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.leader.backlog import GangBacklog
from scheduler_core.planner.leader.capacity_holds import CapacityHolds, HoldRequest
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.hold_search import HoldResult, HoldTask
from scheduler_core.planner.leader.in_progress import in_progress
from scheduler_core.planner.leader.plan_task import PlanResult, PlanTask, ReservationNames, options_of
from scheduler_core.planner.leader.queue import QueuedGang
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.packing.model import NodeView
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest

PLAN_S = 1.0  # for one plan
_AGAIN_UNPLACED_S = 0.5  # between two plans for those that did not fit
_BATCH = 256  # single pods in a reservation


class PlanScheduler:
    """For one thread, and one term of leadership."""

    def __init__(self, given: TermContext, view: PlannerView, backlog: GangBacklog) -> None:
        self.holds = CapacityHolds(view, backlog.queue)
        self._given, self._view, self._backlog = given, view, backlog
        self._is_planning = False
        self._is_searching_hold = False  # where to hold room
        self._not_before = 0.0  # monotonic: for those that did not fit
        self._tried: object = None

    def start_next_plan(self, now: float) -> None:
        """Have the next of the queue planned, unless something planned is still to be listed."""
        if self._view.observations.made:
            return
        if not self._is_searching_hold and (sought := self.holds.next_request(now)) is not None:
            self._is_searching_hold = True
            self._given.executor.start_hold_search(self._hold_task(sought, now))
        if not self._is_planning and (batches := self._batches(now)):
            if now < self._not_before and all(one.unfit_state is not None for each in batches for one in each):
                self._given.executor.schedule_round(self._not_before - now)
                return
            self._is_planning, self._tried = True, self._view.plan_state(now)
            self._given.executor.start_plan(self._task(batches, now))

    def apply_plan(self, found: PlanResult, now: float) -> None:
        """What came of a plan."""
        self._is_planning = False
        for name, why in found.unplaced.items():
            self._backlog.mark_unplaced(name, why, self._tried)
        for name in found.gangs:
            self._backlog.unplaced.pop(name, None)
        if not found.created:
            self._not_before = now + _AGAIN_UNPLACED_S

    def apply_hold_result(self, found: HoldResult, now: float) -> CreateReservation | None:
        """Where room is to be held."""
        self._is_searching_hold = False
        return self.holds.apply_result(found, now)

    def _batches(self, now: float) -> tuple[tuple[QueuedGang, ...], ...]:
        """Whose turn it is. Where it is nobody's, what the nodes look like need not be worked out."""
        queue, spoken = self._backlog.queue, in_progress(self._view)
        if not queue.has_queued(spoken.is_free):
            return ()
        apart = {each.gang for each in self.holds.open_holds()}
        found = tuple(queue.batches(now, self._view.plan_state(now), _BATCH, apart, spoken.is_free))
        if not found and (due := queue.next_due_at(now)) is not None:
            self._given.executor.schedule_round(max(0.0, due - now))
        return found

    def _hold_task(self, sought: HoldRequest, now: float) -> HoldTask:
        gang = sought.waiting.gang
        options = options_of(gang, self._view.reservation_index.seats((gang.name,)), self._given.config.levels)
        return HoldTask(
            gang,
            sought.held,
            self._node_view(),
            sought.nodes,
            sought.deadlines,
            options._replace(
                avoid=self._backlog.avoided_nodes(gang.name, now), placed_members=self._view.placed_members()
            ),
            self._new_names(),
            self._given.clock.wall(),
            self._given.policies().node_policy,
        )

    def _task(self, batches: tuple[tuple[QueuedGang, ...], ...], now: float) -> PlanTask:
        until = now + PLAN_S
        return PlanTask(
            batches,
            self._node_view(),
            self.holds.tables_without_holds(batches),
            self._view.reservation_index.seats(each.gang.name for batch in batches for each in batch),
            self._backlog.all_avoided_nodes(now),
            self._given.config.levels,
            self._new_names(),
            lambda: self._given.clock.monotonic() > until,
            self._view.placed_members(),
        )

    def _node_view(self) -> NodeView:
        policies = self._given.policies()

        def judged_by(request: PodRequest) -> Policy:
            return policies.profile_for(request).policy

        return NodeView(self._view.cache.table, self._view.rules, judged_by)

    def _new_names(self) -> ReservationNames:
        return ReservationNames(self._given.config.namespace, lambda: secrets.token_hex(3))
