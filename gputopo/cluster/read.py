"""Reads the nodes and pods that the tables need, and no more of each than they need."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial

import msgspec

from gputopo.cluster.nodes import GpuNode, gpu_nodes
from gputopo.cluster.pods import PodGpus, PodName
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ForbiddenError, NotFoundError
from gputopo.kube.heartbeats import list_heartbeats, with_heartbeat
from gputopo.kube.objects import NodeGpusObject, ObjectMeta, PartialNode, PartialObject, PartialPod, PartialPodSpec
from gputopo.kube.rbac import NODE_GPUS, NODES, PODS
from gputopo.kube.run_ahead import run_ahead
from gputopo.labels.keys import GPU_RESOURCES, MIG_RESOURCE_PREFIX, NVIDIA_COUNT, POD_VRAM, SCHEMA
from gputopo.quantities import parse_count, parse_mib

_MAX_MIB = 2**40  # a claim is a text that any user may write
_ASK_EACH = 32  # nodes; for more nodes, all pods are listed at once
_SELECTABLE = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}")  # a file may contain nodes whose names no selector takes


def read_nodes(kube: Kube, selector: str = "") -> list[GpuNode]:
    """Return the GPU nodes, also those without an agent, with the reasons why they take no new pods.

    The nodes are listed as a whole, because the server sends and selects taints only so. Where the cluster does not
    serve ``NodeGpus``, the allocations are unknown. Pods are listed only of nodes without a recent report.
    """
    listing_states = run_ahead(partial(_states, kube))
    nodes = kube.list_objects(NODES, PartialNode, ListOptions(labels=selector))
    unusable = {node.metadata.name: node.spec.unusable for node in nodes}
    found = gpu_nodes((node.metadata for node in nodes), listing_states(), _gpus_by_node(nodes), unusable)
    offered = {node.metadata.name: _whole_gpus_in(node.status.allocatable or {}) for node in nodes}
    found = [msgspec.structs.replace(node, allocatable=offered[node.name]) for node in found]
    return _with_requests(kube, found)


def _with_requests(kube: Kube, found: list[GpuNode]) -> list[GpuNode]:
    """Return the nodes; those without a recent report with the GPUs that their pods request, as schedulers count."""
    now = datetime.fromtimestamp(kube.now(), UTC)
    without = [node.name for node in found if not node.is_reported_at(now)]
    if not without or not kube.lists(PODS):
        return found
    try:
        requests = _requests_by_node(kube, without)
    except ForbiddenError:
        return found
    return [
        msgspec.structs.replace(node, requested=requests[node.name]) if node.name in requests else node
        for node in found
    ]


def _requests_by_node(kube: Kube, names: Collection[str]) -> dict[str, Counter[str]]:
    """Return the devices that the pods of these nodes request, by resource."""
    found = {name: Counter[str]() for name in names}
    for pod in _pods_on(kube, names, None, "status.phase!=Succeeded,status.phase!=Failed"):
        if pod.spec.node_name in found:
            found[pod.spec.node_name] += requested_devices(pod.spec)
    return found


def _pods_on(kube: Kube, names: Collection[str], namespace: str | None, fields: str) -> Iterator[PartialPod]:
    """Yield the pods of nodes, by name; where these are many, of all nodes. ``fields``: further field selectors."""
    ask_each = len(names) <= _ASK_EACH and all(map(_SELECTABLE.fullmatch, names))
    per_node = [f",spec.nodeName={name}" for name in names] if ask_each else [""]
    for node in per_node:
        yield from kube.list_objects(PODS, PartialPod, ListOptions(namespace, fields=f"{fields}{node}"))


def requested_devices(spec: PartialPodSpec) -> Counter[str]:
    """Return the devices that a pod requests, by resource, as kube-scheduler counts them.

    Init containers run one after the other, before the containers; those that restart always run beside all others.
    """
    beside, most = Counter[str](), Counter[str]()
    for each in spec.init_containers:
        devices = _devices(each.resources.limits)
        most |= beside + devices
        if each.restart_policy == "Always":
            beside += devices
    for each in spec.containers:
        beside += _devices(each.resources.limits)
    return most | beside


def read_running(kube: Kube, namespace: str | None) -> tuple[list[GpuNode], dict[PodName, int | None]]:
    """Return the GPU nodes, without the reasons why they take no new pods, and ``running_pods``."""
    listing_pods = run_ahead(partial(running_pods, kube, namespace))
    listing_states = run_ahead(partial(_states, kube))
    listing_gpus = run_ahead(partial(_advertised_gpus, kube))
    nodes = kube.list_objects(NODES, PartialObject, ListOptions(metadata_only=True))
    return gpu_nodes((node.metadata for node in nodes), listing_states(), listing_gpus()), listing_pods()


def _advertised_gpus(kube: Kube) -> dict[str, int]:
    """Return the GPUs that kubelets advertise on nodes without labels about GPUs: of these no agent publishes any.

    Only such nodes are listed as a whole: an object of a Node has many kilobytes.
    """
    unlabelled = f"!{SCHEMA.key},!{NVIDIA_COUNT.key}"
    return _gpus_by_node(kube.list_objects(NODES, PartialNode, ListOptions(labels=unlabelled)))


def _gpus_by_node(nodes: Iterable[PartialNode]) -> dict[str, int]:
    counts = {node.metadata.name: _gpus_in(node.status.capacity or {}) for node in nodes}
    return {name: count for name, count in counts.items() if count}


def _gpus_in(capacity: Mapping[str, object]) -> int:
    return parse_count(str(capacity.get(GPU_RESOURCES[0], 0))) or 0


def _whole_gpus_in(allocatable: Mapping[str, object]) -> int | None:
    """Return the GPUs that a kubelet offers to pods; None: not known, or it also offers shares or MIG devices."""
    others = (name for name in allocatable if name in GPU_RESOURCES[1:] or name.startswith(MIG_RESOURCE_PREFIX))
    if GPU_RESOURCES[0] not in allocatable or any(parse_count(str(allocatable[name])) for name in others):
        return None
    return _gpus_in(allocatable)


def read_node(kube: Kube, name: str) -> ObjectMeta:
    """Return a node. Raises ``NotFoundError``."""
    return kube.get(NODES, name, PartialObject, ListOptions(metadata_only=True)).metadata


def read_node_names(kube: Kube) -> list[str]:
    """Return the names of all nodes; none if they may not be listed."""
    try:
        found = kube.list_objects(NODES, PartialObject, ListOptions(metadata_only=True))
    except ForbiddenError:
        return []
    return sorted(each.metadata.name for each in found)


def read_pod_names(kube: Kube, namespace: str) -> list[str]:
    """Return the names of the pods of a namespace; none if they may not be listed."""
    try:
        found = kube.list_objects(PODS, PartialObject, ListOptions(namespace, metadata_only=True))
    except ForbiddenError:
        return []
    return sorted(each.metadata.name for each in found)


def running_pods(kube: Kube, namespace: str | None) -> dict[PodName, int | None]:
    """Return the running pods of a namespace or of all, with the MiB that each claims of a shared GPU.

    Only the metadata is listed, which is small in a large cluster. An invalid claim is None.
    """
    query = ListOptions(namespace, fields="status.phase=Running", metadata_only=True)
    pods = kube.list_objects(PODS, PartialObject, query)
    return {PodName(pod.metadata.namespace, pod.metadata.name): _vram_mib(pod.metadata) for pod in pods}


def _vram_mib(metadata: ObjectMeta) -> int | None:
    memory = parse_mib(metadata.annotations.get(POD_VRAM.key, ""))
    return None if memory is None else min(_MAX_MIB, memory)


def pods_without_allocation(
    kube: Kube, nodes: Iterable[GpuNode], namespace: str | None, silent: Collection[str] = ()
) -> list[PodGpus]:
    """Return the running pods with GPUs on nodes whose allocations are not reported, by name.

    ``silent``: nodes with agents that no longer report; their pods are returned too.
    """
    wanted = sorted(node.name for node in nodes if node.held_devices is None or node.name in silent)
    found = []
    for pod in _pods_on(kube, wanted, namespace, "status.phase=Running"):
        count = sum(_devices(container.resources.limits).total() for container in pod.spec.containers)
        if count and pod.spec.node_name in wanted:
            metadata = pod.metadata
            found.append(
                PodGpus(namespace=metadata.namespace, name=metadata.name, node=pod.spec.node_name, count=count)
            )
    return sorted(found, key=lambda each: (each.namespace, each.name))


def _states(kube: Kube) -> dict[str, NodeGpusObject]:
    listing_heartbeats = run_ahead(partial(list_heartbeats, kube))
    try:
        found = kube.list_objects(NODE_GPUS, NodeGpusObject)
    except NotFoundError:
        return {}
    heartbeats = listing_heartbeats()
    return {name: with_heartbeat(state, heartbeats.get(name)) for state in found if (name := state.metadata.name)}


def _devices(limits: dict[str, str | int]) -> Counter[str]:
    """Return the devices in a container's limits, by resource: GPUs, shares of GPUs, MIG devices.

    A number that is not a count of devices is 0, because the kubelet gives such a container none.
    """
    devices = [name for name in limits if name in GPU_RESOURCES or name.startswith(MIG_RESOURCE_PREFIX)]
    return Counter({name: parse_count(str(limits[name])) or 0 for name in devices})
