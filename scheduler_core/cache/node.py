"""Parse a Node object into facts about its GPUs. Pure; what cannot be parsed counts as unknown."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from gputopo.crd.nodegpus import content_hash
from gputopo.labels import annotation, keys
from gputopo.labels.aliases import with_aliases
from gputopo.labels.decode import NoTopologyError, decode_topology
from gputopo.labels.domains import BLOCK_LABELS, CLIQUE_LABELS, RACK_LABELS, ZONE_LABELS, first_domain
from gputopo.labels.label_summary import parse_interconnect
from gputopo.labels.resources import is_gpu
from gputopo.labels.values import MAX_LENGTH
from gputopo.model import Interconnect, NodeTopology
from gputopo.quantities import parse_count, parse_quantity
from scheduler_core.allocation.numa_alignment import NumaPolicy, parse_numa_policy
from scheduler_core.allocation.shared_gpus import ReplicaPolicy
from scheduler_core.cache.node_cost import LabelledCost, NodeCost, cost_of_node, parse_cost_labels
from scheduler_core.policy.extensions import kept_node_labels
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.node_load import allocatable_load
from scheduler_core.request.pod import Metadata


class NodeStatus(msgspec.Struct, frozen=True):
    """The fields of a Node's ``status`` that placement needs."""

    allocatable: dict[str, str | int] | None = None


class Node(msgspec.Struct, frozen=True):
    """The fields of a Node that placement needs."""

    metadata: Metadata = Metadata()
    status: NodeStatus = NodeStatus()


_LABEL_SETS, _MOST_LABELS = 1 << 8, 1 << 8  # sets of labels whose facts are kept; labels of each, below 400 bytes
_DECISION_LOG_KEYS = {"cost": "economy", "replica_policy": "choice", "honours_gpu_choice": "obeys"}  # of format 1


class NodeFacts(msgspec.Struct, frozen=True, gc=False, rename=_DECISION_LOG_KEYS):
    """The facts about GPUs that a Node object states."""

    topology: NodeTopology | None  # None: neither annotation nor labels describe GPUs
    described: bool  # by the topology annotation; else at most by labels, written by any component
    allocatable: tuple[tuple[str, int], ...]  # GPU resources, and the number of healthy devices of each
    degraded: bool = False  # by its label
    interconnect: Interconnect | None = None  # by its labels; only a hint where the link graph is unknown
    numa_policy: NumaPolicy | None = None  # of its Topology Manager, by its label
    cost: NodeCost = NodeCost()
    replicas: int | None = None  # of each GPU, by its label
    replica_policy: ReplicaPolicy = ReplicaPolicy.UNKNOWN  # by its label
    topology_hash: str | None = None  # ``content_hash`` of the topology annotation; None: it has no valid one
    cpu_milli: int | None = None  # allocatable
    honours_gpu_choice: bool = False  # its device plugin takes a share from the GPU that the scheduler chose
    annotation_error: str | None = None  # why the topology annotation cannot be read; None: it can, or there is none
    label_faults: tuple[str, ...] = ()  # labels of other tools that are ignored, and what is expected of them
    extension_labels: tuple[tuple[str, str], ...] = ()  # that installed extensions may read, sorted by key
    clique: str | None = None  # of multi-node NVLink, by its labels
    rack: str | None = None  # by its labels: zone, block and rack, as far as they are named
    storage_nics: tuple[str, ...] = ()  # names of NICs that carry no traffic of jobs, by its label
    memory: int | None = None  # bytes; allocatable, as the next two
    storage: int | None = None  # bytes of ephemeral storage
    max_pods: int | None = None


def parse_node(node: Node) -> NodeFacts:
    """Return the facts of a Node object."""
    labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
    allocatable = _allocatable(node)
    described, error = _topology(labels, annotations) if keys.TOPOLOGY.key in annotations else (None, None)
    memory, storage, max_pods = allocatable_load(node.status.allocatable)
    topology = described
    if topology is None:
        # Labels set by hand often name the GPU model and leave the count to the device plugin.
        with_count = {keys.NVIDIA_COUNT.key: str(allocatable.get(WHOLE, 0)), **labels}
        topology = _labelled(_topology(with_count, {})[0], labels, allocatable, damaged=error is not None)
    facts, cost = _facts_of_labels(labels)
    return msgspec.structs.replace(
        facts,
        topology=topology,
        described=described is not None,
        allocatable=tuple(sorted(allocatable.items())),
        cost=cost_of_node(cost, topology, allocatable.get(WHOLE, 0)),
        topology_hash=None if described is None else content_hash(annotations[keys.TOPOLOGY.key]),
        cpu_milli=_cpu_milli(str((node.status.allocatable or {}).get("cpu", ""))),
        annotation_error=error,
        memory=memory,
        storage=storage,
        max_pods=max_pods,
    )


