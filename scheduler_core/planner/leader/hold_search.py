"""Room for a gang that does not fit: where it will once the pods that are there now have ended. Pure; beside the loop.

What is held is as many devices of each node as the gang will take there; all of a node's where it matters which they
are. Few of many thousand nodes are looked at: those that are free soonest, as many as it takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec
from immutables import Map

from gputopo.crd.reservations import Holding, ReservationSpec
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord, is_hold, with_pod
from scheduler_core.cache.node_table import Snapshot, with_records
from scheduler_core.cache.placeholder_pods import full_name, unknown_pod
from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.pod_deadlines import PodDeadlines
from scheduler_core.planner.leader.hold_candidates import find_hold_nodes, node_deadlines
from scheduler_core.planner.leader.plan_task import ReservationNames, reservation_name
from scheduler_core.planner.packing.model import GangPlan, NodeView, PlanOptions
from scheduler_core.planner.packing.plan import plan_gang
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import InvalidRequest, PodRequest

_STEPS = 2_000  # of one search: there are many
_TRIES = 20  # to do with fewer nodes: a plan takes as few as it can


class HoldTask(NamedTuple):
    """For whom room is to be held, and what there is."""

    gang: Gang
    held: tuple[Holding, ...]  # for it already
    view: NodeView
    nodes: tuple[str, ...]  # that may be held for it, and those that are
    deadlines: PodDeadlines  # of the pods there
    options: PlanOptions
    names: ReservationNames
    now: float  # seconds since 1970
    policy: Policy  # what the states of nodes follow from
    over: Callable[[], bool] = lambda: False  # whether the time has run out; asked often


class HoldResult(NamedTuple):
    """What came of it."""

    gang: Gang
    create: CreateReservation | None = None  # what is to be held
    is_enough: bool = False  # what is held already is
    took: float = 0.0  # seconds of CPU


def search_hold(task: HoldTask) -> HoldResult:
    """Neither: it fits nowhere, whoever ends."""
    gang, emptied = task.gang, _EmptiedNodes(task)
    if task.held and _is_enough(task, emptied):
        return HoldResult(gang, is_enough=True)
    held = _found(task, emptied)
    if not held:
        return HoldResult(
            gang, is_enough=bool(task.held) and task.over()
        )  # where nobody knows better it is left as it is
    name = reservation_name(gang.ready[0].name if is_single_pod_gang(gang.name) else gang.name.name, task.names)
    return HoldResult(gang, CreateReservation(gang.name.namespace, name, ReservationSpec(gang.name.name, held=held)))


def _found(task: HoldTask, emptied: _EmptiedNodes) -> tuple[Holding, ...]:
    """(): it fits nowhere, whoever ends; or asks for no device."""
    least = _fewest(task)
    if least is None:
        return ()

    def fits(nodes: Sequence[str]) -> set[str] | None:
        found = None if task.over() else _planned(task, emptied.view(nodes))
        return None if found is None else {seat.node for seat in found.seats if seat.node is not None}

    own, records = {each.uid for each in task.gang.placed}, task.view.table.records
    there = {name: other_pods(records[name], own) for name in task.nodes}
    found = find_hold_nodes(node_deadlines(there, task.deadlines), fits, least, _TRIES)
    return () if found is None else _holdings(task, emptied.view(found.nodes))


def _fewest(task: HoldTask) -> int | None:
    """With fewer nodes it fits never, by counts alone; None: nor with all that there are, or it asks for no device."""
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
        wanted = sorted(ask.get(resource, 0) for ask in asks)[
            : task.gang.min_ready
        ]  # those that ask for least may start
        most = max(offered, default=0)
        if sum(offered) < sum(wanted) or most < wanted[-1]:
            return None
        least = max(least, -(-sum(wanted) // max(1, most)))
    return least


def _is_enough(task: HoldTask, emptied: _EmptiedNodes) -> bool:
    """Whether it would fit into what is held alone."""
    held: dict[str, Counter[str]] = {}
    for each in task.held:
        if each.node in task.view.table.records:
            held.setdefault(each.node, Counter())[each.resource] += each.gpus
    view = emptied.view(held)
    records = [_narrowed(view.table.records[name], held[name]) for name in held]
    view = view._replace(table=with_records(view.table, records, task.now, task.policy))
    return _planned(task, view) is not None


def _narrowed(record: NodeRecord, held: Counter[str]) -> NodeRecord:
    """As if others had all but so many of its free devices."""
    others = Counter(dict(record.machine.allocatable)) - held
    for pod in record.pods:
        others -= Counter(dict(pod.profile.device_request.totals))
    return with_pod(record, unknown_pod("others", "", "", sorted(others.items()))) if others else record


def _holdings(task: HoldTask, view: NodeView) -> tuple[Holding, ...]:
    """What it would take of those nodes."""
    found = _planned(task, view)
    asked = {each.uid: each.request for each in task.gang.ready}
    taken = Counter[tuple[str, str]]()
    for seat in () if found is None else found.seats:
        for resource, number in seat.gpus if seat.node is not None else ():
            assert seat.node is not None  # as it was asked
            offered = dict(view.table.records[seat.node].machine.allocatable)[resource]
            key = seat.node, resource
            taken[key] = min(offered, taken[key] + (offered if _has_hard_constraints(asked[seat.uid]) else number))
    return tuple(Holding(node, number, resource) for (node, resource), number in sorted(taken.items()))


def _planned(task: HoldTask, view: NodeView) -> GangPlan | None:
    found = plan_gang(task.gang.ready, view, task.options._replace(steps=_STEPS, out_of_time=task.over))
    return found if isinstance(found, GangPlan) else None


def _has_hard_constraints(request: object) -> bool:
    """Whether not any of a node's devices will do."""
    assert isinstance(request, PodRequest)  # it was planned
    wishes = request.profile.constraints
    return request.profile.has_hard_constraints or wishes.model is not None or wishes.min_vram_mib is not None


