"""What a term of leadership is given: what the operator decided, a clock, and hands that do the work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from scheduler_core.planner.commit.actions import Write
from scheduler_core.planner.commit.state import Terms
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.hold_search import HoldTask
from scheduler_core.planner.leader.plan_task import Task
from scheduler_core.planner.leader.queue import Pace
from scheduler_core.planner.leader.writer import Answer
from scheduler_core.planner.packing.model import Levels
from scheduler_core.policy.profiles import Policies
from scheduler_core.runtime.event_writer import Tell


class Settled(NamedTuple):
    """What the operator has decided."""

    pool: str
    namespace: str  # of reservations of single pods
    terms: Terms
    pace: Pace
    levels: Levels
    release_after_s: float | None = None  # a gang that fits nowhere is released after so long; None: never
    gate_timeout_s: float | None = None  # the same of a single pod


class Clock(NamedTuple):
    """Seconds."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time  # since 1970; ``Steady``, where it is to go on for long


class Hands(Protocol):
    """What does the work. Answers come back by ``Term.answered`` and ``Term.planned``."""

    def write(self, what: Write) -> None:
        """Carry it out."""
        ...

    def plan(self, task: Task) -> None:
        """Work it out."""
        ...

    def hold(self, task: HoldTask) -> None:
        """Work it out. Comes back by ``Term.found_room``."""
        ...

    def wake(self, seconds: float) -> None:
        """Call ``Term.round`` after that time, or sooner."""
        ...

    def note(self, answer: Answer) -> None:
        """A write was answered."""
        ...

    def tell(self, what: Tell) -> None:
        """Write an Event."""
        ...

    def placed(self, outcome: str, gang: Gang, seconds: float) -> None:
        """How long a gang waited: bound, rolled back, failed, released."""
        ...


class Given(NamedTuple):
    """All of it."""

    settled: Settled
    policies: Callable[[], Policies]
    hands: Hands
    clock: Clock
