"""The planner at work: watches tell what there is, one event loop owns all that is known, threads write and plan.

watch threads ──Batch──▶ loop: ``Term`` ──Write──▶ threads ──▶ API server
Lease thread ──holds───▶   ▲    │ └─────Task───▶ threads: ``placing``, ``holding``
                           └────┴──────Answer, Placing
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

from gputopo.kube.errors import KubeError
from gputopo.kube.rbac import LEDGERS
from scheduler_core.cache.events import Batch, LedgerUpdate, WatchStatus
from scheduler_core.cache.watch import WatchErrorLog, silence_reason, stuck
from scheduler_core.planner.commit.actions import Action, CreateLedger
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.context import PlannerConfig, TermClock
from scheduler_core.planner.leader.freshness import Freshness
from scheduler_core.planner.leader.hold_search import HoldTask
from scheduler_core.planner.leader.hold_throttle import HoldThrottle
from scheduler_core.planner.leader.plan_task import PlanResult, PlanTask, run_plan
from scheduler_core.planner.leader.term import LeaderTerm
from scheduler_core.planner.leader.writer import ActionExecutor, WriteAnswer, WriteOutcome
from scheduler_core.planner.metrics import PlannerMetrics
from scheduler_core.planner.packing.singles import SinglePodPlacer
from scheduler_core.planner.status import PlannerStatus, planner_status
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.runtime.clock import SlewedClock
from scheduler_core.runtime.event_loop import Deliver, WatchSet
from scheduler_core.runtime.event_writer import EventDraft
from scheduler_core.runtime.leader_election import Election

T = TypeVar("T")
WRITERS = 8  # threads
_STEP_BACK_S = 5.0  # after another planner took over while we held the Lease
_log = logging.getLogger(__name__)


class ServiceParts(NamedTuple):
    """What a planner is made of."""

    identity: str
    writer: ActionExecutor
    election: Election
    policy: PolicyReload
    watching: Callable[[Deliver], WatchSet]  # made anew for each term
    write_event: Callable[[EventDraft], None]
    metrics: PlannerMetrics
    freshness: Callable[[], Freshness] = Freshness  # as is ``watching``


class PlannerService:
    """All parts but the sockets. Lives on the loop's thread."""

    def __init__(self, settled: PlannerConfig, parts: ServiceParts) -> None:
        self.stop_requested = asyncio.Event()
        self.term: LeaderTerm | None = None
        self._settled, self._parts = settled, parts
        self._watches: WatchSet | None = None
        self._writers: ThreadPoolExecutor | None = None
        self._planner: ThreadPoolExecutor | None = None  # one thread for plans of all terms: ``_placer`` is its own
        self._hold_searcher: ThreadPoolExecutor | None = None  # one to seek room to hold
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when that is, by the loop's clock
        self.broken: BaseException | None = None  # an error of our own, which ends the process
        self._not_before = 0.0
        self._terms = 0
        self._placer = SinglePodPlacer()
        self._watch_errors = WatchErrorLog()
        self._hold_throttle = HoldThrottle()
        self._unserved: str | None = None  # what the API server said when it did not know the ledger's kind

    def idle_watches(self, _: Deliver) -> WatchSet:
        """Nothing is watched for as long as it does not lead: each term has watches of its own."""
        return _NoWatches()

    @contextmanager
    def running_watches(self, _: WatchSet) -> Iterator[None]:
        """Within: it leads where it holds the Lease."""
        self._loop = asyncio.get_running_loop()
        with ExitStack() as parts:
            self._writers = ThreadPoolExecutor(WRITERS, "write")
            parts.callback(self._writers.shutdown, wait=False, cancel_futures=True)
            self._planner = ThreadPoolExecutor(1, "plan")
            parts.callback(self._planner.shutdown, wait=False, cancel_futures=True)
            self._hold_searcher = ThreadPoolExecutor(1, "seek")
            parts.callback(self._hold_searcher.shutdown, wait=False, cancel_futures=True)
            parts.callback(self._end)
            yield

    def apply_batch(self, batch: Batch[Any]) -> None:
        """What a watch saw."""
        if self.term is not None:
            self.term.apply_batch(batch)

    def tick(self) -> None:
        """Let time pass: begin, go on or end."""
        if self._parts.policy.poll(time.monotonic()) and self.term is not None:
            self.term.view.cache.set_policy(self._parts.policy.current.node_policy)
        holds = self._parts.election.is_leader
        if self.term is not None and (self.term.is_deposed or not holds):
            if self.term.is_deposed:
                self._not_before = time.monotonic() + _STEP_BACK_S
            self._end()
        elif self.term is not None:
            self._own(self.term.tick, self.statuses())
        elif holds and time.monotonic() >= self._not_before:
            self._begin()
        self._watch_errors.log_errors(self.statuses())

    def not_ready_reason(self) -> str | None:
        """Why gangs are not planned; None: they are, here or by the planner that leads."""
        elected = self._parts.election
        if not elected.is_leader:
            return _no_leader_reason(elected.holder, elected.error)
        if self.term is None or not self.term.leads:
            return self._unserved or "this planner has not taken over the ledger yet"
        missing = self.term.view.cache.missing_kinds
        if missing:
            return f"gputopo has not yet listed all {', '.join(missing)} of the cluster"
        if self.term.freshness.stale_reason is not None:
            return f"nothing is planned, by what is known: {self.term.freshness.stale_reason}"
        return silence_reason(self.statuses())

    def unhealthy(self) -> str | None:
        """Return why this process must be restarted; None: it need not be."""
        return stuck(self.statuses())

    def statuses(self) -> tuple[WatchStatus, ...]:
        """How each watch is doing."""
        return () if self._watches is None else self._watches.status(time.monotonic())

    def _begin(self) -> None:
        """Lead: the ledger first, then everything else."""
        self._terms += 1
        me = f"{self._parts.identity}/{self._terms}"  # what an earlier term of ours may still send is another's
        term = self.term = LeaderTerm(
            self._settled,
            lambda: self._parts.policy.current,
            me,
            _ServiceExecutor(self),
            TermClock(wall=SlewedClock()),
            self._parts.freshness(),
        )
        _log.info("term", extra={"fields": {"begins": True}})
        self._read_ledger(term)

    def _read_ledger(self, term: LeaderTerm) -> None:
        def read() -> LedgerUpdate | KubeError | None:
            try:
                return self._parts.writer.get_ledger(self._settled.pool)
            except KubeError as error:
                return error

        def have(found: LedgerUpdate | KubeError | None) -> None:
            if isinstance(found, KubeError):
                _log.warning("ledger", extra={"fields": {"error": str(found)}})
                term.is_deposed = True  # and begin again later
            else:
                term.apply_ledger(found)

        self.run_in_pool(self._writers, read, term, have)

    def _end(self) -> None:
        if self._watches is not None:
            self._watches.stop()
            self._watches = None
        if self.term is not None:
            _log.info("term", extra={"fields": {"begins": False, "deposed": self.term.is_deposed}})
            self.term = None

    def run_round(self) -> None:
        """What is due now."""
        self._timer = None
        term = self.term
        if term is None or not self._parts.election.is_leader:
            return
        term.run_round()
        if term.leads and self._watches is None:
            self._watches = self._parts.watching(self._deliver(term))
            self._watches.start()

    def _deliver(self, term: LeaderTerm) -> Deliver:
        loop = self._loop
        assert loop is not None  # it runs

        def deliver(batch: Batch[Any]) -> None:
            loop.call_soon_threadsafe(self._own, self._take_for, term, batch)

        return deliver

    def _take_for(self, term: LeaderTerm, batch: Batch[Any]) -> None:
        if term is self.term:
            term.apply_batch(batch)

    def schedule_round(self, seconds: float) -> None:
        """Have a round after that time, or sooner."""
        assert self._loop is not None  # it runs
        at = self._loop.time() + seconds
        if self._timer is not None:
            if self._due <= at:
                return
            self._timer.cancel()
        self._timer, self._due = self._loop.call_at(at, self._own, self.run_round), at

    def run_in_pool(
        self, pool: ThreadPoolExecutor | None, work: Callable[[], T], term: LeaderTerm, back: Callable[[T], None]
    ) -> None:
        """Have it done on a thread; what comes of it comes back to the loop, if the term goes on."""
        loop = self._loop
        assert pool is not None  # it runs
        assert loop is not None

        def done(future: Future[T]) -> None:
            if not future.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(self._own, finish, future)

        def finish(future: Future[T]) -> None:
            found = future.result()
            if term is self.term:
                back(found)

        pool.submit(work).add_done_callback(done)

    def _own(self, work: Callable[..., None], *of: object) -> None:
        """Do what is ours on the loop. An error of our own ends the process: what is left to do, a new one finds."""
        try:
            work(*of)
        except Exception as error:  # noqa: BLE001  told at the end of the process
            self.broken = error
            self.stop_requested.set()

    def count_answer(self, answer: WriteAnswer) -> None:
        """A write was answered."""
        fields = {"write": type(answer.write).__name__, "of": answer.write.key[1], "outcome": answer.outcome.value}
        if answer.outcome in (WriteOutcome.UNANSWERED, WriteOutcome.REFUSED) or self._newly_unserved(answer):
            _log.warning("write", extra={"fields": fields | {"error": answer.error}})
        else:
            _log.debug("write", extra={"fields": fields | {"seconds": round(answer.seconds, 4)}})
        self._parts.metrics.count_answer(answer)

    def _newly_unserved(self, answer: WriteAnswer) -> bool:
        """Whether the ledger cannot be made because nobody applied its kind, and nobody was told yet."""
        before = self._unserved
        if answer.write.key[0] != "ledger" or answer.outcome in (WriteOutcome.UNANSWERED, WriteOutcome.DEPOSED):
            return False  # says nothing of that
        gone = isinstance(answer.write, CreateLedger) and answer.outcome is WriteOutcome.GONE
        self._unserved = (
            f"the API server does not serve {LEDGERS.plural} ({answer.error}): apply daemonset/scheduler/planner"
            if gone
            else None
        )
        return gone and before is None

    def write_event(self, what: EventDraft) -> None:
        """Write an Event."""
        self._parts.write_event(what)

    def count_wait(self, outcome: str, gang: Gang, seconds: float) -> None:
        """How long a gang waited."""
        self._parts.metrics.count_wait(outcome, seconds, alone=is_single_pod_gang(gang.name))

    def execute_action(self, what: Action) -> None:
        """Carry it out."""
        term = self.term
        assert term is not None  # who asks
        self.run_in_pool(self._writers, lambda: self._parts.writer.execute_action(what), term, term.apply_answer)

    def start_plan(self, task: PlanTask) -> None:
        """Work it out."""
        term = self.term
        assert term is not None  # who asks

        def work() -> PlanResult:
            began = time.monotonic()
            with self._hold_throttle.plan_running():
                found = run_plan(task, self._placer)
            self._parts.metrics.count_plan(time.monotonic() - began, placed=bool(found.created))
            return found

        self.run_in_pool(self._planner, work, term, term.apply_plan)

    def status(self) -> PlannerStatus:
        """What is known now, for the metrics and the pages."""
        elected, now = self._parts.election, time.monotonic()
        return planner_status(
            self.term, elected.is_leader, self.not_ready_reason(), self.statuses(), now, elected.holder
        )

    def start_hold_search(self, task: HoldTask) -> None:
        """Work it out."""
        term = self.term
        assert term is not None  # who asks
        self.run_in_pool(
            self._hold_searcher, lambda: self._hold_throttle.search_hold(task), term, term.apply_hold_result
        )


def _no_leader_reason(holder: str | None, trouble: str | None) -> str | None:
    if holder is None:
        return f"no planner holds the Lease yet{f': {trouble}' if trouble else ''}"
    return None if trouble is None else f"whether {holder} leads still cannot be seen: {trouble}"


class _NoWatches:
    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def status(self, _: float) -> tuple[WatchStatus, ...]:
        return ()


class _ServiceExecutor:
    """The service, as a term sees it."""

    def __init__(self, service: PlannerService) -> None:
        self.execute_action, self.start_plan = service.execute_action, service.start_plan
        self.schedule_round, self.count_answer = service.schedule_round, service.count_answer
        self.write_event, self.count_wait, self.start_hold_search = (
            service.write_event,
            service.count_wait,
            service.start_hold_search,
        )
