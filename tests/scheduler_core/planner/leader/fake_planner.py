"""A term of leadership with an API server and watches that respond at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gputopo.crd.reservations import POOL, LedgerEntry, Preemption
from gputopo.kube.objects import ObjectMeta
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate, WatchStatus
from scheduler_core.planner.commit.actions import Action, CheckBudgets
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.leader.context import PlannerConfig, TermClock
from scheduler_core.planner.leader.hold_search import HoldTask, search_hold
from scheduler_core.planner.leader.plan_task import PlanMemory, PlanTask, run_plan
from scheduler_core.planner.leader.preemption_search import PreemptionSearch, run_preemption_search
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.term import LeaderTerm
from scheduler_core.planner.leader.writer import WriteAnswer, WriteOutcome
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.preemption.model import PreemptionPlan
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.runtime.event_writer import EventDraft
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer, Conflict, NotFound, Watcher, candidate_of
from tests.scheduler_core.planner.commit.processes import KINDS, Planner

PACE = QueueTiming(patience_s=0.0)
GATED = CommitTerms(gated=True)
START = 1_795_300_000.0  # hours after the pods were created


class FakePlanner:
    """A planner; by default every pod of its pool is gated.

    ``ledgers``: the entries of the ledger, version by version.
    """

    def __init__(
        self,
        server: ApiServer,
        me: str = "one",
        pace: QueueTiming = PACE,
        release_after_s: float | None = None,
        terms: CommitTerms = GATED,
        gate_timeout_s: float | None = None,
    ) -> None:
        self.server = server
        self.ledgers: list[tuple[LedgerEntry, ...]] = []
        self.writes: list[Action] = []
        self.events: list[EventDraft] = []
        self.waits: list[tuple[str, str, float]] = []  # outcome, gang, seconds
        self.refuses: Callable[[Action], WriteOutcome | None] = lambda _: (
            None
        )  # outcomes of writes that the API server does not do
        self._sender = Planner(server, me, CommitTerms())
        self.blocked: dict[str, str] = {}  # units that disruption budgets forbid to evict
        self.not_evicted: list[tuple[str, str]] = []  # gang, and why no pod is evicted for it
        self.forbidden: frozenset[str] = frozenset()  # UIDs of further pods that they forbid to evict
        self.preemptions: list[str] = []  # outcomes
        self.dry_runs: list[tuple[float, float | None]] = []  # GPU-hours and cost that would be lost
        self.evicted = 0  # pods that were counted as evicted
        self.evicted_again = 0  # workloads that were evicted again
        self.won_gpu_hours = self.won_cost = 0.0
        self._pending: list[Callable[[], None]] = []
        self.watches: tuple[WatchStatus, ...] = ()  # their status
        self.is_deaf = False  # the watches are half-open: no data arrives
        self._watcher: Watcher | None = None
        config = PlannerConfig(POOL, SPACE, terms, pace, LEVELS, release_after_s, gate_timeout_s)
        self.now = START
        self.clock_error_s = 0.0  # by which the wall clock is ahead
        self._was_idle = False
        self._memory = PlanMemory()
        clock = TermClock(lambda: self.now - START, lambda: self.now + self.clock_error_s)
        self.policies = BUILT_IN
        self.term = LeaderTerm(config, lambda: self.policies, me, self, clock)
        self.term.apply_ledger(server.ledger)

    def run(self) -> None:
        """Run until nothing is left to do, now or a second later."""
        self._wait(1.0)
        for _ in range(200):
            todo = self.run_once()
            if not todo and not self._is_behind():
                if self._was_idle:
                    return
                self._wait(1.0)  # back-offs
                self._was_idle = True
            else:
                self._was_idle = False
        raise AssertionError("the planner never becomes idle")

    def run_once(self) -> bool:
        """Apply events, run a round, and do what it decides. Return whether there was anything to do."""
        self.run_round()
        todo, self._pending = self._pending, []
        for each in todo:
            each()
        return bool(todo)

    def run_round(self) -> None:
        """Apply events and run a round. The next ``run_once`` does what it decides."""
        self.apply_events()
        self.term.run_round()

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        self._was_idle = False
        self.term.tick(self.watches)

    def execute_action(self, action: Action) -> None:
        """Write, and answer."""
        self._pending.append(lambda: self.term.apply_answer(self._send(action)))

    def start_plan(self, task: PlanTask) -> None:
        """Compute, and answer."""
        self._pending.append(lambda: self.term.apply_plan(run_plan(task, self._memory)))

    def start_hold_search(self, task: HoldTask) -> None:
        """Compute, and answer."""
        self._pending.append(lambda: self.term.apply_hold_result(search_hold(task)))

    def start_preemption_search(self, search: PreemptionSearch) -> None:
        """Compute, and answer."""
        self._pending.append(lambda: self.term.apply_preemption_result(run_preemption_search(search)))

    def report_preemption(self, outcome: str, plan: PreemptionPlan) -> None:  # noqa: ARG002  of the protocol
        """Record the outcome."""
        self.preemptions.append(outcome)

    def count_dry_run(self, gpu_hours: float, cost: float | None) -> None:
        """Record the work."""
        self.dry_runs.append((gpu_hours, cost))

    def report_no_preemption(self, gang: GangName, reason: str) -> None:
        """Record the reason."""
        self.not_evicted.append((gang.name, reason))

    def count_preemption(self, outcome: str, preemption: Preemption) -> None:  # noqa: ARG002  of the protocol
        """Record the outcome."""
        self.preemptions.append(outcome)

    def count_won_capacity(self, gpu_hours: float, cost: float | None) -> None:
        """Count."""
        self.won_gpu_hours += gpu_hours
        self.won_cost += cost or 0.0

    def count_eviction(self, *, again: bool) -> None:
        """Count."""
        self.evicted += 1
        self.evicted_again += again

    def schedule_round(self, seconds: float) -> None:
        """``run`` continues by itself."""

    def lease_renewed_at(self) -> float:
        """Return that the Lease was never renewed."""
        return float("-inf")

    def count_answer(self, answer: WriteAnswer) -> None:
        """Not counted."""

    def write_event(self, draft: EventDraft) -> None:
        """Record the Event."""
        self.events.append(draft)

    def count_wait(self, outcome: str, gang: Gang, seconds: float) -> None:
        """Record the wait."""
        self.waits.append((outcome, gang.name.name, seconds))

    def apply_events(self) -> None:
        """Apply all that the watches show by now."""
        if self._watcher is None:
            if self.term.leads:
                self._watcher = Watcher(self.server, KINDS, (PlannerPod, candidate_of))
                for batch in self._watcher.lists():
                    self.term.apply_batch(batch)
            return
        while self._is_behind():
            for kind in self._watcher.behind():
                self.term.apply_batch(self._watcher.hear(kind))

    def _is_behind(self) -> bool:
        return self._watcher is None or (not self.is_deaf and bool(self._watcher.behind()))

    def _send(self, action: Action) -> WriteAnswer:
        self.writes.append(action)
        outcome = self.refuses(action)
        if outcome is not None:
            read_again = action.key[0] == "ledger" and outcome is not WriteOutcome.DEPOSED
            return WriteAnswer(
                action, outcome, ledger=self.server.ledger if read_again else None, error="it is refused"
            )
        if isinstance(action, CheckBudgets):
            asked = {each.unit for each in action.evictions}
            blocked = {unit: why for unit, why in self.blocked.items() if unit in asked}
            further = self.forbidden if blocked and action.finds_forbidden else frozenset[str]()
            return WriteAnswer(action, WriteOutcome.DONE, blocked=blocked, forbidden=further)
        try:
            made = self._sender.send(action)
        except (Conflict, NotFound) as refused:
            outcome = WriteOutcome.CONFLICT if isinstance(refused, Conflict) else WriteOutcome.GONE
            return WriteAnswer(action, outcome, ledger=self.server.ledger if action.key[0] == "ledger" else None)
        if isinstance(made, LedgerUpdate):
            self.ledgers.append(made.spec.entries)
        return WriteAnswer(action, WriteOutcome.DONE, _metadata(made))


def _metadata(made: Any) -> ObjectMeta | None:
    if isinstance(made, LedgerUpdate):
        return ObjectMeta(name=made.key, uid=made.uid, resource_version=made.version, generation=made.generation)
    if isinstance(made, ReservationUpdate):
        return ObjectMeta(name=made.name, uid=made.key, resource_version=made.version)
    if made is None:
        return None
    metadata = made["metadata"]
    return ObjectMeta(name=metadata["name"], uid=metadata["uid"], resource_version=metadata["resourceVersion"])
