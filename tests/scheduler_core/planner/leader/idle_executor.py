"""Hands that do nothing, of which a test makes do what it looks at."""

from __future__ import annotations

from scheduler_core.planner.commit.actions import Action
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.hold_search import HoldTask
from scheduler_core.planner.leader.plan_task import PlanTask
from scheduler_core.planner.leader.writer import WriteAnswer
from scheduler_core.runtime.event_writer import EventDraft


class Idle:
    """Nothing is carried out (``given.Hands``)."""

    def execute_action(self, what: Action) -> None:
        """Not done."""

    def start_plan(self, task: PlanTask) -> None:
        """Not worked out."""

    def start_hold_search(self, task: HoldTask) -> None:
        """Not worked out."""

    def schedule_round(self, seconds: float) -> None:
        """Nobody waits."""

    def count_answer(self, answer: WriteAnswer) -> None:
        """Nobody counts."""

    def write_event(self, what: EventDraft) -> None:
        """Nobody listens."""

    def count_wait(self, outcome: str, gang: Gang, seconds: float) -> None:
        """Nobody counts."""
