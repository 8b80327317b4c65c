"""Preemptions in progress, from reservations, and results of the dry run, from the planner's page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from gputopo.crd.reservations import EntryPhase, Preemption
from gputopo.render import report
from gputopo.render.report import NONE, Cell, Table
from gputopo.render.wording import escape_invisible, format_number
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import reserved_gang
from scheduler_core.planner.gang.gang import single_pod_of
from scheduler_core.planner.report.planner_page import PlannerGangState
from scheduler_core.planner.report.read import GangSnapshot

EVICTING, DRY_RUN = "evicting", "dry-run"
_MOST_UNITS = 3  # in a cell
PREEMPTION_DROPPABLE = ("RULE", "DEADLINE", "COST", "GPU-HOURS")


class UnitSummary(msgspec.Struct, frozen=True, rename="camel"):
    """The work that is lost with one unit."""

    name: str  # gang or single pod, NAMESPACE/NAME
    pods: int  # to be evicted
    gpu_hours: float
    cost: float | None  # None: unknown
    rule: str  # of the policy file
    reason: str  # the workload class, and the age of the last checkpoint


class PreemptionSummary(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A preemption for a gang. None: unknown or absent."""

    namespace: str
    gang: str
    mode: str  # EVICTING, DRY_RUN
    units: tuple[str, ...]  # gangs and single pods, NAMESPACE/NAME
    pods: int  # to be evicted
    pods_left: int | None = None  # of these, pods with GPUs that still exist; None: a dry run
    gpu_hours: float  # work that is lost
    cost: float | None = None  # the same as money, in the unit of node-cost-per-hour
    rule: str  # of the policy file
    reason: str
    deadline: str | None = None  # RFC 3339: until when further units may be begun
    reservation: str | None = None
    stuck: tuple[str, ...] = ()  # evicted pods that did not end in time, NAMESPACE/NAME
    status: str | UnsetType = UNSET  # what the planner does now, or why it evicts no more pods
    is_begun: bool | UnsetType = UNSET  # False: no unit is begun
    unit_costs: tuple[UnitSummary, ...] | UnsetType = UNSET  # of a dry run

    @property
    def present_reason(self) -> str:
        """Return what the planner does now; if that is unknown, why it chose these units."""
        return self.reason if isinstance(self.status, UnsetType) else self.status


def running_preemptions(snapshot: GangSnapshot, namespace: str | None) -> tuple[PreemptionSummary, ...]:
    """Return the preemptions of holds in effect, by namespace and gang. ``namespace``: of the gangs; None: all.

    Without the right to read ledgers, all holds count.
    """
    reserved = snapshot.view.cache.reservations
    held = {uid for uid, each in reserved.active.items() if each.entry.phase is EntryPhase.HELD}
    found = [
        _running(each, each.spec.preemption, snapshot)
        for each in reserved.reservations.values()
        if each.spec.preemption is not None
        and (each.key in held or not snapshot.ledgers)
        and namespace in (None, each.namespace)
    ]
    return tuple(sorted(found, key=_order))


def dry_run_preemptions(states: Iterable[PlannerGangState], namespace: str | None) -> tuple[PreemptionSummary, ...]:
    """Return what the planner would have evicted, by namespace and gang."""
    found = [
        PreemptionSummary(
            namespace=each.namespace,
            gang=each.pod or each.name,
            mode=DRY_RUN,
            units=dry.units,
            pods=dry.pods,
            gpu_hours=dry.gpu_hours,
            cost=dry.cost,
            rule=dry.rule,
            reason=dry.reason,
            unit_costs=tuple(UnitSummary(**asdict(one)) for one in dry.unit_costs) or UNSET,
        )
        for each in states
        if (dry := each.dry_run) is not None and namespace in (None, each.namespace)
    ]
    return tuple(sorted(found, key=_order))


def preemption_list(found: Sequence[PreemptionSummary]) -> dict[str, Any]:
    """Return the preemptions as a document of kind ``PreemptionList``, in the order given."""
    return report.document("PreemptionList", {"items": list(found)})


def preemption_table(found: Iterable[PreemptionSummary]) -> Table:
    """Return a row for each preemption, in the order given."""
    titles = ("NAMESPACE", "GANG", "MODE", "UNITS", "PODS LEFT", "GPU-HOURS", "COST", "DEADLINE", "RULE", "REASON")
    return Table(titles, [_row(each) for each in found], droppable=PREEMPTION_DROPPABLE)


def _order(each: PreemptionSummary) -> tuple[str, str]:
    return each.namespace, each.gang


def _running(each: ReservationUpdate, intent: Preemption, snapshot: GangSnapshot) -> PreemptionSummary:
    pods, name = snapshot.view.cache.pods, reserved_gang(each)
    gang = None if name is None else snapshot.view.gang_members.get_gang(name)
    return PreemptionSummary(
        namespace=each.namespace,
        gang=(None if gang is None else single_pod_of(gang)) or each.spec.gang,
        mode=EVICTING,
        units=tuple(dict.fromkeys(pod.unit for pod in intent.evictions)),
        pods=len(intent.evictions),
        pods_left=sum(pod.gpus > 0 and pod.uid in pods for pod in intent.evictions),
        gpu_hours=intent.gpu_hours,
        cost=intent.cost,
        rule=intent.rule,
        reason=intent.reason,
        deadline=each.status.deadline,
        reservation=each.name,
        stuck=each.status.stuck,
        status=each.status.reason or UNSET,
        is_begun=UNSET if each.status.evicting else False,
    )


def _mode(each: PreemptionSummary) -> str:
    if each.mode == DRY_RUN:
        return "would evict"
    if each.is_begun is False:
        return "planned"
    if each.pods_left == 0:
        return "evicted"
    return f"{each.mode} ({len(each.stuck)} stuck)" if each.stuck else each.mode


def _units_cell(each: PreemptionSummary) -> str:
    """Return the units; of several, each with its own cost, where that is known."""
    costs = () if isinstance(each.unit_costs, UnsetType) else each.unit_costs
    if len(costs) < 2:  # the columns have it
        return report.listed(each.units, _MOST_UNITS)
    names = [f"{one.name} ({_work(one)})" for one in costs]
    return report.listed([*names, *each.units[len(names) :]], _MOST_UNITS)


def _work(unit: UnitSummary) -> str:
    cost = "" if unit.cost is None else f", cost {format_number(unit.cost)}"
    return f"{format_number(unit.gpu_hours)} GPU-hours{cost}"


def _row(each: PreemptionSummary) -> tuple[Cell, ...]:
    left = NONE if each.pods_left is None else str(each.pods_left)
    return (
        Cell(escape_invisible(each.namespace)),
        Cell(escape_invisible(each.gang)),
        Cell(_mode(each)),
        Cell(escape_invisible(_units_cell(each))),
        Cell(f"{left}/{each.pods}"),
        Cell(format_number(each.gpu_hours)),
        Cell(NONE if each.cost is None else format_number(each.cost)),
        Cell(NONE if each.deadline is None else escape_invisible(each.deadline)),
        Cell(escape_invisible(each.rule)),
        Cell(escape_invisible(each.present_reason)),
    )
