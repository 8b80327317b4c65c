"""The page ``/gangs``: the state of each gang and single pod, in pages of a bounded size. Pure.

Gangs come first, then single pods, each by namespace and name. A continuation names the last item of the page before:
an item that exists all the time is on exactly one page.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

import orjson

from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import single_pod_of
from scheduler_core.planner.preemption.model import EvictionUnit, PreemptionPlan
from scheduler_core.planner.status import PlannerStatus, QueuedGangStatus
from scheduler_core.runtime.paging import PAGE_BYTES, PageBytes, fill_page

_MAX_UNITS = 32  # of a dry run that are named
_LISTS = ("gangs", "pods")
Key = tuple[str, str, str]  # list, namespace, name


class GangsPageSnapshot(NamedTuple):
    """The state of the planner at one moment."""

    status: PlannerStatus
    at: float  # in seconds since 1970
    gangs: tuple[tuple[Key, QueuedGangStatus], ...]  # sorted


def snapshot(found: PlannerStatus, now: float) -> GangsPageSnapshot:
    """Return the status with its gangs in the order of the pages."""
    return GangsPageSnapshot(
        found, now, tuple(sorted(((_key(each), each) for each in found.gangs), key=lambda pair: pair[0]))
    )


def _key(each: QueuedGangStatus) -> Key:
    name = each.gang.name
    return _LISTS[is_single_pod_gang(name)], name.namespace, name.name


def read_continuation(text: str) -> Key | None:
    """Return the key in a continuation; None: it is invalid."""
    match text.split("/"):
        case [kind, namespace, name] if kind in _LISTS:
            return kind, namespace, name
    return None


def gangs_page(found: GangsPageSnapshot, after: Key | None = None, most: int = PAGE_BYTES) -> PageBytes:
    """Return the page after this key; None: the first page."""
    first = 0 if after is None else bisect_right(found.gangs, after, key=lambda pair: pair[0])
    rest = found.gangs[first:]
    taken, more = fill_page(((key, orjson.dumps(_item(each, found.at))) for key, each in rest), most)
    following = "/".join(taken[-1][0]) if more else None
    status = found.status
    head = {
        "leads": status.is_leader,
        "holder": status.holder,
        "unready": status.not_ready_reason,
        "epoch": status.epoch,
        "entries": status.entries,
        "extenders": status.extenders,
        "held_gpus": status.held_gpus,
    }
    lists = {name: [orjson.Fragment(item) for (kind, *_), item in taken if kind == name] for name in _LISTS}
    return PageBytes(orjson.dumps(head | lists | {"continue": following}), following)


def _item(each: QueuedGangStatus, now: float) -> dict[str, Any]:
    gang = each.gang
    return {
        "namespace": gang.name.namespace,
        "name": gang.name.name,
        "pod": single_pod_of(gang),
        "phase": each.phase,
        "reason": each.reason,
        "limit": each.limit,
        "size": gang.size,
        "minimum": gang.minimum,
        "ready": len(gang.ready),
        "held": len(gang.held),
        "placed": len(gang.placed),
        "bound": sum(member.node is not None for member in gang.placed),
        "by": gang.convention,
        "priority": gang.priority,
        "priorities": gang.priorities,
        "age_s": round(now - gang.created, 1),
        "waiting_s": None if each.since is None else round(now - each.since, 1),
        "reservation": each.reservation,
        "missing": [{"member": name, "reason": why} for name, why in each.missing],
        "rollbacks": each.rollbacks,
        "judged": each.judged,
        "trouble": each.rollback_reason,
        "next_try_s": None if each.next_try_s is None else round(each.next_try_s, 1),
        "no_eviction": each.no_eviction,
        "dry_run": None if each.dry_run is None else _dry_run(each.dry_run),
    }


def _dry_run(plan: PreemptionPlan) -> dict[str, Any]:
    intent = plan.intent()
    return {
        "units": [unit.name for unit in plan.units[:_MAX_UNITS]],
        "pods": len(plan.pods),
        "gpu_hours": round(plan.gpu_hours, 2),
        "cost": None if plan.cost is None else round(plan.cost, 2),
        "rule": intent.rule,
        "reason": intent.reason,
        "unit_costs": [_unit_cost(unit) for unit in plan.units[:_MAX_UNITS]],
    }


def _unit_cost(unit: EvictionUnit) -> dict[str, Any]:
    return {
        "name": unit.name,
        "pods": len(unit.pods),
        "gpu_hours": round(unit.gpu_hours, 2),
        "cost": None if unit.cost is None else round(unit.cost, 2),
        "rule": unit.rule,
        "reason": unit.reason,
    }
