"""Searches a capacity hold for a gang that does not fit: where it fits once the pods there have ended. Pure.

A hold has as many devices of each node as the gang will use there, or all devices of a node where the gang needs
particular devices. Of thousands of nodes, only as many as needed are tried, nodes that are free soonest first. Runs on
a thread of its own.

A gang that requests one device of each of many nodes would keep pods that need whole nodes from all of them, whether
one or all devices are held. So it must request at least half of the devices of these nodes; one node does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec
from immutables import Map

from gputopo.crd.reservations import HeldCapacity
from gputopo.timestamps import format_timestamp
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord, is_hold, with_pod
from scheduler_core.cache.node_table import ClusterSnapshot, with_records
from scheduler_core.cache.placeholder_pods import full_name, unknown_pod
from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.hold_candidates import PodEnds, find_hold_nodes, node_deadlines
from scheduler_core.planner.leader.plan_task import ReservationNames, create_hold
from scheduler_core.planner.packing.holdings import holdings_of
from scheduler_core.planner.packing.model import GangPlan, NodeView, PlanOptions
from scheduler_core.planner.packing.plan import plan_gang
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import InvalidRequest

_STEPS = 2_000  # of one plan: a search makes many plans
_TRIES = 20  # to drop spare nodes: a plan uses few nodes already
_LEAST_SHARE = 0.5  # of the devices of the held nodes


class HoldTask(NamedTuple):
    """A gang that needs a capacity hold, and the cluster to search."""

    gang: Gang
    held: tuple[HeldCapacity, ...]  # its present hold
    view: NodeView
    nodes: tuple[str, ...]  # that may be held for it, its present hold included
    ends: PodEnds  # of the pods on these nodes
    options: PlanOptions
    names: ReservationNames
    now: float  # seconds since 1970
    policy: Policy  # for node states
    is_out_of_time: Callable[[], bool] = lambda: False  # called often
    held_since: str | None = None  # of its present hold
    late_nodes: AbstractSet[str] = frozenset()  # of its present hold: pods there did not end when they should have


class HoldResult(NamedTuple):
    """Result of a search. Neither a reservation nor enough: the gang fits on no nodes, whatever pods end."""

    gang: Gang
    create: CreateReservation | None = None  # the hold to create
    is_enough: bool = False  # the present hold still fits
    reason: str | None = None  # why nothing is held although the gang would fit, for people
    cpu_s: float = 0.0


def search_hold(task: HoldTask) -> HoldResult:
    """Return a new hold, or that the present hold is enough, or neither.

    A hold whose nodes late pods keep from coming free is enough only if a new hold would have as many such nodes. So a
    hold does not move to and fro.
    """
    gang, emptied = task.gang, _EmptiedNodes(task)
    is_enough = bool(task.held) and _is_enough(task, emptied)
    if is_enough and not task.late_nodes:
        return HoldResult(gang, is_enough=True)
    plan, late = _find_plan(task, emptied)
    held = () if plan is None else holdings_of(plan, gang.ready, task.view.table)
    if is_enough and (not held or late >= len(task.late_nodes)):
        return HoldResult(gang, is_enough=True)
    if plan is None or not held:
        return HoldResult(gang, is_enough=bool(task.held) and task.is_out_of_time())  # without a result: keep the hold
    reason = _too_sparse(plan, emptied.view({each.node for each in held}))
    if reason is not None:
        return HoldResult(gang, is_enough=True) if is_enough else HoldResult(gang, reason=reason)
    return HoldResult(gang, create_hold(gang, held, task.names, task.held_since or format_timestamp(task.now)))


def _find_plan(task: HoldTask, emptied: _EmptiedNodes) -> tuple[GangPlan | None, int]:
    """Return where the gang would start, and on how many of these nodes pods are late.

    None where the gang fits nowhere, or requests no devices. A hold that leaves nodes with late pods keeps its others.
    """
    least = _fewest_nodes(task)
    if least is None:
        return None, 0

    def fits(nodes: Sequence[str]) -> set[str] | None:
        found = None if task.is_out_of_time() else _plan_on(task, emptied.view(nodes))
        return None if found is None else {seat.node for seat in found.seats if seat.node is not None}

    own, records = {each.uid for each in task.gang.placed}, task.view.table.records
    pods = {name: other_pods(records[name], own) for name in task.nodes}
    kept = {each.node for each in task.held} - task.late_nodes if task.late_nodes else frozenset[str]()
    candidates = node_deadlines(pods, task.ends)
    found = find_hold_nodes(candidates, fits, least, _TRIES, kept)
    plan = None if found is None else _plan_on(task, emptied.view(found.nodes))
    if plan is None:
        return None, 0
    used = {seat.node for seat in plan.seats if seat.gpus}
    return plan, len({each.node for each in candidates if each.is_late} & used - kept)


def _fewest_nodes(task: HoldTask) -> int | None:
    """Return a lower bound, by device counts alone; None: all nodes are too few, or no devices are requested."""
    offers = [dict(task.view.table.records[name].machine.allocatable) for name in task.nodes]
    requests = [each.request for each in task.gang.ready]
    asks = [
        dict[str, int]() if isinstance(each, InvalidRequest) else dict(each.profile.device_request.totals)
        for each in requests
    ]
    if not any(asks):
        return None
    least = 1
    for resource in set().union(*asks):
        offered = [each.get(resource, 0) for each in offers]
        # The gang may start with the members that request least.
        wanted = sorted(ask.get(resource, 0) for ask in asks)[: task.gang.min_ready]
        most = max(offered, default=0)
        if sum(offered) < sum(wanted) or most < wanted[-1]:
            return None
        least = max(least, -(-sum(wanted) // max(1, most)))
    return least


def _is_enough(task: HoldTask, emptied: _EmptiedNodes) -> bool:
    """Return True if the gang would fit into its present hold alone."""
    held: dict[str, Counter[str]] = {}
    for each in task.held:
        if each.node in task.view.table.records:
            held.setdefault(each.node, Counter())[each.resource] += each.gpus
    view = emptied.view(held)
    records = [_limited_to(view.table.records[name], held[name]) for name in held]
    view = view._replace(table=with_records(view.table, records, task.now, task.policy))
    return _plan_on(task, view) is not None


def _limited_to(record: NodeRecord, held: Counter[str]) -> NodeRecord:
    """Return the node as if only the held devices were free on it."""
    others = Counter(dict(record.machine.allocatable)) - held
    for pod in record.pods:
        others -= Counter(dict(pod.profile.device_request.totals))
    return with_pod(record, unknown_pod("others", "", "", sorted(others.items()))) if others else record


def _too_sparse(plan: GangPlan, view: NodeView) -> str | None:
    """Return why the gang requests too few devices of so many nodes; None: they are enough."""
    requested = Counter[tuple[str, str]]()
    for seat in plan.seats:
        for resource, number in seat.gpus if seat.node is not None else ():
            requested[seat.node or "", resource] += number
    devices: dict[str, tuple[int, int]] = {}  # requested and all, by node
    for (node, resource), gpus in requested.items():
        there = gpus, max(gpus, view.table.states[node].free_devices(resource))
        devices[node] = max(devices.get(node, there), there, key=_share)
    counted = sorted(map(_share, devices.values()))[1:]
    if sum(counted) >= _LEAST_SHARE * len(counted):
        return None
    gpus, all_ = map(sum, zip(*devices.values(), strict=True))
    return f"it requests {gpus} of the {all_} GPUs of {len(devices)} nodes: a hold is for at least half of them"


def _share(devices: tuple[int, int]) -> float:
    requested, all_ = devices
    return requested / all_


def _plan_on(task: HoldTask, view: NodeView) -> GangPlan | None:
    found = plan_gang(task.gang.ready, view, task.options._replace(steps=_STEPS, out_of_time=task.is_out_of_time))
    return found if isinstance(found, GangPlan) else None


class _EmptiedNodes:
    """Nodes as if only pods of the gang were on them. Each node is computed when it is first used."""

    def __init__(self, task: HoldTask) -> None:
        self._task = task
        self._own = {each.uid for each in task.gang.placed}
        self._homes = {seat.node for seat in task.options.placed if seat.node is not None}
        self._table = ClusterSnapshot()

    def view(self, nodes: Iterable[str]) -> NodeView:
        """Return a view of these nodes, and of nodes of placed members without a state: no pod is planned there."""
        task, names = self._task, set(nodes)
        given, rules = task.view.table.records, task.view.rules
        fresh = [_without_other_pods(given[name], self._own) for name in names if name not in self._table.records]
        self._table = with_records(self._table, fresh, task.now, task.policy) if fresh else self._table
        records = {name: given[name] for name in self._homes if name in given}
        records |= {name: self._table.records[name] for name in names}
        states = {name: self._table.states[name] for name in names}
        known = {name: rules[name] for name in records if name in rules}
        return task.view._replace(table=ClusterSnapshot(0, Map(records), Map(states)), rules=known)


def other_pods(record: NodeRecord, own: Container[str] = ()) -> list[Occupant]:
    """Return the pods that are on a node or assumed there, without holds and the pods ``own`` (UIDs)."""
    return [pod for pod in record.pods if pod.uid not in own and not is_hold(pod.uid)]


def _without_other_pods(record: NodeRecord, own: AbstractSet[str]) -> NodeRecord:
    pods, report = tuple(pod for pod in record.pods if pod.uid in own), record.gpus
    if report is not None and report.allocations is not None:
        names = set(map(full_name, pods))
        kept = tuple(each for each in report.allocations if (each.pod.namespace, each.pod.name) in names)
        report = msgspec.structs.replace(report, allocations=kept)
    return msgspec.structs.replace(record, gpus=report, pods=pods, departed=(), reserved=())
