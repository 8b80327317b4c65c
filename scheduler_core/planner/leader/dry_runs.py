"""Dry runs of preemption: which gangs share a search, and results until their budgets are counted. No I/O.

``shared_searches`` says for which gangs a search has the same inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler_core.planner.commit.actions import CheckBudgets
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.eviction_history import EvictionHistory, gang_key
from scheduler_core.planner.leader.preemption_search import PreemptionSearchResult
from scheduler_core.planner.leader.preemption_turns import has_waited
from scheduler_core.planner.leader.queue import GangQueue, QueuedGang
from scheduler_core.planner.leader.shared_searches import SharingRules, have_equal_requests
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.preemption.model import NoPreemption, PreemptionPlan
from scheduler_core.policy.preemption import PreemptionMode


class PreemptionReport(NamedTuple):
    """The last result for a gang, for people."""

    mode: PreemptionMode
    result: PreemptionSearchResult
    at: float  # seconds since 1970
    no_eviction: str | None = None  # why no pod is evicted

    @property
    def gang(self) -> Gang:
        """Return the gang, as it was when the search began."""
        return self.result.found.gang


class DryRuns:
    """Dry runs in one term of leadership. For one thread."""

    def __init__(self, view: PlannerView, queue: GangQueue, history: EvictionHistory, context: TermContext) -> None:
        self._view, self._queue, self._history, self._context = view, queue, history, context
        self._counted: set[GangName] = set()  # queued gangs for which a dry run has found pods
        self._unchecked: dict[GangName, Sequence[PreemptionReport]] = {}  # dry runs whose budgets are not counted yet

    def equal_gangs(self, searched: QueuedGang, rules: SharingRules, now: float) -> tuple[Gang, ...]:
        """Return the other gangs that get the result of a search, too. ``now``: monotonic seconds.

        Also gangs that were searched for less than a minute ago: so all are searched for together from now on.
        """
        policy = self._context.policies().preemption
        if policy.mode is not PreemptionMode.DRY_RUN:
            return ()
        in_progress, gangs = self._view.in_progress(), list[Gang]()
        for waiting in self._queue.ordered():
            gang = waiting.gang
            if gang.name == searched.gang.name or not has_waited(waiting, policy.wait_s, now):
                continue
            if not rules.allow(searched, waiting) or not in_progress.is_free(gang):
                continue
            if not self._history.has_failed(gang_key(gang), now):
                gangs.append(gang)
        return tuple(gangs)

    def reports_of(self, result: PreemptionSearchResult, now: float) -> list[PreemptionReport]:
        """Return the reports of a result, and note that these gangs were searched for. ``now``: monotonic seconds."""
        in_progress, wall, found = self._view.in_progress(), self._context.clock.wall(), list[PreemptionReport]()
        for each in result.by_gang():
            gang = each.found.gang
            waiting = self._queue.get_queued(gang.name)
            if waiting is None or not in_progress.is_free(waiting.gang):
                continue
            if gang is not result.found.gang and not have_equal_requests(gang, waiting.gang):
                continue  # it has changed since the search began
            self._history.mark_searched(gang.name.namespace, gang_key(gang), now)
            found.append(PreemptionReport(PreemptionMode.DRY_RUN, each, wall, each.no_eviction))
        return found

    def begin_check(self, found: PreemptionPlan, reports: Sequence[PreemptionReport]) -> CheckBudgets:
        """Return the check that the evictions would begin with. ``reports``: of the gangs that the result is for."""
        gang, evictions = found.gang.name, found.intent().evictions
        self._unchecked[gang] = reports
        return CheckBudgets(f"dry run for {gang.title}", evictions, True, gang.namespace, found.seats, gang)

    def end_check(self, gang: GangName) -> tuple[PreemptionReport, ...]:
        """Return the reports of a check that is answered, of gangs that still wait. ``gang``: that was searched for."""
        reports = self._unchecked.pop(gang, ())
        return tuple(each for each in reports if self._waits(each.gang.name))

    def report_units(self, report: PreemptionReport, before: PreemptionReport | None) -> None:
        """Report the units once while they stay the same, and count the lost work once while the gang waits.

        With ``mode: evict`` the gang would start after the first result: later ones would lose nothing more.
        """
        found = report.result.found
        assert isinstance(found, PreemptionPlan)  # only plans are checked
        if before is None or _units(before.result.found) != _units(found):
            self._context.executor.report_preemption("dry-run", found)
        if found.gang.name not in self._counted:
            self._counted.add(found.gang.name)
            self._context.executor.count_dry_run(found.gpu_hours, found.cost)

    def forget_gone(self) -> None:
        """Forget gangs that do not wait any more."""
        self._counted = {name for name in self._counted if self._waits(name)}
        self._unchecked = {
            name: reports
            for name, reports in self._unchecked.items()
            if any(self._waits(each.gang.name) for each in reports)
        }

    def _waits(self, gang: GangName) -> bool:
        return self._queue.get_queued(gang) is not None


def _units(found: PreemptionPlan | NoPreemption) -> frozenset[str]:
    return frozenset(each.name for each in found.units) if isinstance(found, PreemptionPlan) else frozenset()