class _EmptiedNodes:
    """Nodes as if nobody was on them but the gang's own. Each is worked out when it is first asked for."""

    def __init__(self, task: HoldTask) -> None:
        self._task = task
        self._own = {each.uid for each in task.gang.placed}
        self._homes = {seat.node for seat in task.options.placed if seat.node is not None}
        self._table = Snapshot()

    def view(self, nodes: Iterable[str]) -> NodeView:
        """Those alone; and where siblings are, but without a state: nobody else goes there."""
        task, names = self._task, set(nodes)
        given, rules = task.view.table.records, task.view.rules
        fresh = [_without(given[name], self._own) for name in names if name not in self._table.records]
        self._table = with_records(self._table, fresh, task.now, task.policy) if fresh else self._table
        records = {name: given[name] for name in self._homes if name in given}
        records |= {name: self._table.records[name] for name in names}
        states = {name: self._table.states[name] for name in names}
        known = {name: rules[name] for name in records if name in rules}
        return task.view._replace(table=Snapshot(0, Map(records), Map(states)), rules=known)


def other_pods(record: NodeRecord, own: Container[str] = ()) -> list[Occupant]:
    """Whoever else is there, or is to come. ``own``: UIDs."""
    return [pod for pod in record.pods if pod.uid not in own and not is_hold(pod.uid)]


def _without(record: NodeRecord, own: AbstractSet[str]) -> NodeRecord:
    pods, word = tuple(pod for pod in record.pods if pod.uid in own), record.gpus
    if word is not None and word.allocations is not None:
        names = set(map(full_name, pods))
        left = tuple(each for each in word.allocations if (each.pod.namespace, each.pod.name) in names)
        word = msgspec.structs.replace(word, allocations=left)
    return msgspec.structs.replace(record, gpus=word, pods=pods, departed=(), reserved=())
