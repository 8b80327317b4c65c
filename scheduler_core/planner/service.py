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
from scheduler_core.cache.events import Batch, LedgerSeen, WatchStatus
from scheduler_core.cache.watch import silence, stuck
from scheduler_core.cache.watch_log import Troubles
from scheduler_core.planner.commit.actions import CreateLedger, Write
from scheduler_core.planner.gang.conventions import is_alone
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.context import Clock, Settled
from scheduler_core.planner.leader.freshness import Sight
from scheduler_core.planner.leader.hold_search import HoldTask
from scheduler_core.planner.leader.hold_throttle import Precedence
from scheduler_core.planner.leader.plan_task import Placing, Task, placing
from scheduler_core.planner.leader.term import Term
from scheduler_core.planner.leader.writer import Answer, Outcome, Writer
from scheduler_core.planner.metrics import Metrics
from scheduler_core.planner.packing.singles import Placer
from scheduler_core.planner.status import Status, status
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.runtime.clock import Steady
from scheduler_core.runtime.event_loop import Deliver, Watching
from scheduler_core.runtime.event_writer import Tell
from scheduler_core.runtime.leader_election import Elected

T = TypeVar("T")
WRITERS = 8  # threads
_STEP_BACK_S = 5.0  # after another planner took over while we held the Lease
_log = logging.getLogger(__name__)


class Parts(NamedTuple):
    """What a planner is made of."""

    me: str
    writer: Writer
    elected: Elected
    policy: PolicyReload
    watching: Callable[[Deliver], Watching]  # made anew for each term
    tell: Callable[[Tell], None]
    metrics: Metrics
    sight: Callable[[], Sight] = Sight  # as is ``watching``


