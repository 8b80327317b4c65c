"""Preemption for gangs that do not fit: which gang may search, what follows from a result, and its limits. No I/O.

A gang searches once it has waited for ``wait``, in a time window of the policy. In dry-run mode the result is only
reported. After a preemption that ends without the gang in its places, the gang waits longer before the next one: the
time is doubled each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf

from gputopo.crd.reservations import PlannedEviction
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.evaluation.job_times import NearEndSince
from scheduler_core.planner.commit.actions import CheckBudgets, CreateReservation, EvictPod, reserved_gang
from scheduler_core.planner.commit.eviction_progress import (
    EvictionProgress,
    eviction_progress,
    refused_units,
    unfinished_evictions,
)
from scheduler_core.planner.commit.observations import BudgetCheck
from scheduler_core.planner.commit.past_preemptions import devices_to_protect, shared_namespace
from scheduler_core.planner.commit.state import ReconcileInput
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.capacity_holds import EVERY_S, CapacityHolds
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.dry_runs import DryRuns, PreemptionReport
from scheduler_core.planner.leader.eviction_history import EvictedFrom, EvictionHistory, EvictionLimit, gang_key
from scheduler_core.planner.leader.forbidden_units import ForbiddenUnits
from scheduler_core.planner.leader.hold_limits import CapacityHold
from scheduler_core.planner.leader.preemption_outcomes import PreemptionOutcomes
from scheduler_core.planner.leader.preemption_search import PreemptionSearchResult
from scheduler_core.planner.leader.preemption_turns import evictions_for, has_waited
from scheduler_core.planner.leader.queue import GangQueue, QueuedGang
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.preemption.inputs import EvictedDevices
from scheduler_core.planner.preemption.model import EvictionUnit, NoPreemption, PreemptionPlan
from scheduler_core.policy.preemption import PreemptionMode, PreemptionPolicy, window_text

OVER_LIMIT = "it would be over the limit of evictions per hour (preemption.maxEvictionsPerHour)"
_MOST_WINDOWS = 3  # that a reason names
_GIVEN_UP = (
    "pods were evicted for a gang of its namespace that was deleted or changed before it started: for some minutes "
    "no pod is evicted for its gangs, and they get no new capacity hold"
)
PAUSE_FACTOR = 9.0  # after a search, none is started for nine times its CPU time


class Preemptions:
    """Preemption in one term of leadership. For one thread."""

    def __init__(self, view: PlannerView, queue: GangQueue, holds: CapacityHolds, context: TermContext) -> None:
        self.reports: dict[GangName, PreemptionReport] = {}  # of queued gangs
        self.near_end_since: Mapping[str, NearEndSince] = {}
        self._view, self._queue, self._holds, self._context = view, queue, holds, context
        self._history = EvictionHistory()
        self._outcomes = PreemptionOutcomes(view, self._history, context)
        self.holds_in_a_unit: frozenset[str] = frozenset()  # UIDs: a begun unit is not evicted completely
        self._running: set[str] = set()  # UIDs of holds whose evictions are not over
        self.beneficiaries: frozenset[GangName] = frozenset()  # the gangs of these holds
        self._unaccepted: set[str] = set()  # UIDs of those of which evictions are not accepted yet
        self._done_at: dict[str, float] = {}  # by UID of a hold: since when no pod is left, monotonic seconds
        self._over: set[str] = set()  # UIDs of holds whose evictions are over, and counted as failed
        self.forbidden = ForbiddenUnits()
        self._next_search = self._next_pass = 0.0  # monotonic seconds
        self._unplaced_count = 0  # gangs that did not fit, at the last pass over the queue that found none
        self._is_turn_of_all = False  # the next search is for a gang of any priority
        self.dry_runs = DryRuns(view, queue, self._history, context)

    def next_gang(self, now: float) -> QueuedGang | None:
        """Return the next gang to search for; None: none may. ``now``: monotonic seconds.

        Every other search is for a gang of the highest priority, the others are for gangs of all priorities. Namespaces
        take turns, and so do the gangs of one: a search may take long, and gangs that fit nowhere are searched for
        again and again. A pass over the queue that finds none is not repeated for ``EVERY_S``, unless the number of
        gangs that do not fit changes.
        """
        policy = self._policy
        # A result of another mode is out of date.
        self.reports = {name: each for name, each in self.reports.items() if each.mode is policy.mode}
        unplaced = self._queue.count_unplaced()
        if now < self._next_search or (now < self._next_pass and unplaced == self._unplaced_count):
            return None
        self._forget_old(now)  # also with the mode off: backfilled pods are evicted in any mode
        if policy.mode is PreemptionMode.OFF or not policy.is_open(self._context.clock.wall()) or not unplaced:
            return None
        holds, in_progress = self._holds.open_holds(), self._view.in_progress()
        running = [each for each in holds if each.reservation.key in self._running]
        observations, unaccepted = self._view.observations, self._unaccepted
        evicting = [evictions_for(each, observations, each.reservation.key in unaccepted, now) for each in running]
        found, next_turn = None, (inf, inf)
        for waiting in self._queue.ordered():
            gang = waiting.gang
            if found is not None and gang.priority < found.gang.priority and not self._is_turn_of_all:
                break
            if not has_waited(waiting, policy.wait_s, now):
                continue
            key = gang_key(gang)
            turn = self._history.turn(gang.name.namespace, key)
            if turn >= next_turn or not self._history.may_search(key, now):
                continue
            if gang.name in self.beneficiaries or any(each.delays(gang) for each in evicting):
                continue
            if self.has_given_up(gang.name.namespace, now) or not in_progress.is_free(gang):
                continue
            if policy.mode is PreemptionMode.DRY_RUN or self._holds.limits.allow(
                gang.name, gang.priority, gang.asks.total(), holds, now
            ):
                found, next_turn = waiting, turn
        if found is None:
            self._next_pass, self._unplaced_count = now + EVERY_S, unplaced
        return found

    def has_given_up(self, namespace: str, now: float) -> bool:
        """Return True while the gangs of a namespace wait because pods were evicted for gangs that it gave up."""
        return self._history.has_given_up(namespace, now) or namespace in self._outcomes.abandoned_namespaces

    def no_eviction(self, waiting: QueuedGang) -> str | None:
        """Return why no pod is evicted for a waiting gang, for people; None: unknown, or pods are evicted for it."""
        policy = self._policy
        is_closed = policy.mode is not PreemptionMode.OFF and not policy.is_open(self._context.clock.wall())
        if is_closed and waiting.unfit_state is not None:
            windows = "; ".join(map(window_text, policy.windows[:_MOST_WINDOWS]))
            return f"no time window of the policy is open now (preemption.windows: {windows})"
        name = waiting.gang.name
        if name in self.beneficiaries:
            return None
        if self.has_given_up(name.namespace, self._context.clock.monotonic()):
            return _GIVEN_UP
        report = self.reports.get(name)
        return None if report is None else report.no_eviction

    def allow_search_again(self, gang: Gang, now: float) -> None:
        """Let the next search for a gang begin at once. ``now``: monotonic seconds."""
        self._history.allow_search_again(gang_key(gang), now)

    def evictions_left(self, now: float, shared: str | None = None, beneficiary: str | None = None) -> int:
        """Return how many pods with GPUs may be evicted yet within this hour. ``now``: monotonic seconds.

        ``shared``: the namespace of pods and gang; None: for gangs of other namespaces. ``beneficiary``: the namespace
        of the gang, if known: once it has used half of the limit, the rest is for other namespaces. A tenant must not
        use up what others need. Evictions of earlier leaders count for both.
        """
        limit = self._policy.max_evictions_per_hour
        if beneficiary is not None and shared is None:
            planned = {each.uid for name, each in self._intended() if name == beneficiary != each.namespace}
            if 2 * self._history.count_evictions_for(beneficiary, planned, now) >= limit:
                return 0
        intended = {each.uid for name, each in self._intended() if shared_namespace(each.namespace, name) == shared}
        evicted = self._history.count_evictions(intended, now, shared)
        evicted += self._history.count_inherited(self._context.clock.wall())
        return max(0, limit - evicted)

    def observe_ledger(self, now: float) -> None:
        """Count the preemptions that have ended. Called after each change of the ledger."""
        if self._view.ledger is not None:
            self._history.inherit(self._view.ledger.spec.preemptions)
        self._outcomes.observe_ledger(now)

    def evicted(self) -> Mapping[str, tuple[EvictedDevices, ...]]:
        """Return the devices of evicted pods by key of the unit, also of earlier leaders."""
        return self._history.evicted()

    def unwanted_holds(self) -> frozenset[str]:
        """Return the UIDs of holds with evictions that are not begun, where the policy allows no eviction now."""
        if self.may_evict():
            return frozenset()
        found = (each.reservation for each in self._holds.open_holds() if each.spec.preemption is not None)
        return frozenset(
            each.key
            for each in found
            if not each.status.evicting and each.spec.preemption is not None and not each.spec.preemption.yields
        )

    @property
    def over(self) -> frozenset[str]:
        """The UIDs of holds whose evictions are over, and whose gang has not started."""
        return frozenset(self._over)

    def may_evict(self) -> bool:
        """Return True if the policy allows to evict pods now."""
        return self._policy.mode is PreemptionMode.EVICT and self._policy.is_open(self._context.clock.wall())

    def observe_evictions(self, inputs: ReconcileInput) -> None:
        """Find the holds whose evictions are over: other gangs of their priority may preempt."""
        intents = {
            each.reservation.key: (each, intent)
            for each in self._holds.open_holds()
            if (intent := each.spec.preemption) is not None
        }
        found = {uid: eviction_progress(inputs, hold.reservation, intent) for uid, (hold, intent) in intents.items()}
        done = [uid for uid, each in found.items() if each is EvictionProgress.DONE]
        self._done_at = {uid: self._done_at.get(uid, inputs.now) for uid in done}
        # Kubelets take a while to release the devices.
        late = {uid for uid, at in self._done_at.items() if inputs.now - at >= intents[uid][1].timeout_s}
        over = late | {uid for uid, each in found.items() if each is EvictionProgress.OVER}
        # A budget may forbid the eviction of backfilled pods until they end: others need not wait for that.
        self._running = {
            uid
            for uid, (hold, intent) in intents.items()
            if uid not in over and (hold.reservation.status.evicting or not intent.yields)
        }
        self.beneficiaries = frozenset(intents[uid][0].gang for uid in self._running)
        for uid in over - self._over:
            hold, intent = intents[uid]
            gang = self._view.gang_members.get_gang(hold.gang)
            if refused := refused_units(inputs, hold.reservation, intent):
                self._note_refused(hold, refused, inputs.now)
            elif gang is not None:
                self._history.mark_failed(gang_key(gang), inputs.now)
        self._over = over
        left = {uid: unfinished_evictions(inputs, intents[uid][1]) for uid in self._running}
        self._unaccepted = {uid for uid, evictions in left.items() if evictions}
        self.holds_in_a_unit = frozenset(
            uid
            for uid, evictions in left.items()
            if any(each.unit in intents[uid][0].reservation.status.evicting for each in evictions)
        )

    def _note_refused(self, hold: CapacityHold, refused: Mapping[str, str], now: float) -> None:
        """Let the gang search for other pods at once: these evictions are refused. ``refused``: unit -> why."""
        self.forbidden.refuse(refused, now)
        unit, why = next(iter(refused.items()))
        self._context.executor.report_no_preemption(hold.gang, f"{unit} is not evicted: {why}")
        gang = self._view.gang_members.get_gang(hold.gang)
        if gang is not None:
            self._history.allow_search_again(gang_key(gang), now)

    def note_forbidden(self, now: float) -> None:
        """Remember the units that the budgets of an open intent forbid, before the hold is removed."""
        for uid, check in self._view.observations.budgets.items():
            reservation = self._view.reservations.get(uid)
            intent = None if reservation is None else reservation.spec.preemption
            if not check.blocked or reservation is None or (intent is not None and intent.yields):
                continue
            if reservation.status.evicting:  # the hold stays
                continue
            self._report_forbidden(reservation, check, now)
            self.forbidden.apply_check(check, now)
            gang = self._view.gang_members.get_gang(GangName(reservation.namespace, reservation.spec.gang))
            if gang is not None:
                self._history.allow_search_again(gang_key(gang), now)

    def _report_forbidden(self, reservation: ReservationUpdate, check: BudgetCheck, now: float) -> None:
        """Report the budget that forbids a unit, once for each count."""
        known = self.forbidden.names(now).units
        found = next(((unit, why) for unit, why in check.blocked.items() if unit not in known), None)
        gang = reserved_gang(reservation)
        if found is not None and gang is not None:
            self._context.executor.report_no_preemption(gang, f"{found[0]} is not evicted: {found[1]}")

    def apply_result(self, result: PreemptionSearchResult, now: float) -> CreateReservation | CheckBudgets | None:
        """Report a result. Return the hold to create, or the check of a dry run; None: above a limit, or no result."""
        gang, policy = result.found.gang, self._policy
        self.near_end_since = result.near_end_since
        self._next_search = now + PAUSE_FACTOR * result.cpu_s
        self._is_turn_of_all = not self._is_turn_of_all
        self._history.mark_searched(gang.name.namespace, gang_key(gang), now)
        waiting = self._queue.get_queued(gang.name)
        if waiting is None or not self._view.in_progress().is_free(waiting.gang):
            return None
        if policy.mode is PreemptionMode.DRY_RUN:
            reports = self.dry_runs.reports_of(result, now)
            if isinstance(result.found, PreemptionPlan):
                return self.dry_runs.begin_check(result.found, reports)
            for report in reports:
                self._keep_report(report)
            return None
        over = OVER_LIMIT if self._is_over_limit(result.found, now) and policy.mode is PreemptionMode.EVICT else None
        report = PreemptionReport(policy.mode, result, self._context.clock.wall(), result.no_eviction or over)
        self._keep_report(report)
        if not isinstance(result.found, PreemptionPlan) or result.create is None:
            return None
        if policy.mode is not PreemptionMode.EVICT:
            return None
        if over is not None:
            self._context.executor.report_preemption("over-limit", result.found)
            return None
        self._context.executor.report_preemption("planned", result.found)
        return result.create

    def _keep_report(self, report: PreemptionReport) -> None:
        """Keep the last report of a gang, and say why no pod is evicted if that is new."""
        name, why = report.gang.name, report.no_eviction
        before = self.reports.get(name)
        self.reports[name] = report
        is_plan = isinstance(report.result.found, PreemptionPlan) and report.result.create is not None
        if not is_plan and why is not None and (before is None or before.no_eviction != why):
            self._context.executor.report_no_preemption(name, why)

    def apply_dry_run_check(self, gang: GangName, check: BudgetCheck, now: float) -> None:
        """Report a dry run whose budgets are counted, or let another search begin without what they forbid."""
        reports = self.dry_runs.end_check(gang)
        if not reports or self._policy.mode is not PreemptionMode.DRY_RUN:
            return
        if not check.blocked:
            for report in reports:
                before = self.reports.get(report.gang.name)
                self.reports[report.gang.name] = report
                self.dry_runs.report_units(report, before)
            return
        self.forbidden.apply_check(check, now)
        for report in reports:
            self._history.allow_search_again(gang_key(report.gang), now)
        unit, why = next(iter(check.blocked.items()))
        reason = f"{unit} is not evicted: {why}"
        report = reports[0]  # of the gang that was searched for, unless that is gone
        before = self.reports.get(report.gang.name)
        if before is None or (before.no_eviction not in (None, reason)):  # else the next search says more
            result = PreemptionSearchResult(NoPreemption(report.gang, reason))
            self.reports[report.gang.name] = report._replace(result=result, no_eviction=reason)
            self._context.executor.report_no_preemption(report.gang.name, reason)

    def _is_over_limit(self, found: PreemptionPlan | NoPreemption, now: float) -> bool:
        if not isinstance(found, PreemptionPlan):
            return False
        namespace = found.gang.name.namespace
        numbers = Counter(shared_namespace(pod.namespace, namespace) for pod in found.pods if pod.devices)
        return any(number > self.evictions_left(now, shared, namespace) for shared, number in numbers.items())

    def mark_evicted(self, action: EvictPod, now: float) -> bool:
        """Record the first accepted eviction of a pod. Return True if its workload was evicted not long ago.

        ``now``: monotonic seconds.
        """
        name = action.eviction.unit
        unit = EvictedFrom(action.eviction.key or name, action.reservation.key)
        intent = action.reservation.spec.preemption
        is_limited = (intent is None or not intent.yields) and action.eviction.gpus > 0
        beneficiary = action.reservation.namespace
        limit = (
            EvictionLimit(shared_namespace(action.eviction.namespace, beneficiary), beneficiary) if is_limited else None
        )
        wall, devices = self._context.clock.wall(), devices_to_protect(action.eviction, beneficiary)
        evicted = EvictedDevices(wall, devices, action.reservation.spec.priority)
        return self._history.mark_evicted(action.eviction.uid, unit, evicted, now, limit)

    def chosen_unit(self, action: EvictPod) -> EvictionUnit | None:
        """Return the unit of the pod with its rule and reason; None: an earlier leader chose it, or it was backfilled.

        The result of the search stays known as long as the gang waits, and pods are evicted only for waiting gangs.
        """
        hold, intent = action.reservation, action.reservation.spec.preemption
        gang = reserved_gang(hold)
        report = self.reports.get(gang) if gang is not None and intent is not None and not intent.yields else None
        if report is None or not isinstance(report.result.found, PreemptionPlan):
            return None
        uid = action.eviction.uid
        return next((each for each in report.result.found.units if any(pod.uid == uid for pod in each.pods)), None)

    @property
    def _policy(self) -> PreemptionPolicy:
        return self._context.policies().preemption

    def _intended(self) -> Iterator[tuple[str, PlannedEviction]]:
        """Yield the evictions of open intents, with the namespace of the gang. They count until they are over.

        Those of backfilled pods and of pods without GPUs are not limited.
        """
        left_out = self._over | self._history.inherited
        for each in self._holds.open_holds():
            intent = each.spec.preemption
            if intent is not None and not intent.yields and each.reservation.key not in left_out:
                yield from ((each.gang.namespace, eviction) for eviction in intent.evictions if eviction.gpus)

    def _forget_old(self, now: float) -> None:
        self.reports = {name: each for name, each in self.reports.items() if self._queue.get_queued(name) is not None}
        self.dry_runs.forget_gone()
        self._history.forget_old(now, self._context.clock.wall(), self._policy.cooldown_s)
