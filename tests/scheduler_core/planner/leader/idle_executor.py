"""Hands that do nothing, of which a test makes do what it looks at."""

from __future__ import annotations

from scheduler_core.planner.commit.actions import Write
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.hold_search import HoldTask
from scheduler_core.planner.leader.plan_task import Task
from scheduler_core.planner.leader.writer import Answer
from scheduler_core.runtime.event_writer import Tell


class Idle:
    """Nothing is carried out (``given.Hands``)."""

    def write(self, what: Write) -> None:
        """Not done."""

    def plan(self, task: Task) -> None:
        """Not worked out."""

    def hold(self, task: HoldTask) -> None:
        """Not worked out."""

    def wake(self, seconds: float) -> None:
        """Nobody waits."""

    def note(self, answer: Answer) -> None:
        """Nobody counts."""

    def tell(self, what: Tell) -> None:
        """Nobody listens."""

    def placed(self, outcome: str, gang: Gang, seconds: float) -> None:
        """Nobody counts."""
