"""A pod and those that its owner placed before it: what of the cluster changes for it by that. Pure.

Pods of one job should run on like GPUs with the same driver; replicas of one service should not fail together. Both
are decided by where the others are, which differs from pod to pod; so neither is kept in the table that all share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from scheduler_core.allocation.gpu_sets import union
from scheduler_core.allocation.machine_shape import places_by_uuid
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.colocation import OwnerPods
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState, with_owner_pods
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.request.pod_request import PodRequest, SiblingHardware
from scheduler_core.request.workload_type import WorkloadType


class PlacedPod(NamedTuple):
    """A pod and where it is."""

    node: str
    pod: Occupant


def pods_of_owner(owner: str | None, table: Snapshot) -> tuple[PlacedPod, ...]:
    """The pods of that owner, found by looking everywhere: for one question, not for a stream of them."""
    if owner is None:
        return ()
    return tuple(
        PlacedPod(name, pod) for name, record in table.records.items() for pod in record.pods if pod.owner == owner
    )


def for_owner(request: PodRequest, others: Iterable[PlacedPod], table: Snapshot) -> tuple[PodRequest, Snapshot]:
    """The request and the table as they are for this pod, given the others of its owner."""
    elsewhere = [each for each in others if each.pod.uid != request.uid and each.node in table.states]
    if not elsewhere:
        return request, table
    if request.profile.constraints.workload is WorkloadType.TRAINING:
        like = _sibling_hardware(table.states[each.node] for each in elsewhere)
        request = request._replace(profile=request.profile._replace(sibling_hardware=like))
    if not request.profile.wants_spread:
        return request, table
    nodes: dict[str, list[Occupant]] = {}
    for each in elsewhere:
        nodes.setdefault(each.node, []).append(each.pod)
    states = {
        name: with_owner_pods(table.states[name], _owner_pods(table.records[name], pods))
        for name, pods in nodes.items()
    }
    return request, msgspec.structs.replace(table, states=table.states.update(states))


def _sibling_hardware(states: Iterable[NodeState]) -> SiblingHardware:
    """What most of them run on."""
    counts = Counter(SiblingHardware(_product(state), state.driver) for state in states)
    return min(counts, key=lambda like: (-counts[like], like.product or "", like.driver or ""))


def _product(state: NodeState) -> str | None:
    products = set() if state.shape is None else {gpu.product for gpu in state.shape.gpus if gpu.usable}
    return products.pop() if len(products) == 1 else None


def _owner_pods(record: NodeRecord, pods: list[Occupant]) -> OwnerPods:
    """How many, and the GPUs that the kubelet says they hold; all, where it has not said so of each."""
    topology, gpus = record.machine.topology, record.gpus
    place_of = places_by_uuid(topology)
    names = {(each.namespace, each.name) for each in pods}
    held = [
        ((each.pod.namespace, each.pod.name), place_of[each.gpu])
        for each in (gpus and gpus.allocations) or ()
        if (each.pod.namespace, each.pod.name) in names and each.gpu in place_of
    ]
    if {name for name, _ in held} != names:
        return OwnerPods(len(pods), 0 if topology is None else (1 << len(topology.gpus)) - 1)
    return OwnerPods(len(pods), union(1 << place for _, place in held))
