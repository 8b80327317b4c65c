"""Inputs of a term of leadership: configuration, clock, and the executor that writes, plans and counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from gputopo.crd.reservations import Preemption
from scheduler_core.planner.commit.actions import Action
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.hold_search import HoldTask
from scheduler_core.planner.leader.plan_task import PlanTask
from scheduler_core.planner.leader.preemption_search import PreemptionSearch
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.writer import WriteAnswer
from scheduler_core.planner.packing.model import Levels
from scheduler_core.planner.preemption.model import PreemptionPlan
from scheduler_core.policy.profiles import Policies
from scheduler_core.runtime.event_writer import EventDraft


class PlannerConfig(NamedTuple):
    """Configuration of the planner by the operator."""

    pool: str
    namespace: str  # of reservations of single pods
    terms: CommitTerms
    pace: QueueTiming
    levels: Levels
    release_after_s: float | None = None  # a gang that fits nowhere is released after this time; None: never
    gate_timeout_s: float | None = None  # a single pod is released after this time; None: never
    provisioning_class: str | None = None  # of requests for nodes to a cluster autoscaler; None: none are made
    heartbeats: bool = False  # the Leases of agents are watched


class TermClock(NamedTuple):
    """Clocks in seconds."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time  # since 1970; a long-running process uses ``SlewedClock``


class Executor(Protocol):
    """Executes what a term decides. Results come back through ``LeaderTerm.apply_*``."""

    def execute_action(self, action: Action) -> None:
        """Write to the API server; ``LeaderTerm.apply_answer`` receives the answer."""

    def lease_renewed_at(self) -> float:
        """Return when the Lease was last renewed, in monotonic seconds: the API server answered then."""
        ...

    def start_plan(self, task: PlanTask) -> None:
        """Plan; ``LeaderTerm.apply_plan`` receives the result."""

    def start_hold_search(self, task: HoldTask) -> None:
        """Search nodes for a capacity hold; ``LeaderTerm.apply_hold_result`` receives the result."""

    def start_preemption_search(self, search: PreemptionSearch) -> None:
        """Search pods to evict; ``LeaderTerm.apply_preemption_result`` receives the result."""

    def report_preemption(self, outcome: str, plan: PreemptionPlan) -> None:
        """Log and count a found preemption. ``outcome``: dry-run, planned, over-limit, yield."""

    def count_dry_run(self, gpu_hours: float, cost: float | None) -> None:
        """Count the work that would be lost for a gang, once while it waits. ``cost``: None: unknown."""

    def report_no_preemption(self, gang: GangName, reason: str) -> None:
        """Log and count that no pod is evicted for a gang, when the reason changes."""

    def count_preemption(self, outcome: str, preemption: Preemption) -> None:
        """Count a preemption. ``outcome``: begun, stuck, or how it ended: won, in-vain, stopped."""

    def count_won_capacity(self, gpu_hours: float, cost: float | None) -> None:
        """Count what gangs have used of GPUs that they got by preemption. ``cost``: None: unknown."""

    def count_eviction(self, *, again: bool) -> None:
        """Count a pod that was evicted for a gang. Called once for each pod.

        ``again``: it is the first pod of a workload that was evicted for another gang not long ago.
        """

    def schedule_round(self, seconds: float) -> None:
        """Call ``LeaderTerm.run_round`` after this time, or earlier."""

    def count_answer(self, answer: WriteAnswer) -> None:
        """Log and count the answer to a write."""

    def write_event(self, draft: EventDraft) -> None:
        """Write an Event."""

    def count_wait(self, outcome: str, gang: Gang, seconds: float) -> None:
        """Record how long a gang waited. ``outcome``: bound, rolled back, failed, released."""


class TermContext(NamedTuple):
    """Inputs of a term of leadership."""

    config: PlannerConfig
    policies: Callable[[], Policies]
    executor: Executor
    clock: TermClock
