"""Placement domains in which victims are searched, and the order in which nodes and victims are tried. Pure.

The members of a gang with a required topology are in one domain of it, so victims in several domains never help. In a
domain, a member slot is as many devices as the smallest member requests. Device counts decide only what is tried first
and what cannot be enough; whether the gang fits is decided by the planner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nsmallest
from math import inf
from typing import NamedTuple

from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.packing.free_resources import free_without_gpu_pods
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.topology_domains import DomainPath, domain_path_of
from scheduler_core.planner.preemption.choices import Choice, Pricing
from scheduler_core.planner.preemption.model import PreemptionTask
from scheduler_core.request.node_load import NO_LOAD
from scheduler_core.request.pod_request import InvalidRequest

MAX_NODES = 128  # of a domain that are planned on: those on which a member slot costs least


class SlotDemand(NamedTuple):
    """The minimum need of the gang, by device counts."""

    resource: str
    devices: int  # of the smallest member
    slots: int  # members


class SearchDomain(NamedTuple):
    """Nodes that the gang may use together, and the choices that free devices there, the best first."""

    nodes: tuple[str, ...]
    choices: tuple[Choice, ...]
    demand: SlotDemand
    free: Mapping[str, int]  # devices by node
    freed: Mapping[Choice, tuple[tuple[str, int], ...]]  # devices by node
    free_slots: int
    bound: float  # no choices that are enough cost less
    estimate: float
    is_whole: bool  # no node of the domain that may take a member was left out

    def may_suffice(self, chosen: Iterable[Choice]) -> bool:
        """Return False if the choices free too few devices for the members, whatever their shape."""
        there: dict[str, int] = {}
        for each in chosen:
            for name, devices in self.freed[each]:
                there[name] = there.get(name, 0) + devices
        size, free = self.demand.devices, self.free
        gained = sum((free[name] + devices) // size - free[name] // size for name, devices in there.items())
        return self.free_slots + gained >= self.demand.slots


class _Slot(NamedTuple):
    """Choices that free devices for one more member on a node."""

    price: float
    node: str
    choices: tuple[Choice, ...]


def slot_demand(gang: Gang) -> SlotDemand | None:
    """Return what the gang needs at least; None: it requests no devices."""
    asks = [
        {} if isinstance(each.request, InvalidRequest) else dict(each.request.profile.device_request.totals)
        for each in gang.ready
    ]
    resources = sorted({resource for ask in asks for resource in ask})
    if not resources:
        return None
    resource = max(resources, key=lambda name: sum(ask.get(name, 0) for ask in asks))
    wanted = [ask[resource] for ask in asks if ask.get(resource)]
    others = len(asks) - len(wanted)
    return SlotDemand(resource, min(wanted), max(1, gang.min_ready - others))


def search_domains(
    task: PreemptionTask, choices: Sequence[Choice], pricing: Pricing, demand: SlotDemand
) -> list[SearchDomain]:
    """Return the domains in which the gang may fit, the cheapest by device counts first."""
    by_node: defaultdict[str, list[Choice]] = defaultdict(list)
    for each in choices:
        for name in {pod.node for pod in each.pods if pod.devices}:
            by_node[name].append(each)
    ending: defaultdict[str, int] = defaultdict(int)
    for pod in task.ending:
        ending[pod.node] += dict(pod.devices).get(demand.resource, 0)
    found: list[SearchDomain] = []
    for names in _node_groups(task, demand):
        if found and task.is_out_of_time():
            break
        free = {name: task.view.table.states[name].free_devices(demand.resource) + ending[name] for name in names}
        domain = _domain(names, free, by_node, pricing, demand)
        if domain is not None:
            found.append(domain)
    return sorted(found, key=lambda each: (each.estimate, each.nodes))


def _node_groups(task: PreemptionTask, demand: SlotDemand) -> list[list[str]]:
    """Return the nodes that the rules of some member allow, by domain of the required topology.

    Not those on which no member would fit even without all pods that use GPUs: pods without GPUs are not evicted.
    """
    required = next((each.gang_request.required for each in task.gang.ready if each.gang_request.required), None)
    filters = list({each.rules and each.rules.key: NodeFilter(each.rules) for each in task.gang.ready}.values())
    loads = {each.load for each in task.gang.ready if each.devices}
    groups: defaultdict[DomainPath, list[str]] = defaultdict(list)
    home: set[DomainPath] = set()
    placed = {seat.node for seat in task.options.placed}
    for name, node in task.view.rules.items():
        record = task.view.table.records.get(name)
        if record is None or name not in task.view.table.states:
            continue
        labels = node.metadata.labels or {}
        path = () if required is None else domain_path_of(labels, (required,), task.options.levels)
        if path is None:
            continue
        if name in placed:
            home.add(path)
        offered = dict(record.machine.allocatable).get(demand.resource, 0)
        free = free_without_gpu_pods(record, task.view.others.get(name, NO_LOAD))
        if (
            offered >= demand.devices
            and any(free.shortage(each) is None for each in loads)
            and any(each.rejection_of(node) is None for each in filters)
        ):
            groups[path].append(name)
    return [names for path, names in groups.items() if required is None or not home or path in home]


def _domain(
    names: Sequence[str],
    free: Mapping[str, int],
    by_node: Mapping[str, Sequence[Choice]],
    pricing: Pricing,
    demand: SlotDemand,
) -> SearchDomain | None:
    """Return the domain with its best nodes; None: even all choices free too few devices."""
    inside = list({each: None for name in names for each in by_node.get(name, ())})
    inside_names = frozenset(names)
    share = {
        each: _lost(pricing, each)
        / max(1, sum(_devices(pod.devices, demand) for pod in each.pods if pod.node in inside_names))
        for each in inside
    }
    slots = [slot for name in names for slot in _slots(name, free[name], by_node.get(name, ()), share, demand)]
    free_slots = sum(free[name] // demand.devices for name in names)
    if free_slots + len(slots) < demand.slots:
        return None
    most = max(MAX_NODES, demand.slots + 16)
    best = nsmallest(4 * most, slots, key=lambda each: (each.price, each.node))
    open_nodes = sorted((name for name in names if free[name] >= demand.devices), key=lambda name: -free[name])
    kept = dict.fromkeys((*(each.node for each in best), *open_nodes[:most]))
    nodes = tuple(kept)[: 2 * most]
    here = {name: free[name] for name in nodes}
    # Of these nodes only: so each single pod of an elastic gang comes with its whole gang, which may take its place.
    chosen = dict.fromkeys(choice for slot in best if slot.node in here for choice in slot.choices)
    chosen |= dict.fromkeys(each for name in nodes for each in by_node.get(name, ()))
    is_whole = len(nodes) == len({*(each.node for each in slots), *open_nodes})
    needed = max(0, demand.slots - free_slots)
    estimate = sum(each.price for each in best[:needed])
    missing = demand.slots * demand.devices - sum(free.values())
    bound = _bound(missing, inside, share, inside_names, demand)
    return SearchDomain(
        nodes,
        tuple(chosen),
        demand,
        here,
        {each: _freed_on(each, here, demand) for each in chosen},
        sum(devices // demand.devices for devices in here.values()),
        bound,
        estimate,
        is_whole,
    )


def _freed_on(choice: Choice, here: Mapping[str, int], demand: SlotDemand) -> tuple[tuple[str, int], ...]:
    """Return the devices that the choice frees, by node."""
    return tuple(
        (pod.node, devices) for pod in choice.pods if pod.node in here and (devices := _devices(pod.devices, demand))
    )


def _slots(
    name: str, free: int, there: Sequence[Choice], share: Mapping[Choice, float], demand: SlotDemand
) -> list[_Slot]:
    """Return the further slots of a node, each with the cheapest choices per device that free it."""
    found: list[_Slot] = []
    taken: list[Choice] = []
    price, spare, seen = 0.0, free % demand.devices, set[str]()
    for each in sorted(there, key=lambda one: (share[one], len(one.pods), one.pods[0].uid)):
        fresh = [pod for pod in each.pods if pod.node == name and pod.uid not in seen]
        freed = sum(_devices(pod.devices, demand) for pod in fresh)
        if not freed:
            continue
        seen |= {pod.uid for pod in fresh}
        taken.append(each)
        price, spare = price + share[each] * freed, spare + freed
        gained = spare // demand.devices
        if gained:
            found += [_Slot(price / gained, name, tuple(taken))] * gained
            taken, price, spare = [], 0.0, spare % demand.devices
    return found


def _bound(
    missing: int, choices: Iterable[Choice], share: Mapping[Choice, float], here: Collection[str], demand: SlotDemand
) -> float:
    """Return a price below which no choices free so many devices: parts of choices, the cheapest per device first."""
    found = 0.0
    for each in sorted(choices, key=lambda one: share[one]):
        if missing <= 0:
            return found
        freed = min(missing, sum(_devices(pod.devices, demand) for pod in each.pods if pod.node in here))
        found, missing = found + freed * share[each], missing - freed
    return found if missing <= 0 else inf


def _lost(pricing: Pricing, choice: Choice) -> float:
    return pricing.price_of((choice,))[0]


def _devices(devices: Iterable[tuple[str, int]], demand: SlotDemand) -> int:
    return sum(number for resource, number in devices if resource == demand.resource)
