"""A Node object -> what it tells of its GPUs. Pure; what cannot be read is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gputopo.crd.nodegpus import content_hash
from gputopo.labels import annotation, keys
from gputopo.labels.decode import NoTopologyError, decode_topology
from gputopo.labels.resources import is_gpu
from gputopo.model import Interconnect, NodeTopology
from scheduler_core.allocation.shared_gpus import ReplicaPolicy
from scheduler_core.cache.node_cost import NodeCost, parse_node_cost
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.pod import Metadata
from scheduler_core.request.quantity import parse_count, parse_quantity

_SINGLE_NUMA = "single-numa-node"


class NodeStatus(msgspec.Struct, frozen=True):
    """``status`` of a Node, as far as needed."""

    allocatable: dict[str, str | int] | None = None


class Node(msgspec.Struct, frozen=True):
    """The few fields of a Node that placement needs."""

    metadata: Metadata = Metadata()
    status: NodeStatus = NodeStatus()


class NodeFacts(msgspec.Struct, frozen=True):
    """What a Node object tells of its GPUs."""

    topology: NodeTopology | None  # None: nothing on it speaks of GPUs
    described: bool  # by our annotation; else by labels alone, whoever wrote them
    allocatable: tuple[tuple[str, int], ...]  # GPU resources, healthy devices of each
    degraded: bool = False  # as its label says
    interconnect: Interconnect | None = None  # as its labels say; without a graph only a hint
    single_numa: bool = False  # its Topology Manager rejects what spans NUMA nodes
    economy: NodeCost = NodeCost()
    replicas: int | None = None  # of each GPU, as its label says
    choice: ReplicaPolicy = ReplicaPolicy.DISTRIBUTED  # among replicas
    topology_hash: str | None = None  # of our annotation (``nodegpus.content_hash``); None: not described by one
    cpu_milli: int | None = None  # allocatable
    obeys: bool = False  # its device plugin gives a share of a GPU on the GPU that the scheduler names


def parse_node(node: Node) -> NodeFacts:
    """What a Node object tells. What cannot be read is unknown."""
    labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
    allocatable = dict(_allocatable(node))
    described = _topology(labels, annotations) if keys.TOPOLOGY.key in annotations else None
    # Hand-made labels often say which GPUs, and leave how many to the device plugin.
    counted = {keys.NVIDIA_COUNT.key: str(allocatable.get(WHOLE, 0)), **labels}
    topology = _topology(counted, {}) if described is None else described
    return NodeFacts(
        topology=topology,
        described=described is not None,
        allocatable=tuple(sorted(allocatable.items())),
        degraded=labels.get(keys.DEGRADED.key) == "true",
        interconnect=_interconnect(labels),
        single_numa=labels.get(keys.TOPOLOGY_MANAGER.key) == _SINGLE_NUMA,
        economy=parse_node_cost(labels, topology, allocatable.get(WHOLE, 0)),
        replicas=parse_count(labels.get(keys.NVIDIA_REPLICAS, "")) or None,
        choice=_replica_policy(labels),
        topology_hash=None if described is None else content_hash(annotations[keys.TOPOLOGY.key]),
        cpu_milli=_cpu_milli(node),
    )


def _replica_policy(labels: Mapping[str, str]) -> ReplicaPolicy:
    said = labels.get(keys.SHARING.key, ReplicaPolicy.DISTRIBUTED.value)
    return next((each for each in ReplicaPolicy if each.value == said), ReplicaPolicy.UNKNOWN)


def _cpu_milli(node: Node) -> int | None:
    found = parse_quantity(str((node.status.allocatable or {}).get("cpu", "")))
    return None if found is None else int(found * 1000)


def _topology(labels: Mapping[str, str], annotations: Mapping[str, str]) -> NodeTopology | None:
    try:
        return decode_topology(labels, annotations)
    except (annotation.AnnotationError, NoTopologyError):
        return None


def _allocatable(node: Node) -> Iterable[tuple[str, int]]:
    for resource, text in (node.status.allocatable or {}).items():
        healthy = parse_count(str(text))
        if is_gpu(resource) and healthy is not None:
            yield resource, healthy


def _interconnect(labels: Mapping[str, str]) -> Interconnect | None:
    said = labels.get(keys.INTERCONNECT.key, labels.get(keys.NVIDIA_TOPOLOGY.key))
    return next((each for each in Interconnect if each.value == said), None)
