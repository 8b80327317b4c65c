"""What a term of leadership is given: what the operator decided, a clock, and hands that do the work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from scheduler_core.planner.commit.actions import Action
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.hold_search import HoldTask
from scheduler_core.planner.leader.plan_task import PlanTask
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.writer import WriteAnswer
from scheduler_core.planner.packing.model import Levels
from scheduler_core.policy.profiles import Policies
from scheduler_core.runtime.event_writer import EventDraft


class PlannerConfig(NamedTuple):
    """What the operator has decided."""

    pool: str
    namespace: str  # of reservations of single pods
    terms: CommitTerms
    pace: QueueTiming
    levels: Levels
    release_after_s: float | None = None  # a gang that fits nowhere is released after so long; None: never
    gate_timeout_s: float | None = None  # the same of a single pod


class TermClock(NamedTuple):
    """Seconds."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time  # since 1970; ``Steady``, where it is to go on for long


class Executor(Protocol):
    """What does the work. Answers come back by ``Term.answered`` and ``Term.planned``."""

    def execute_action(self, what: Action) -> None:
        """Carry it out."""
        ...

    def start_plan(self, task: PlanTask) -> None:
        """Work it out."""
        ...

    def start_hold_search(self, task: HoldTask) -> None:
        """Work it out. Comes back by ``Term.found_room``."""
        ...

    def schedule_round(self, seconds: float) -> None:
        """Call ``Term.round`` after that time, or sooner."""
        ...

    def count_answer(self, answer: WriteAnswer) -> None:
        """A write was answered."""
        ...

    def write_event(self, what: EventDraft) -> None:
        """Write an Event."""
        ...

    def count_wait(self, outcome: str, gang: Gang, seconds: float) -> None:
        """How long a gang waited: bound, rolled back, failed, released."""
        ...


class TermContext(NamedTuple):
    """All of it."""

    config: PlannerConfig
    policies: Callable[[], Policies]
    executor: Executor
    clock: TermClock
