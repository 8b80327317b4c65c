"""The running planner: one event loop owns all state; threads watch, write and plan.

watch threads ──Batch──────▶ loop: LeaderTerm ──Action───▶ write threads ──▶ API server
Lease thread ──is_leader───▶   ▲    │ └──────PlanTask────▶ plan thread
                               │    └────────HoldTask────▶ hold search thread
                               └── WriteAnswer, PlanResult, HoldResult
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from gputopo.crd.reservations import Preemption
from gputopo.kube.errors import KubeError
from gputopo.kube.rbac import LEDGERS
from gputopo.recent_results import ResultExpiry
from scheduler_core.cache.events import Batch, LedgerUpdate, WatchStatus
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.watch import WatchErrorLog, restart_reason, silence_reason
from scheduler_core.planner.commit.actions import Action, CreateLedger
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.context import PlannerConfig, TermClock
from scheduler_core.planner.leader.freshness import Freshness
from scheduler_core.planner.leader.hold_search import HoldTask
from scheduler_core.planner.leader.hold_throttle import HoldThrottle
from scheduler_core.planner.leader.list_parts import ListDivider
from scheduler_core.planner.leader.plan_task import PlanMemory, PlanResult, PlanTask, run_plan
from scheduler_core.planner.leader.preemption_search import PreemptionSearch
from scheduler_core.planner.leader.reservation_lines import ReservationLines
from scheduler_core.planner.leader.term import LeaderTerm
from scheduler_core.planner.leader.writer import ActionExecutor, WriteAnswer, WriteOutcome
from scheduler_core.planner.metrics import PlannerMetrics
from scheduler_core.planner.preemption.model import PreemptionPlan
from scheduler_core.planner.status import PlannerStatus, planner_status
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.runtime.clock import SlewedClock
from scheduler_core.runtime.event_loop import Deliver, WatchSet
from scheduler_core.runtime.event_writer import EventDraft
from scheduler_core.runtime.fair_pool import FairPool
from scheduler_core.runtime.garbage import LongLivedObjects
from scheduler_core.runtime.leader_election import Election

T = TypeVar("T")
WRITERS = 8  # threads
_STEP_BACK_S = 5.0  # after another planner took over the ledger while this planner held the Lease
_log = logging.getLogger(__name__)


class ServiceParts(NamedTuple):
    """The parts of a planner."""

    identity: str
    writer: ActionExecutor
    election: Election
    policy: PolicyReload
    watching: Callable[[Deliver], WatchSet]  # called for each term
    write_event: Callable[[EventDraft], None]
    metrics: PlannerMetrics
    freshness: Callable[[], Freshness] = Freshness  # called for each term


class PlannerService:
    """The planner without its sockets; the ``Executor`` of its terms. Lives on the thread of the event loop."""

    def __init__(self, config: PlannerConfig, parts: ServiceParts) -> None:
        self.stop_requested = asyncio.Event()
        self.term: LeaderTerm | None = None
        self.fatal_error: BaseException | None = None  # an internal error, which ends the process
        self._config, self._parts = config, parts
        self._watches: WatchSet | None = None
        self._write_pool = FairPool(WRITERS, "write")  # the users are namespaces
        self._plan_pool = ThreadPoolExecutor(1, "plan")  # one thread for the plans of all terms: it owns ``_memory``
        self._hold_pool = ThreadPoolExecutor(1, "hold")
        self._memory = PlanMemory()
        self._hold_throttle = HoldThrottle()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None  # of the next round
        self._next_round = 0.0  # in the loop's time
        self._not_before = 0.0  # monotonic seconds: no term begins before
        self._terms = 0
        self._watch_errors = WatchErrorLog()
        self._long_lived = LongLivedObjects()
        self._expiry = ResultExpiry()
        self._lines = ReservationLines()
        self._not_served: str | None = None  # why the ledger cannot be created: its kind is unknown to the API server

    @contextmanager
    def running_watches(self, _: WatchSet) -> Iterator[None]:
        """Within this context, lead while the Lease is held."""
        self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self._end_term()
            self._write_pool.shutdown()
            for pool in (self._hold_pool, self._plan_pool):
                pool.shutdown(wait=False, cancel_futures=True)

    def apply_batch(self, batch: Batch[Any]) -> None:
        """Apply events of a watch."""
        if self.term is not None:
            self.term.apply_batch(batch)

    def tick(self) -> None:
        """Begin, continue or end a term."""
        if self._parts.policy.poll(time.monotonic()) and self.term is not None:
            self.term.view.cache.set_policy(self._parts.policy.current.node_policy)
        is_leader = self._parts.election.is_leader
        if self.term is not None and (self.term.is_deposed or not is_leader):
            if self.term.is_deposed:
                self._not_before = time.monotonic() + _STEP_BACK_S
            self._end_term()
        elif self.term is not None:
            self._guarded(self.term.tick, self.statuses())
        elif is_leader and time.monotonic() >= self._not_before:
            self._begin_term()
        loaded = self.term is not None and self.term.leads and not self.term.view.cache.missing_kinds
        self._long_lived.tick(time.monotonic(), loaded=loaded)
        self._expiry.tick(time.monotonic(), self._states_in_use)
        self._watch_errors.log_errors(self.statuses())

    def _states_in_use(self) -> AbstractSet[NodeState]:
        return frozenset() if self.term is None else self.term.view.cache.snapshot.states_in_use()

    def not_ready_reason(self) -> str | None:
        """Return why gangs are not planned; None: this planner, or the leader, plans them."""
        elected = self._parts.election
        if not elected.is_leader:
            return _no_leader_reason(elected.holder, elected.error)
        if self.term is None or not self.term.leads:
            return self._not_served or "this planner has not taken over the ledger yet"
        missing = self.term.view.cache.missing_kinds
        if missing:
            return f"gputopo has not yet listed all {', '.join(missing)} of the cluster"
        if self.term.freshness.stale_reason is not None:
            return f"nothing is planned, because the cluster cache is stale: {self.term.freshness.stale_reason}"
        return silence_reason(self.statuses())

    def unhealthy(self) -> str | None:
        """Return why this process must be restarted; None: it need not be."""
        return restart_reason(self.statuses())

    def statuses(self) -> tuple[WatchStatus, ...]:
        """Return the status of each watch."""
        return () if self._watches is None else self._watches.status(time.monotonic())

    def status(self) -> PlannerStatus:
        """Return the present state, for metrics and pages."""
        elected, now = self._parts.election, time.monotonic()
        return planner_status(
            self.term, elected.is_leader, self.not_ready_reason(), self.statuses(), now, elected.holder
        )

    def _begin_term(self) -> None:
        """Begin a term: read the ledger before anything else."""
        self._terms += 1
        term = self.term = LeaderTerm(
            config=self._config,
            policies=lambda: self._parts.policy.current,
            identity=f"{self._parts.identity}/{self._terms}",  # unlike earlier terms, whose writes may still arrive
            executor=self,
            clock=TermClock(wall=SlewedClock()),
            freshness=self._parts.freshness(),
        )
        _log.info("term", extra={"fields": {"begins": True}})

        def read_ledger() -> LedgerUpdate | KubeError | None:
            try:
                return self._parts.writer.get_ledger(self._config.pool)
            except KubeError as error:
                return error

        def apply_ledger(found: LedgerUpdate | KubeError | None) -> None:
            if isinstance(found, KubeError):
                _log.warning("ledger", extra={"fields": {"error": str(found)}})
                term.is_deposed = True  # another term begins later
            else:
                term.apply_ledger(found)

        self._apply_result(self._write_pool.submit("", read_ledger), apply_ledger)

    def _end_term(self) -> None:
        if self._watches is not None:
            self._watches.stop()
            self._watches = None
        if self.term is not None:
            _log.info("term", extra={"fields": {"begins": False, "deposed": self.term.is_deposed}})
            self.term = None

    def _run_round(self) -> None:
        self._timer = None
        term = self.term
        if term is None or not self._parts.election.is_leader:
            return
        term.run_round()
        if term.leads and self._watches is None:
            self._watches = self._parts.watching(self._deliver_to(term))
            self._watches.start()

    def _deliver_to(self, term: LeaderTerm) -> Deliver:
        loop = self._loop
        assert loop is not None  # it runs

        def apply(batch: Batch[Any]) -> None:
            if term is self.term:
                term.apply_batch(batch)

        divider = ListDivider(term.view, apply, lambda call: loop.call_soon(self._guarded, call))

        def deliver(batch: Batch[Any]) -> None:
            loop.call_soon_threadsafe(self._guarded, divider.apply_batch, batch)

        return deliver

    def schedule_round(self, seconds: float) -> None:
        """Run a round after this time, or earlier."""
        assert self._loop is not None  # it runs
        at = self._loop.time() + seconds
        if self._timer is not None:
            if self._next_round <= at:
                return
            self._timer.cancel()
        self._timer, self._next_round = self._loop.call_at(at, self._guarded, self._run_round), at

    def execute_action(self, action: Action) -> None:
        """Write to the API server, on a write thread."""
        term = self.term
        assert term is not None  # the caller
        answer = self._write_pool.submit(action.namespace, lambda: self._parts.writer.execute_action(action))
        self._apply_result(answer, term.apply_answer)

    def lease_renewed_at(self) -> float:
        """Return when the Lease was last renewed, in monotonic seconds."""
        return self._parts.election.renewed_at

    def start_plan(self, task: PlanTask) -> None:
        """Plan, on the plan thread."""
        term = self.term
        assert term is not None  # the caller

        def plan() -> PlanResult:
            began = time.monotonic()
            with self._hold_throttle.plan_running():
                found = run_plan(task, self._memory)
            self._parts.metrics.count_plan(time.monotonic() - began, placed=bool(found.created))
            return found

        self._apply_result(self._plan_pool.submit(plan), term.apply_plan)

    def start_hold_search(self, task: HoldTask) -> None:
        """Search nodes for a capacity hold, on the hold search thread."""
        term = self.term
        assert term is not None  # the caller
        self._apply_result(self._hold_pool.submit(self._hold_throttle.search_hold, task), term.apply_hold_result)

    def start_preemption_search(self, search: PreemptionSearch) -> None:
        """Search pods to evict, on the hold search thread."""
        term = self.term
        assert term is not None  # the caller
        found = self._hold_pool.submit(self._hold_throttle.search_preemption, search)
        self._apply_result(found, term.apply_preemption_result)

    def report_preemption(self, outcome: str, plan: PreemptionPlan) -> None:
        """Log and count a found preemption."""
        gang = plan.gang.name
        fields = {
            "outcome": outcome,
            "gang": gang.title,
            "pods": len(plan.pods),
            "units": [each.name for each in plan.units[:16]],
            "gpu_hours": round(plan.gpu_hours, 2),
            "cost": plan.cost,
            "reason": plan.reason,
        }
        _log.info("preemption", extra={"fields": fields})
        self._parts.metrics.preemptions.labels(outcome).inc()

    def count_dry_run(self, gpu_hours: float, cost: float | None) -> None:
        """Count the work that would be lost in a preemption."""
        self._parts.metrics.count_dry_run(gpu_hours, cost)

    def report_no_preemption(self, gang: GangName, reason: str) -> None:
        """Log and count that no pod is evicted for a gang."""
        _log.info("preemption", extra={"fields": {"outcome": "none", "gang": gang.title, "reason": reason}})
        self._parts.metrics.preemptions.labels("none").inc()

    def count_preemption(self, outcome: str, preemption: Preemption) -> None:
        """Count a preemption that has begun, or ended."""
        self._parts.metrics.count_preemption(outcome, preemption)

    def count_won_capacity(self, gpu_hours: float, cost: float | None) -> None:
        """Count what gangs have used of GPUs that they got by preemption."""
        self._parts.metrics.count_won_capacity(gpu_hours, cost)

    def count_eviction(self, *, again: bool) -> None:
        """Count an evicted pod."""
        self._parts.metrics.count_eviction(again=again)

    def _apply_result(self, result: Future[T], apply: Callable[[T], None]) -> None:
        """Apply the result of work on a thread on the loop, unless the present term has ended by then."""
        loop, term = self._loop, self.term
        assert loop is not None  # it runs

        def done(future: Future[T]) -> None:
            if not future.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(self._guarded, finish, future)

        def finish(future: Future[T]) -> None:
            found = future.result()
            if term is self.term:
                apply(found)

        result.add_done_callback(done)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Do work on the loop. An internal error ends the process: a new process recovers the state."""
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  raised at the end of the process
            self.fatal_error = error
            self.stop_requested.set()

    def count_answer(self, answer: WriteAnswer) -> None:
        """Log and count the answer to a write."""
        fields = {"write": type(answer.write).__name__, "object": answer.write.key[1], "outcome": answer.outcome.value}
        if answer.outcome in (WriteOutcome.UNANSWERED, WriteOutcome.REFUSED) or self._is_newly_not_served(answer):
            _log.warning("write", extra={"fields": fields | {"error": answer.error}})
        else:
            _log.debug("write", extra={"fields": fields | {"seconds": round(answer.seconds, 4)}})
        if answer.outcome is WriteOutcome.DONE:
            self._lines.write_done(answer.write, answer.seconds)
        self._parts.metrics.count_answer(answer)

    def _is_newly_not_served(self, answer: WriteAnswer) -> bool:
        """Return True if the kind of the ledger is unknown to the API server, and was known before."""
        before = self._not_served
        if answer.write.key[0] != "ledger" or answer.outcome in (WriteOutcome.UNANSWERED, WriteOutcome.DEPOSED):
            return False  # says nothing about the kind
        is_unknown = isinstance(answer.write, CreateLedger) and answer.outcome is WriteOutcome.GONE
        self._not_served = (
            f"the API server does not serve {LEDGERS.plural} ({answer.error}): apply daemonset/scheduler/planner"
            if is_unknown
            else None
        )
        return is_unknown and before is None

    def write_event(self, draft: EventDraft) -> None:
        """Write an Event."""
        self._parts.write_event(draft)

    def count_wait(self, outcome: str, gang: Gang, seconds: float) -> None:
        """Record how long a gang waited."""
        self._parts.metrics.count_wait(outcome, seconds, alone=is_single_pod_gang(gang.name))
        self._lines.write_wait(gang.name.title, outcome, seconds)


def _no_leader_reason(holder: str | None, error: str | None) -> str | None:
    if holder is None:
        return f"no planner holds the Lease yet{f': {error}' if error else ''}"
    return None if error is None else f"cannot check whether {holder} still leads: {error}"