class Service:
    """All parts but the sockets. Lives on the loop's thread."""

    def __init__(self, settled: Settled, parts: Parts) -> None:
        self.ended = asyncio.Event()
        self.term: Term | None = None
        self._settled, self._parts = settled, parts
        self._watches: Watching | None = None
        self._writers: ThreadPoolExecutor | None = None
        self._planner: ThreadPoolExecutor | None = None  # one thread for plans of all terms: ``_placer`` is its own
        self._seeker: ThreadPoolExecutor | None = None  # one to seek room to hold
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when that is, by the loop's clock
        self.broken: BaseException | None = None  # an error of our own, which ends the process
        self._not_before = 0.0
        self._terms = 0
        self._placer = Placer()
        self._troubles = Troubles()
        self._precedence = Precedence()
        self._unserved: str | None = None  # what the API server said when it did not know the ledger's kind

    def watching(self, _: Deliver) -> Watching:
        """Nothing is watched for as long as it does not lead: each term has watches of its own."""
        return _Idle()

    @contextmanager
    def watched(self, _: Watching) -> Iterator[None]:
        """Within: it leads where it holds the Lease."""
        self._loop = asyncio.get_running_loop()
        with ExitStack() as parts:
            self._writers = ThreadPoolExecutor(WRITERS, "write")
            parts.callback(self._writers.shutdown, wait=False, cancel_futures=True)
            self._planner = ThreadPoolExecutor(1, "plan")
            parts.callback(self._planner.shutdown, wait=False, cancel_futures=True)
            self._seeker = ThreadPoolExecutor(1, "seek")
            parts.callback(self._seeker.shutdown, wait=False, cancel_futures=True)
            parts.callback(self._end)
            yield

    def take(self, batch: Batch[Any]) -> None:
        """What a watch saw."""
        if self.term is not None:
            self.term.take(batch)

    def tick(self) -> None:
        """Let time pass: begin, go on or end."""
        if self._parts.policy.tick(time.monotonic()) and self.term is not None:
            self.term.view.knowledge.follow(self._parts.policy.current.common)
        holds = self._parts.elected.holds
        if self.term is not None and (self.term.deposed or not holds):
            if self.term.deposed:
                self._not_before = time.monotonic() + _STEP_BACK_S
            self._end()
        elif self.term is not None:
            self._own(self.term.tick, self.statuses())
        elif holds and time.monotonic() >= self._not_before:
            self._begin()
        self._troubles.tell(self.statuses())

    def unready(self) -> str | None:
        """Why gangs are not planned; None: they are, here or by the planner that leads."""
        elected = self._parts.elected
        if not elected.holds:
            return _unled(elected.holder, elected.trouble)
        if self.term is None or not self.term.leads:
            return self._unserved or "this planner has not taken over the ledger yet"
        missing = self.term.view.knowledge.missing
        if missing:
            return f"gputopo has not yet listed all {', '.join(missing)} of the cluster"
        if self.term.sight.trouble is not None:
            return f"nothing is planned, by what is known: {self.term.sight.trouble}"
        return silence(self.statuses())

    def unhealthy(self) -> str | None:
        """Return why this process must be restarted; None: it need not be."""
        return stuck(self.statuses())

    def statuses(self) -> tuple[WatchStatus, ...]:
        """How each watch is doing."""
        return () if self._watches is None else self._watches.status(time.monotonic())

    def _begin(self) -> None:
        """Lead: the ledger first, then everything else."""
        self._terms += 1
        me = f"{self._parts.me}/{self._terms}"  # what an earlier term of ours may still send is another's
        term = self.term = Term(
            self._settled,
            lambda: self._parts.policy.current,
            me,
            _Hands(self),
            Clock(wall=Steady()),
            self._parts.sight(),
        )
        _log.info("term", extra={"fields": {"begins": True}})
        self._read_ledger(term)

    def _read_ledger(self, term: Term) -> None:
        def read() -> LedgerSeen | KubeError | None:
            try:
                return self._parts.writer.ledger(self._settled.pool)
            except KubeError as error:
                return error

        def have(found: LedgerSeen | KubeError | None) -> None:
            if isinstance(found, KubeError):
                _log.warning("ledger", extra={"fields": {"error": str(found)}})
                term.deposed = True  # and begin again later
            else:
                term.read(found)

        self.hand(self._writers, read, term, have)

    def _end(self) -> None:
        if self._watches is not None:
            self._watches.stop()
            self._watches = None
        if self.term is not None:
            _log.info("term", extra={"fields": {"begins": False, "deposed": self.term.deposed}})
            self.term = None

    def round(self) -> None:
        """What is due now."""
        self._timer = None
        term = self.term
        if term is None or not self._parts.elected.holds:
            return
        term.round()
        if term.leads and self._watches is None:
            self._watches = self._parts.watching(self._deliver(term))
            self._watches.start()

    def _deliver(self, term: Term) -> Deliver:
        loop = self._loop
        assert loop is not None  # it runs

        def deliver(batch: Batch[Any]) -> None:
            loop.call_soon_threadsafe(self._own, self._take_for, term, batch)

        return deliver

    def _take_for(self, term: Term, batch: Batch[Any]) -> None:
        if term is self.term:
            term.take(batch)

    def wake(self, seconds: float) -> None:
        """Have a round after that time, or sooner."""
        assert self._loop is not None  # it runs
        at = self._loop.time() + seconds
        if self._timer is not None:
            if self._due <= at:
                return
            self._timer.cancel()
        self._timer, self._due = self._loop.call_at(at, self._own, self.round), at

    def hand(
        self, pool: ThreadPoolExecutor | None, work: Callable[[], T], term: Term, back: Callable[[T], None]
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
            self.ended.set()

    def note(self, answer: Answer) -> None:
        """A write was answered."""
        fields = {"write": type(answer.write).__name__, "of": answer.write.key[1], "outcome": answer.outcome.value}
        if answer.outcome in (Outcome.AWAY, Outcome.REFUSED) or self._newly_unserved(answer):
            _log.warning("write", extra={"fields": fields | {"error": answer.error}})
        else:
            _log.debug("write", extra={"fields": fields | {"seconds": round(answer.seconds, 4)}})
        self._parts.metrics.note(answer)

    def _newly_unserved(self, answer: Answer) -> bool:
        """Whether the ledger cannot be made because nobody applied its kind, and nobody was told yet."""
        before = self._unserved
        if answer.write.key[0] != "ledger" or answer.outcome in (Outcome.AWAY, Outcome.DEPOSED):
            return False  # says nothing of that
        gone = isinstance(answer.write, CreateLedger) and answer.outcome is Outcome.GONE
        self._unserved = (
            f"the API server does not serve {LEDGERS.plural} ({answer.error}): apply daemonset/scheduler/planner"
            if gone
            else None
        )
        return gone and before is None

    def tell(self, what: Tell) -> None:
        """Write an Event."""
        self._parts.tell(what)

    def placed(self, outcome: str, gang: Gang, seconds: float) -> None:
        """How long a gang waited."""
        self._parts.metrics.note_wait(outcome, seconds, alone=is_alone(gang.name))

    def write(self, what: Write) -> None:
        """Carry it out."""
        term = self.term
        assert term is not None  # who asks
        self.hand(self._writers, lambda: self._parts.writer.write(what), term, term.answered)

    def plan(self, task: Task) -> None:
        """Work it out."""
        term = self.term
        assert term is not None  # who asks

        def work() -> Placing:
            began = time.monotonic()
            with self._precedence.planning():
                found = placing(task, self._placer)
            self._parts.metrics.note_plan(time.monotonic() - began, placed=bool(found.created))
            return found

        self.hand(self._planner, work, term, term.planned)

    def status(self) -> Status:
        """What is known now, for the metrics and the pages."""
        elected, now = self._parts.elected, time.monotonic()
        return status(self.term, elected.holds, self.unready(), self.statuses(), now, elected.holder)

    def hold(self, task: HoldTask) -> None:
        """Work it out."""
        term = self.term
        assert term is not None  # who asks
        self.hand(self._seeker, lambda: self._precedence.seek(task), term, term.found_room)


def _unled(holder: str | None, trouble: str | None) -> str | None:
    if holder is None:
        return f"no planner holds the Lease yet{f': {trouble}' if trouble else ''}"
    return None if trouble is None else f"whether {holder} leads still cannot be seen: {trouble}"


class _Idle:
    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def status(self, _: float) -> tuple[WatchStatus, ...]:
        return ()


class _Hands:
    """The service, as a term sees it."""

    def __init__(self, service: Service) -> None:
        self.write, self.plan = service.write, service.plan
        self.wake, self.note = service.wake, service.note
        self.tell, self.placed, self.hold = service.tell, service.placed, service.hold
