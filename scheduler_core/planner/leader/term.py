"""One term of leadership: applies events and answers, and submits writes and plans.

    events, answers ──▶ PlannerView, GangBacklog ──▶ reconcile ──▶ Outbox         (writes)
                                              └────▶ PlanScheduler                (plans, hold searches, releases)

Runs on the thread of the event loop, without I/O: ``Executor`` writes and plans, and the results come back. A term
begins without any state: it takes over the ledger first and lists everything after that, so that all writes of its
predecessor are known before it acts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from gputopo.crd.reservations import EntryPhase
from gputopo.timestamps import parse_timestamp
from scheduler_core.cache.events import Batch, LedgerUpdate, WatchStatus
from scheduler_core.cache.pod_loads import PodLoad
from scheduler_core.evaluation.reservation_check import ExtenderView, ReservationChecker
from scheduler_core.planner.commit.actions import WriteLedger
from scheduler_core.planner.commit.ledger import LedgerRole, ledger_role
from scheduler_core.planner.commit.reconcile import reconcile
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.leader.backfills import Backfills
from scheduler_core.planner.leader.backlog import GangBacklog
from scheduler_core.planner.leader.capacity_holds import CapacityHolds
from scheduler_core.planner.leader.context import Executor, PlannerConfig, TermClock, TermContext
from scheduler_core.planner.leader.freshness import Freshness
from scheduler_core.planner.leader.hold_search import HoldResult
from scheduler_core.planner.leader.outbox import UNGATING_DELAY_S, Outbox
from scheduler_core.planner.leader.plan_task import PlanResult
from scheduler_core.planner.leader.preemption_search import PreemptionSearchResult
from scheduler_core.planner.leader.preemptions import Preemptions
from scheduler_core.planner.leader.scheduling import PlanScheduler
from scheduler_core.planner.leader.view import PlanFindings, PlannerView
from scheduler_core.planner.leader.writer import WriteAnswer
from scheduler_core.policy.profiles import Policies

_BATCH_DELAY_S = 0.03  # events within this time are handled by one round: a round costs the same for one and a hundred
_FREED_DELAY_S = 0.3  # the same, where pods without GPUs ended: gangs that wait are planned again
_CLOCK_SKEW_S = 60.0  # between the planner and the API server
_log = logging.getLogger(__name__)


class LeaderTerm:
    """From taking over the ledger until another planner does, or the Lease is lost."""

    def __init__(
        self,
        config: PlannerConfig,
        policies: Callable[[], Policies],
        identity: str,
        executor: Executor,
        clock: TermClock,
        freshness: Freshness | None = None,
    ) -> None:
        context = TermContext(config, policies, executor, clock)
        self.view = PlannerView(
            policies().node_policy,
            config.pool,
            identity,
            guarded=config.terms.guarded,
            heartbeats=config.heartbeats,
        )
        self.backlog = GangBacklog(context, self.view.gang_members)
        self.freshness = freshness or Freshness()
        self.is_deposed = False
        self.leads = False  # the ledger names this term
        self._context, self._identity = context, identity
        self._ledger_read = False
        self._scheduler = PlanScheduler(context, self.view, self.backlog)
        self._outbox = Outbox(context, self.view, self.backlog, self._scheduler.preemptions)
        self._checker = ReservationChecker()
        self._touched: set[GangName] = set()  # gangs that may have changed since the last round

    def apply_batch(self, batch: Batch[Any]) -> None:
        """Apply events of a watch."""
        are_loads, freed = self._are_loads(batch), self.view.loads.times_freed
        self._touched |= self.view.apply_batch(batch, self._context.clock.wall())
        if not are_loads:
            self._schedule_round(UNGATING_DELAY_S if _is_of_ungated_pods(batch) else _BATCH_DELAY_S)
        elif self.view.loads.times_freed != freed and self.backlog.queue.count_unplaced():
            self._schedule_round(_FREED_DELAY_S)

    def tick(self, watches: Iterable[WatchStatus] = ()) -> None:
        """Let time pass. ``watches``: their present status."""
        wall = self._context.clock.wall()
        self.view.advance_time(wall)
        if self.view.cache.synced:
            written_at = self.view.oldest_unseen_write_at()
            lag_s = None if written_at is None else wall - written_at
            self.freshness.update(watches, lag_s, self._context.clock.monotonic())
        self._schedule_round()

    def apply_ledger(self, ledger: LedgerUpdate | None) -> None:
        """Apply the ledger as it is when the term begins."""
        wall = self._context.clock.wall()
        self.view.apply_ledger(ledger, wall)
        if ledger is not None and _is_new(ledger, self._context.config.terms.settle_s, wall):
            self.view.observations = self.view.observations._replace(is_new_ledger=True)
        self._ledger_read = True
        self._schedule_round()

    def run_round(self) -> None:
        """Submit all writes and plans that are due now."""
        now = self._context.clock.monotonic()
        if not self._ledger_read or self.is_deposed or self._outbox.is_paused(now):
            return
        ledger = self.view.ledger
        is_own = ledger_role(ledger, self._identity) is LedgerRole.LEAD
        if self.leads and not is_own:
            self.is_deposed = True
            _log.warning("deposed", extra={"fields": {"planner": ledger.spec.planner if ledger else None}})
            return
        self.leads = is_own
        if is_own and not self.view.cache.synced:
            return
        self._update_backlog()
        self.view.observe(now)
        if is_own:
            self._scheduler.preemptions.observe_ledger(now)
        is_plan_restored = self._submit_writes(now)
        if is_own and not self._is_stale and not self._outbox.is_writing_plan and not is_plan_restored:
            self._scheduler.start_next_plan(now)

    def apply_answer(self, answer: WriteAnswer) -> None:
        """Apply the answer to a write."""
        self._touched |= self._outbox.apply_answer(answer)

    def apply_plan(self, result: PlanResult) -> None:
        """Apply the result of a plan."""
        now = self._context.clock.monotonic()
        self._scheduler.apply_plan(result, now)
        for action in result.created:
            self._outbox.submit_action(action, now)
        self._schedule_round()

    def apply_hold_result(self, result: HoldResult) -> None:
        """Apply the result of a hold search."""
        now = self._context.clock.monotonic()
        action = self._scheduler.apply_hold_result(result, now)
        if action is not None:
            self._outbox.submit_action(action, now)
        self._schedule_round()

    def apply_preemption_result(self, result: PreemptionSearchResult) -> None:
        """Apply the result of a search of pods to evict. Nothing is begun while the view may be old."""
        now = self._context.clock.monotonic()
        action = self._scheduler.apply_preemption_result(result, now)
        if action is not None and not self._is_stale:
            self._outbox.submit_action(action, now)
        self._schedule_round()

    @property
    def preemptions(self) -> Preemptions:
        """The preemptions."""
        return self._scheduler.preemptions

    @property
    def holds(self) -> CapacityHolds:
        """The capacity holds."""
        return self._scheduler.holds

    @property
    def backfills(self) -> Backfills:
        """The gangs on capacity that is held for other gangs."""
        return self._scheduler.backfills

    def _are_loads(self, batch: Batch[Any]) -> bool:
        """Return whether a batch concerns only pods without GPUs: there are many, and no write depends on them."""
        if batch.kind is not PlannerPod or batch.is_full_list:
            return False
        uids = [*batch.removed, *(each.key for each in batch.updates if isinstance(each, PodLoad))]
        is_all = len(uids) == len(batch.removed) + len(batch.updates)
        return is_all and all(not self.view.is_known_pod(uid) for uid in uids)

    @property
    def _is_stale(self) -> bool:
        return self.freshness.stale_reason is not None

    def _schedule_round(self, seconds: float = 0.0) -> None:
        self._context.executor.schedule_round(seconds)

    def _update_backlog(self) -> None:
        """Apply changed gangs once for all events since the last round: the cost depends on their size."""
        touched, self._touched = self._touched, set()
        found = [(name, self.view.gang_members.get_gang(name)) for name in touched]
        # Oldest first: the queue orders a gang that becomes complete behind all gangs that it has seen.
        for name, gang in sorted(found, key=lambda each: (0.0 if each[1] is None else each[1].newest, each[0])):
            self.backlog.update_gang(name, gang)

    def _submit_writes(self, now: float) -> bool:
        """Submit the writes of this round. Return whether lost plans are listed again: their places seem free yet."""
        config, wall, holds = self._context.config, self._context.clock.wall(), self._scheduler.holds
        self._scheduler.preemptions.note_forbidden(now)
        findings = PlanFindings(
            no_longer_fitting=self._no_longer_fitting(),
            unwanted_holds=holds.unwanted_holds(now) | self._scheduler.preemptions.unwanted_holds(),
            estimates=holds.estimates(now),
            hold_users=holds.users,
            may_evict=self._scheduler.preemptions.may_evict(),
            has_stale_view=self._is_stale,
        )
        state = self.view.reconcile_input(now, wall, findings)
        state = state._replace(
            unproved=self._scheduler.checks.unproved(state),
            proved_seats=self._scheduler.checks.proved_seats(),
            cooldown_s=self._context.policies().preemption.cooldown_s,
            in_flight=self._outbox.in_flight,
        )
        self._scheduler.preemptions.observe_evictions(state)
        terms = config.terms._replace(max_timeout_s=self._context.policies().limits.max_timeout_s)
        actions, idle = reconcile(state, terms, config.pool)
        self.view.reservation_index.park(idle)
        for action in actions:
            self._outbox.submit_action(action, now)
        if self.leads:
            scheduler = self._scheduler
            for write in chain(
                scheduler.due_hand_overs(), scheduler.due_releases(now), scheduler.due_node_requests(now)
            ):
                self._outbox.submit_action(write, now)
        return any(isinstance(each, WriteLedger) and each.relisted for each in actions)

    def _no_longer_fitting(self) -> frozenset[str]:
        """Return the UIDs of proposals that do not fit any more, as far as this planner knows."""
        view, ledger = self.view, self.view.ledger
        if ledger is None or all(each.phase is not EntryPhase.PROPOSED for each in ledger.spec.entries):
            return frozenset()
        known = ExtenderView(view.cache.snapshot, view.cache.pods, ())
        policies = self._context.policies()
        checked = self._checker.acknowledge(
            ledger, view.cache.reservations, known, lambda pod: policies.policy_for(pod.request), ""
        )
        self._checker.retain_only(view.cache.reservations.active)
        return frozenset(checked.blocked)


def _is_of_ungated_pods(batch: Batch[Any]) -> bool:
    """Return True if the batch consists of ungated pods that are not terminating."""
    if batch.kind is not PlannerPod or batch.removed or batch.is_full_list:
        return False
    return all(
        isinstance(each, PlannerPod)
        and each.member is not None
        and each.member.reservation
        and not each.member.is_terminating
        for each in batch.updates
    )


def _is_new(ledger: LedgerUpdate, settle_s: float, now: float) -> bool:
    """Return True if extenders may not know of the ledger yet."""
    created = parse_timestamp(ledger.created)
    return created is not None and now - created < settle_s + _CLOCK_SKEW_S
