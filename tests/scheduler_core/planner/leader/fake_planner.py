"""A term of leadership with an API server that answers at once, and watches that show everything at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gputopo.crd.reservations import POOL, LedgerEntry
from gputopo.kube.objects import ObjectMeta
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate, WatchStatus
from scheduler_core.planner.commit.actions import Action
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.leader.context import PlannerConfig, TermClock
from scheduler_core.planner.leader.hold_search import HoldTask, search_hold
from scheduler_core.planner.leader.plan_task import PlanTask, run_plan
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.term import LeaderTerm
from scheduler_core.planner.leader.writer import WriteAnswer, WriteOutcome
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.runtime.event_writer import EventDraft
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer, Conflict, NotFound, Watcher, candidate_of
from tests.scheduler_core.planner.commit.processes import KINDS, Planner

PACE = QueueTiming(patience_s=0.0)
GATED = CommitTerms(gated=True)
START = 1_795_300_000.0  # hours after the pods were created


class Desk:
    """A planner, by default in a pool where every pod is gated.

    ``ledgers``: what the ledger listed, version after version.
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
        self.told: list[EventDraft] = []
        self.waits: list[tuple[str, str, float]] = []  # outcome, gang, seconds
        self.refuses: Callable[[Action], WriteOutcome | None] = lambda _: None  # what the API server does not do
        self._sender = Planner(server, me, CommitTerms())
        self._todo: list[Callable[[], None]] = []
        self.watches: tuple[WatchStatus, ...] = ()  # how they are doing
        self.deaf = False  # the watches are half-open: nothing comes, and nobody knows
        self._watcher: Watcher | None = None
        settled = PlannerConfig(POOL, SPACE, terms, pace, LEVELS, release_after_s, gate_timeout_s)
        self.now = START
        self.wrong_s = 0.0  # that the wall clock is ahead
        self._rested = False
        clock = TermClock(lambda: self.now - START, lambda: self.now + self.wrong_s)
        self.term = LeaderTerm(settled, lambda: BUILT_IN, me, self, clock)
        self.term.apply_ledger(server.ledger)

    def run(self) -> None:
        """Until there is nothing left to do, now or a second later."""
        self._wait(1.0)
        for _ in range(200):
            self.hear()
            self.term.run_round()
            todo, self._todo = self._todo, []
            for each in todo:
                each()
            if not todo and not self._behind():
                if self._rested:
                    return
                self._wait(1.0)  # what is not done again at once
                self._rested = True
            else:
                self._rested = False
        raise AssertionError("it never comes to rest")

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        self._rested = False
        self.term.tick(self.watches)

    def execute_action(self, what: Action) -> None:
        """Carry it out, and answer."""
        self._todo.append(lambda: self.term.apply_answer(self._sent(what)))

    def start_plan(self, task: PlanTask) -> None:
        """Work it out, and answer."""
        self._todo.append(lambda: self.term.apply_plan(run_plan(task)))

    def start_hold_search(self, task: HoldTask) -> None:
        """Work it out, and answer."""
        self._todo.append(lambda: self.term.apply_hold_result(search_hold(task)))

    def schedule_round(self, seconds: float) -> None:
        """``run`` goes on by itself."""

    def count_answer(self, answer: WriteAnswer) -> None:
        """Nobody counts."""

    def write_event(self, what: EventDraft) -> None:
        """Somebody listens."""
        self.told.append(what)

    def count_wait(self, outcome: str, gang: Gang, seconds: float) -> None:
        """Somebody counts."""
        self.waits.append((outcome, gang.name.name, seconds))

    def hear(self) -> None:
        """All that the watches show by now."""
        if self._watcher is None:
            if self.term.leads:
                self._watcher = Watcher(self.server, KINDS, (PlannerPod, candidate_of))
                for batch in self._watcher.lists():
                    self.term.apply_batch(batch)
            return
        while self._behind():
            for kind in self._watcher.behind():
                self.term.apply_batch(self._watcher.hear(kind))

    def _behind(self) -> bool:
        return self._watcher is None or (not self.deaf and bool(self._watcher.behind()))

    def _sent(self, what: Action) -> WriteAnswer:
        self.writes.append(what)
        outcome = self.refuses(what)
        if outcome is not None:
            read_again = what.key[0] == "ledger" and outcome is not WriteOutcome.DEPOSED
            return WriteAnswer(what, outcome, ledger=self.server.ledger if read_again else None, error="it is refused")
        try:
            made = self._sender.send(what)
        except (Conflict, NotFound) as refused:
            outcome = WriteOutcome.CONFLICT if isinstance(refused, Conflict) else WriteOutcome.GONE
            return WriteAnswer(what, outcome, ledger=self.server.ledger if what.key[0] == "ledger" else None)
        if isinstance(made, LedgerUpdate):
            self.ledgers.append(made.spec.entries)
        return WriteAnswer(what, WriteOutcome.DONE, _metadata(made))


def _metadata(made: Any) -> ObjectMeta | None:
    if isinstance(made, LedgerUpdate):
        return ObjectMeta(name=made.key, uid=made.uid, resource_version=made.version, generation=made.generation)
    if isinstance(made, ReservationUpdate):
        return ObjectMeta(name=made.name, uid=made.key, resource_version=made.version)
    if made is None:
        return None
    metadata = made["metadata"]
    return ObjectMeta(name=metadata["name"], uid=metadata["uid"], resource_version=metadata["resourceVersion"])