def _facts_of_labels(labels: Mapping[str, str]) -> tuple[NodeFacts, LabelledCost]:
    """Return the facts that depend on nothing but labels; the other fields have no meaning."""
    kept = kept_node_labels()
    if kept is not None and kept.isdisjoint(keys.UNREAD_OWN_LABELS):
        items = tuple([each for each in labels.items() if each[0] not in keys.UNREAD_OWN_LABELS])
    else:
        items = tuple(labels.items())
    find = _facts_of_equal_labels if len(items) <= _MOST_LABELS else _facts_of_equal_labels.__wrapped__
    return find(items, kept)


@lru_cache(maxsize=_LABEL_SETS)
def _facts_of_equal_labels(
    items: tuple[tuple[str, str], ...], kept: frozenset[str] | None
) -> tuple[NodeFacts, LabelledCost]:
    """``kept``: the labels that extensions may read; None: all."""
    labels = dict(items)
    aliased = with_aliases(labels)
    facts = NodeFacts(
        topology=None,
        described=False,
        allocatable=(),
        degraded=labels.get(keys.DEGRADED.key) == "true",
        interconnect=parse_interconnect(aliased.labels),
        numa_policy=parse_numa_policy(labels.get(keys.TOPOLOGY_MANAGER.key)),
        replicas=parse_count(labels.get(keys.NVIDIA_REPLICAS, "")) or None,
        replica_policy=_replica_policy(labels),
        label_faults=aliased.faults,
        extension_labels=tuple(sorted(each for each in items if kept is None or each[0] in kept)),
        clique=first_domain(labels, CLIQUE_LABELS),
        rack=_rack(labels),
        storage_nics=_storage_nics(labels),
    )
    return facts, parse_cost_labels(labels)


def _storage_nics(labels: Mapping[str, str]) -> tuple[str, ...]:
    value = labels.get(keys.STORAGE_NICS.key, "")
    return tuple(sorted({each for each in value.split(".") if each})) if len(value) <= MAX_LENGTH else ()


def _rack(labels: Mapping[str, str]) -> str | None:
    """Return the rack with its zone and block: the racks of two zones may have the same name."""
    rack = first_domain(labels, RACK_LABELS)
    if rack is None:
        return None
    wider = (first_domain(labels, each) for each in (ZONE_LABELS, BLOCK_LABELS))
    return sys.intern("/".join(each for each in (*wider, rack) if each is not None))


def _labelled(
    topology: NodeTopology | None, labels: Mapping[str, str], allocatable: Mapping[str, int], *, damaged: bool
) -> NodeTopology | None:
    """Return the topology by labels, without facts about all GPUs where it is in doubt that the labels describe them.

    ``damaged``: an annotation that cannot be read lies beside the labels.
    """
    if topology is None or topology.summary is None:
        return topology
    product = labels.get(keys.NVIDIA_PRODUCT.key, "")
    shared = (
        "-MIG-" in product
        or product.endswith("-SHARED")
        or (parse_count(labels.get(keys.NVIDIA_REPLICAS, "")) or 0) > 1
    )
    if damaged or shared or allocatable.get(WHOLE, 0) > len(topology.gpus):
        return msgspec.structs.replace(topology, summary=None)
    return topology


def _replica_policy(labels: Mapping[str, str]) -> ReplicaPolicy:
    value = labels.get(keys.SHARING.key)
    return next((each for each in ReplicaPolicy if each.value == value), ReplicaPolicy.UNKNOWN)


def _cpu_milli(quantity: str) -> int | None:
    cores = parse_quantity(quantity)
    return None if cores is None else cores.numerator * 1000 // cores.denominator


def _topology(labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[NodeTopology | None, str | None]:
    """Return the topology, or None and why the annotation cannot be read."""
    try:
        return decode_topology(labels, annotations), None
    except (annotation.AnnotationError, NoTopologyError) as error:
        return None, str(error)


def _allocatable(node: Node) -> dict[str, int]:
    """Return the healthy devices of each GPU resource."""
    stated = node.status.allocatable or {}
    counts = ((resource, parse_count(str(text))) for resource, text in stated.items() if is_gpu(resource))
    return {resource: healthy for resource, healthy in counts if healthy is not None}
