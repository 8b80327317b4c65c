"""An executor that does nothing. Tests override what they check."""

from __future__ import annotations

from gputopo.crd.reservations import Preemption
from scheduler_core.planner.commit.actions import Action
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.hold_search import HoldTask
from scheduler_core.planner.leader.plan_task import PlanTask
from scheduler_core.planner.leader.preemption_search import PreemptionSearch
from scheduler_core.planner.leader.writer import WriteAnswer
from scheduler_core.planner.preemption.model import PreemptionPlan
from scheduler_core.runtime.event_writer import EventDraft


class IdleExecutor:
    """An ``Executor`` that does nothing."""

    def execute_action(self, action: Action) -> None:
        """Not written."""

    def lease_renewed_at(self) -> float:
        """Return that the Lease was never renewed."""
        return float("-inf")

    def start_plan(self, task: PlanTask) -> None:
        """Not computed."""

    def start_hold_search(self, task: HoldTask) -> None:
        """Not computed."""

    def start_preemption_search(self, search: PreemptionSearch) -> None:
        """Not computed."""

    def report_preemption(self, outcome: str, plan: PreemptionPlan) -> None:
        """Not counted."""

    def count_dry_run(self, gpu_hours: float, cost: float | None) -> None:
        """Not counted."""

    def report_no_preemption(self, gang: GangName, reason: str) -> None:
        """Not counted."""

    def count_preemption(self, outcome: str, preemption: Preemption) -> None:
        """Not counted."""

    def count_won_capacity(self, gpu_hours: float, cost: float | None) -> None:
        """Do nothing."""

    def count_eviction(self, *, again: bool) -> None:
        """Count an evicted pod."""

    def schedule_round(self, seconds: float) -> None:
        """Not scheduled."""

    def count_answer(self, answer: WriteAnswer) -> None:
        """Not counted."""

    def write_event(self, draft: EventDraft) -> None:
        """Not written."""

    def count_wait(self, outcome: str, gang: Gang, seconds: float) -> None:
        """Not counted."""
