"""Adapt a request and a snapshot to the siblings of a pod: the other pods of its owner or job. Pure.

Pods of one job should run on the same kind of GPU with the same driver; replicas of one service should not fail
together. Both depend on where the siblings are, so neither is part of the snapshot that all pods share.
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
from scheduler_core.cache.node_state import NodeState, product_of, with_owner_pods
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.cache.pod_index import sibling_keys
from scheduler_core.request.pod_request import PodRequest, SiblingHardware, Strength
from scheduler_core.request.workload_type import WorkloadType


class PlacedPod(NamedTuple):
    """A pod and its node."""

    node: str
    pod: Occupant


def siblings_in(snapshot: ClusterSnapshot, request: PodRequest) -> tuple[PlacedPod, ...]:
    """Return the pods of the same owner or job by a search of the whole snapshot: for one request, not for a stream."""
    keys = frozenset(sibling_keys(request))
    if not keys:
        return ()
    return tuple(
        PlacedPod(name, pod)
        for name, record in snapshot.records.items()
        for pod in record.pods
        if not keys.isdisjoint(sibling_keys(pod))
    )


def with_owner(
    request: PodRequest, others: Iterable[PlacedPod], snapshot: ClusterSnapshot
) -> tuple[PodRequest, ClusterSnapshot]:
    """Return the request and the snapshot for this pod. ``others``: pods of its owner or job."""
    elsewhere = [each for each in others if each.pod.uid != request.uid and each.node in snapshot.states]
    if not elsewhere:
        return request, snapshot
    constraints = request.profile.constraints
    set_by_pod = constraints.same_product in (Strength.REQUIRED, Strength.PREFERRED)
    if set_by_pod or (constraints.workload is WorkloadType.TRAINING and constraints.same_product is None):
        like = _sibling_hardware(snapshot.states[each.node] for each in elsewhere)
        request = request._replace(profile=request.profile._replace(sibling_hardware=like))
    if not request.profile.wants_spread:
        return request, snapshot
    nodes: dict[str, list[Occupant]] = {}
    for each in elsewhere:
        nodes.setdefault(each.node, []).append(each.pod)
    states = {
        name: with_owner_pods(snapshot.states[name], _owner_pods(snapshot.records[name], pods))
        for name, pods in nodes.items()
    }
    return request, msgspec.structs.replace(snapshot, states=snapshot.states.update(states))


def _sibling_hardware(states: Iterable[NodeState]) -> SiblingHardware:
    """Return the hardware that most of the pods run on."""
    counts = Counter(SiblingHardware(product_of(state), state.driver) for state in states)
    return min(counts, key=lambda like: (-counts[like], like.product or "", like.driver or ""))


def _owner_pods(record: NodeRecord, pods: list[Occupant]) -> OwnerPods:
    """Return the number of pods, and the GPUs that the kubelet reports for them; all GPUs where a pod has no report."""
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
