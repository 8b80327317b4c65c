"""One term of leadership: what was seen and answered goes in, what is to be written or planned next comes out.

On the loop's thread, without I/O: writes and plans are handed over and their answers come back. A term begins with
nothing known: the ledger is taken over first and everything is listed after that, so what a predecessor wrote is known
before anything is done about it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gputopo.crd.reservations import EntryPhase
from gputopo.timestamps import parse_timestamp
from scheduler_core.cache.events import Batch, LedgerUpdate, WatchStatus
from scheduler_core.evaluation.reservation_check import ExtenderView, ReservationChecker, policy_for_pod
from scheduler_core.planner.commit.actions import CreateReservation, ProbeExtenderPod, WriteLedger
from scheduler_core.planner.commit.ledger import LedgerRole, ledger_role
from scheduler_core.planner.commit.reconcile import idle_reservations, reconcile
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.leader.backlog import GangBacklog
from scheduler_core.planner.leader.context import Executor, PlannerConfig, TermClock, TermContext
from scheduler_core.planner.leader.freshness import Freshness
from scheduler_core.planner.leader.hold_search import HoldResult
from scheduler_core.planner.leader.outbox import Outbox
from scheduler_core.planner.leader.plan_task import PlanResult
from scheduler_core.planner.leader.releases import due_releases
from scheduler_core.planner.leader.results import WriteResults
from scheduler_core.planner.leader.scheduling import PlanScheduler
from scheduler_core.planner.leader.view import PlanFindings, PlannerView
from scheduler_core.planner.leader.wait_times import WaitTimes
from scheduler_core.planner.leader.writer import WriteAnswer, WriteOutcome
from scheduler_core.policy.profiles import Policies

_GATHER_S = 0.03  # what happens within so long is looked at together: a look costs the same for one and for a hundred
_UNDER_WAY_S = 0.1  # the same of pods that are let go and bound: nothing follows before the last of them
_log = logging.getLogger(__name__)


class LeaderTerm:
    """From taking over the ledger until another does, or the Lease is lost."""

    def __init__(
        self,
        settled: PlannerConfig,
        policies: Callable[[], Policies],
        me: str,
        hands: Executor,
        clock: TermClock,
        sight: Freshness | None = None,
    ) -> None:
        given = TermContext(settled, policies, hands, clock)
        self.view = PlannerView(policies().node_policy, settled.pool, me, guarded=settled.terms.guarded)
        self.backlog = GangBacklog(given, self.view.gang_members)
        self.freshness = sight or Freshness()
        self.is_deposed = False
        self.leads = False  # the ledger is ours
        self._given, self._me = given, me
        self._ledger_read = False
        self._outbox = Outbox(given, self.view)
        self._plan_scheduler = PlanScheduler(given, self.view, self.backlog)
        self._waits = WaitTimes(given, self.view.gang_members)
        self._write_results = WriteResults(given, self.view, self.backlog, self._waits)
        self._checker = ReservationChecker()
        self._touched: set[GangName] = set()  # that may be others since the last round

    def apply_batch(self, batch: Batch[Any]) -> None:
        """What a watch saw."""
        self._touched |= self.view.apply_batch(batch, self._given.clock.wall())
        self._given.executor.schedule_round(_UNDER_WAY_S if _is_on_its_way(batch) else _GATHER_S)

    def tick(self, watches: Iterable[WatchStatus] = ()) -> None:
        """Let time pass. ``watches``: how they are doing."""
        wall = self._given.clock.wall()
        self.view.cache.advance_time(wall)
        if self.view.cache.synced:
            written = self.view.unshown_since()
            self.freshness.update(watches, None if written is None else wall - written, self._given.clock.monotonic())
        self._given.executor.schedule_round(0.0)

    def apply_ledger(self, ledger: LedgerUpdate | None) -> None:
        """The ledger as it is at the beginning."""
        wall = self._given.clock.wall()
        self.view.apply_ledger(ledger, wall)
        if ledger is not None and _is_new(ledger, self._given.config.terms.settle_s, wall):
            self.view.observations = self.view.observations._replace(is_new_ledger=True)
        self._ledger_read = True
        self._given.executor.schedule_round(0.0)

    def run_round(self) -> None:
        """Hand over all that is to be done now."""
        now = self._given.clock.monotonic()
        if not self._ledger_read or self.is_deposed or self._outbox.is_paused(now):
            return
        ledger = self.view.ledger
        mine = ledger_role(ledger, self._me) is LedgerRole.LEAD
        if self.leads and not mine:
            self.is_deposed = True
            _log.warning("deposed", extra={"fields": {"planner": ledger.spec.planner if ledger else None}})
            return
        self.leads = mine
        if mine and not self.view.cache.synced:
            return
        self._put()
        self.view.observe(now)
        listed_again = self._write(now)
        if mine and self.freshness.stale_reason is None and not self._outbox.is_writing_plan and not listed_again:
            self._plan_scheduler.start_next_plan(now)

    def apply_answer(self, answer: WriteAnswer) -> None:
        """What became of a write."""
        what, outcome, now = answer.write, answer.outcome, self._given.clock.monotonic()
        self._given.executor.count_answer(answer)
        untaken = self._outbox.apply_answer(what, outcome, now)
        if untaken and isinstance(what, CreateReservation):
            self.backlog.mark_refused(what, answer.error)
        if outcome is WriteOutcome.UNANSWERED:
            self._write_results.apply_unanswered(what, answer.error, now, elsewhere=not untaken)
        if outcome in (WriteOutcome.UNANSWERED, WriteOutcome.DEPOSED):  # it says nothing of what there is
            return
        if outcome is WriteOutcome.REFUSED:
            self._write_results.apply_refused(what, answer.error, now)
        if isinstance(what, ProbeExtenderPod):
            self._write_results.apply_probe(what, gone=outcome is WriteOutcome.GONE, now=now)
        elif outcome is WriteOutcome.DONE:
            self._touched |= self._write_results.apply_done(answer)
        elif what.key[0] == "ledger":
            self.view.apply_ledger(answer.ledger, self._given.clock.wall())
        self._given.executor.schedule_round(_UNDER_WAY_S if what.key[0] == "pod" and self._outbox.is_busy else 0.0)

    def apply_plan(self, found: PlanResult) -> None:
        """What came of a plan."""
        now = self._given.clock.monotonic()
        self._plan_scheduler.apply_plan(found, now)
        for write in found.created:
            self._outbox.submit_action(write, now)
        self._given.executor.schedule_round(0.0)

    def apply_hold_result(self, found: HoldResult) -> None:
        """Where room is to be held."""
        now = self._given.clock.monotonic()
        create = self._plan_scheduler.apply_hold_result(found, now)
        if create is not None:
            self._outbox.submit_action(create, now)
        self._given.executor.schedule_round(0.0)

    def _put(self) -> None:
        """What became of gangs, once for all that happened since the last round: it costs what they are large."""
        touched, self._touched = self._touched, set()
        found = [(name, self.view.gang_members.get_gang(name)) for name in touched]
        # The oldest first: the queue puts a gang that becomes complete behind those that it has seen.
        for name, gang in sorted(found, key=lambda each: (0.0 if each[1] is None else each[1].newest, each[0])):
            self._waits.update_gang(name, gang)
            self.backlog.update_gang(name, gang)

    def _write(self, now: float) -> bool:
        """All that may be written now. Answers whether plans are listed again: their places look free as yet."""
        settled, wall, holds = self._given.config, self._given.clock.wall(), self._plan_scheduler.holds
        outlook = PlanFindings(
            self._crowded(), holds.unwanted_holds(now), holds.estimates(now), self.freshness.stale_reason is not None
        )
        world = self.view.reconcile_input(now, wall, outlook)
        writes = reconcile(world, settled.terms, settled.pool)
        for write in writes:
            self._outbox.submit_action(write, now)
        if self.leads:
            self.view.reservation_index.park(idle_reservations(world, settled.terms))
            for write in due_releases(settled, self.view, self.backlog, now):
                self._outbox.submit_action(write, now)
        return any(isinstance(each, WriteLedger) and each.again for each in writes)

    def _crowded(self) -> frozenset[str]:
        """Proposals for which there is no room any more, as far as is known here."""
        view, ledger = self.view, self.view.ledger
        if ledger is None or all(each.phase is not EntryPhase.PROPOSED for each in ledger.spec.entries):
            return frozenset()
        policies = self._given.policies()
        known = ExtenderView(view.cache.table, view.cache.pods, ())
        said = self._checker.acknowledge(ledger, view.cache.reservations, known, partial(policy_for_pod, policies), "")
        self._checker.retain_only(view.cache.reservations.active)
        return frozenset(said.blocked)


def _is_on_its_way(batch: Batch[Any]) -> bool:
    """Whether it tells only of pods that were let go, and are there."""
    if batch.kind is not PlannerPod or batch.removed or batch.is_full_list:
        return False
    return all(
        each.member is not None and each.member.reservation and not each.member.is_terminating for each in batch.updates
    )


def _is_new(ledger: LedgerUpdate, settle_s: float, now: float) -> bool:
    """Whether extenders may not know of it yet: by two clocks, so with a minute between them."""
    made = parse_timestamp(ledger.created)
    return made is not None and now - made < settle_s + 60.0
