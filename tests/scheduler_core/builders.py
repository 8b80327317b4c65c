"""Builders of pods, nodes and records, as the watch would decode them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef, content_hash
from gputopo.labels import encode_topology, keys
from gputopo.model import NodeTopology
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node import Node, parse_node
from scheduler_core.cache.node_record import NodeRecord, parse_occupant, with_pod
from scheduler_core.cache.node_table import ClusterSnapshot, with_records
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import PodProfile, PodRequest, parse_request

NOW = 1_795_000_000.0
OBSERVED = "2026-11-18T11:00:00Z"  # 400 seconds before


def pod(
    name: str = "p",
    gpus: int = 0,
    *,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    resource: str = WHOLE,
    status: Mapping[str, str] | None = None,
) -> Pod:
    """A pod of one container."""
    limits = {resource: str(gpus)} if gpus else {}
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": f"uid-{name}",
                "labels": dict(labels or {}),
                "annotations": {f"gputopo.io/{key}": value for key, value in (annotations or {}).items()},
            },
            "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
            "status": dict(status or {}),
        },
        Pod,
    )


def occupant(name: str, gpus: int, *, admitted: bool = False, resource: str = WHOLE, **wishes: str) -> Occupant:
    """A pod on a node."""
    annotations = {key.replace("_", "-"): value for key, value in wishes.items()}
    status = {"startTime": OBSERVED} if admitted else {}
    found = parse_occupant(pod(name, gpus, annotations=annotations, resource=resource, status=status))
    assert found is not None
    return found


def owned_by(pod: Occupant, owner: str = "job") -> Occupant:
    """Return the pod with this owner."""
    return pod._replace(owner=owner)


def request(
    gpus: int = 1, name: str = "new", *, model: str | None = None, resource: str = WHOLE, **wishes: str
) -> PodRequest:
    """Return the request of a pod: ``request(4, island="required")``."""
    annotations = {key.replace("_", "-"): value for key, value in wishes.items()}
    labels = {"gpu-model": model} if model else None
    found = parse_request(pod(name, gpus, annotations=annotations, labels=labels, resource=resource))
    assert isinstance(found, PodRequest), found
    return found


def profile(gpus: int = 1, *, model: str | None = None, resource: str = WHOLE, **wishes: str) -> PodProfile:
    """Return the profile of such a request."""
    return request(gpus, model=model, resource=resource, **wishes).profile


def node(
    topology: NodeTopology | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    allocatable: Mapping[str, int] | None = None,
) -> Node:
    """Return a Node as the agent labels it; without a topology, as other tools do."""
    annotations: dict[str, str] = {}
    all_labels = dict(labels or {})
    if topology is not None:
        facts = encode_topology(topology)
        annotations, all_labels = facts.annotations, {**facts.labels, **facts.mirrors, **all_labels}
        whole = sum(gpu.mig_enabled is not True for gpu in topology.usable)
        allocatable = {WHOLE: whole} if allocatable is None else allocatable
    return msgspec.convert(
        {
            "metadata": {"name": "n", "labels": all_labels, "annotations": annotations},
            "status": {"allocatable": {name: str(number) for name, number in (allocatable or {}).items()}},
        },
        Node,
    )


def record(
    name: str = "n",
    topology: NodeTopology | None = None,
    *,
    held: Mapping[str, Iterable[int]] | None = None,
    pods: Iterable[Occupant] = (),
    departed: Iterable[Occupant] = (),
    labels: Mapping[str, str] | None = None,
    allocatable: Mapping[str, int] | None = None,
    observed: str = OBSERVED,
) -> NodeRecord:
    """Return a record with the PodResources report ``held`` (pod name -> GPU indices); None: no report."""
    return NodeRecord(
        name=name,
        machine=parse_node(node(topology, labels=labels, allocatable=allocatable)),
        gpus=None if topology is None else kubelet_report(topology, held, observed),
        pods=tuple(sorted(pods, key=lambda each: each.uid)),
        departed=tuple(departed),
    )


def with_pods(
    snapshot: ClusterSnapshot, pods: Iterable[tuple[str, Occupant]], now: float, policy: Policy
) -> ClusterSnapshot:
    """Return the snapshot, of the same generation, with each pod added to its node where it is not there yet."""
    records: dict[str, NodeRecord] = {}
    for name, pod in pods:
        record = records.get(name) or snapshot.records.get(name)
        if record is not None and all(each.uid != pod.uid for each in record.pods):
            records[name] = with_pod(record, pod)
    changed = with_records(snapshot, records.values(), now, policy)
    return msgspec.structs.replace(changed, generation=snapshot.generation)


def kubelet_report(
    topology: NodeTopology, held: Mapping[str, Iterable[int]] | None, observed: str = OBSERVED
) -> NodeGpus:
    """Return the ``NodeGpus`` of an agent; None: it cannot ask the kubelet."""
    if held is None:
        return NodeGpus(observed, hash_of(topology), "1", None)
    allocations = [
        DeviceAllocation(gpu=topology.get_gpu(index).uuid or "", pod=PodRef("team", name, "c"))
        for name, indices in held.items()
        for index in indices
    ]
    return NodeGpus(observed, hash_of(topology), "1", tuple(allocations))


@lru_cache
def hash_of(topology: NodeTopology) -> str:
    """Return the hash of the topology annotation."""
    return content_hash(encode_topology(topology).annotations[keys.TOPOLOGY.key])


def mask(*gpus: int) -> int:
    """Return a set of GPUs by place."""
    return sum(1 << gpu for gpu in gpus)
