"""Searches the pods to evict for a gang that does not fit. Pure: it runs on the hold search thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from gputopo.crd.reservations import PlannedMember
from gputopo.timestamps import format_timestamp
from scheduler_core.evaluation.job_times import NearEndSince
from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.forbidden_units import ForbiddenNames
from scheduler_core.planner.leader.plan_task import ReservationNames, create_hold
from scheduler_core.planner.packing.model import NodeView, PlanOptions
from scheduler_core.planner.preemption.inputs import UnitInputs
from scheduler_core.planner.preemption.model import (
    EvictionUnit,
    NoPreemption,
    PreemptionPlan,
    PreemptionTask,
    VictimPod,
)
from scheduler_core.planner.preemption.recheck import PlannedPods, prove_evictions
from scheduler_core.planner.preemption.search import FITS_ALREADY, search_preemption
from scheduler_core.planner.preemption.units import UnitsFound, ending_pods, find_units
from scheduler_core.policy.policy import Policy

FORBIDDEN = (
    "a PodDisruptionBudget, too little CPU or memory on its node, or a refused eviction forbade it a short time ago"
)


class PreemptionSearch(NamedTuple):
    """A gang that may take capacity from other pods, and the cluster."""

    units: UnitInputs
    view: NodeView  # without the gang's own hold and holds of lower priorities
    options: PlanOptions
    policy: Policy  # for node states
    names: ReservationNames
    forbidden: ForbiddenNames = ForbiddenNames()  # by PodDisruptionBudgets
    held_since: str | None = None  # of its present hold
    is_out_of_time: Callable[[], bool] = lambda: False
    yields: tuple[EvictionUnit, ...] = ()  # backfilled gangs: if there are any, only these are evicted
    ending: tuple[VictimPod, ...] = ()  # with ``yields``: running pods that are expected to end before these
    planned: PlannedPods | None = None  # evictions in progress that are proved again, in place of a search
    equal_gangs: tuple[Gang, ...] = ()  # for which a search would have the same inputs: the result is theirs, too

    @property
    def gang(self) -> Gang:
        """Return the gang that needs the capacity."""
        return self.units.beneficiary

    def forbids(self, unit: EvictionUnit) -> bool:
        """Return whether PodDisruptionBudgets forbade the unit, one of its pods, or several units of its namespace."""
        units, pods, namespaces = self.forbidden
        return unit.name in units or any(each.uid in pods or each.namespace in namespaces for each in unit.pods)


class PreemptionSearchResult(NamedTuple):
    """Result of a search."""

    found: PreemptionPlan | NoPreemption
    create: CreateReservation | None = None  # the hold with the intent; None: nothing is evicted
    near_end_since: Mapping[str, NearEndSince] = {}  # for the next search
    cpu_s: float = 0.0
    is_yield: bool = False  # of a search with ``PreemptionSearch.yields``
    is_check: bool = False  # of ``PreemptionSearch.planned``: nothing is created
    seats: tuple[PlannedMember, ...] = ()  # of ``PreemptionSearch.planned``: of the gang, once the pods are gone
    changed: str | None = None  # of ``PreemptionSearch.planned``: as ``EvictionProof.changed``
    protected: Mapping[str, int] = {}  # number of units that are not evicted, by reason for people
    equal_gangs: tuple[Gang, ...] = ()  # as in ``PreemptionSearch``

    @property
    def no_eviction(self) -> str | None:
        """Return why no pod is evicted, for people; None: pods are to be evicted, or the gang fits without that."""
        if not isinstance(self.found, NoPreemption) or self.found.reason == FITS_ALREADY:
            return None
        units = sorted(self.protected.items(), key=lambda each: (-each[1], each[0]))
        protected = ", ".join(f"{number} because {reason}" for reason, number in units)
        return self.found.reason + (f"; units that are not evicted: {protected}" if protected else "")

    def by_gang(self) -> Iterator[PreemptionSearchResult]:
        """Yield the result of each gang, first that of the gang that was searched for. The others get no hold."""
        yield self._replace(equal_gangs=())
        for gang in self.equal_gangs:
            found = self.found._replace(gang=gang)
            if isinstance(found, PreemptionPlan):
                found = found._replace(seats=())  # which name the members of the first gang
            yield self._replace(found=found, create=None, equal_gangs=())


def run_preemption_search(search: PreemptionSearch) -> PreemptionSearchResult:
    """Return the cheapest units found, and the hold that reserves their devices for the gang."""
    if search.planned is not None:
        return _check(search, search.planned)
    return _search(search)._replace(equal_gangs=search.equal_gangs)


def _search(search: PreemptionSearch) -> PreemptionSearchResult:
    gang, now, policy = search.gang, search.units.now, search.units.policy
    yields = search.yields
    ending = (*ending_pods(search.units), *search.ending) if yields else ()
    known = UnitsFound(yields, ending) if yields else find_units(search.units)
    protected = Counter(each.value for each in known.protected.values())
    if forbidden := sum(map(search.forbids, known.units)):
        protected[FORBIDDEN] = forbidden
    task = PreemptionTask(
        gang=gang,
        view=search.view,
        units=tuple(each for each in known.units if not search.forbids(each)),
        options=search.options,
        policy=search.policy,
        now=now,
        max_plans=policy.max_plans,
        is_out_of_time=search.is_out_of_time,
        ending=known.ending,
        has_all_units=known.is_complete,
    )
    found = search_preemption(task)
    if isinstance(found, NoPreemption) or not found.held:
        return PreemptionSearchResult(
            found, None, known.near_end_since, is_yield=bool(yields), protected=dict(protected)
        )
    since = search.held_since or format_timestamp(now)
    intent = msgspec.structs.replace(found.intent(policy.timeout_s), yields=bool(yields))
    create = create_hold(gang, found.held, search.names, since, intent)
    return PreemptionSearchResult(found, create, known.near_end_since, is_yield=bool(yields))


def _check(search: PreemptionSearch, planned: PlannedPods) -> PreemptionSearchResult:
    """Prove evictions in progress again."""
    ending = ending_pods(search.units)
    task = PreemptionTask(search.gang, search.view, (), search.options, search.policy, search.units.now, ending=ending)
    # Without a limit of time: a unit that was not found would look as if its pods had changed.
    why_not, seats, changed = prove_evictions(planned, task, search.units._replace(is_out_of_time=lambda: False))
    found = NoPreemption(search.gang, FITS_ALREADY if why_not is None else why_not, 1)
    return PreemptionSearchResult(found, is_check=True, seats=seats, changed=changed)
