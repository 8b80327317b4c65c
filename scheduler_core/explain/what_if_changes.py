"""Nodes as they would be after a change that gputopo cannot make itself. Pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import msgspec

from gputopo.crd.nodegpus import NodeGpus, PodRef
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import ClusterSnapshot, with_records
from scheduler_core.policy.policy import Policy


def after_evictions(record: NodeRecord, ended: Collection[Occupant]) -> NodeRecord:
    """Return the node without these pods, as the kubelet would report it."""
    uids = {each.uid for each in ended}
    names = {(each.namespace, each.name) for each in ended}
    gpus = record.gpus
    if gpus is not None and gpus.allocations is not None:

        def stays(pod: PodRef) -> bool:
            return pod.uid not in uids and (pod.uid is not None or (pod.namespace, pod.name) not in names)

        gpus = msgspec.structs.replace(
            gpus,
            allocations=tuple(each for each in gpus.allocations if stays(each.pod)),
            nics=None if gpus.nics is None else tuple(each for each in gpus.nics if stays(each.pod)),
        )
        if gpus.kubelet is not None and any(each.profile.device_request.aligned_steps for each in ended):
            # The NUMA nodes whose CPUs and memory would be free are unknown.
            gpus = msgspec.structs.replace(gpus, kubelet=msgspec.structs.replace(gpus.kubelet, numa_nodes=None))
    pods = tuple(each for each in record.pods if each.uid not in uids)
    return msgspec.structs.replace(record, pods=pods, gpus=gpus)


def with_confirmation(record: NodeRecord, now: float) -> NodeRecord:
    """Return the node as if its agent confirmed now its last report, for the topology that the Node carries."""
    at, subject = datetime.fromtimestamp(now, UTC).isoformat(), record.machine.topology_hash or ""
    before = record.gpus or NodeGpus(at, subject, "")
    return msgspec.structs.replace(record, gpus=msgspec.structs.replace(before, observed_at=at, content_hash=subject))


def without_own_pod(
    table: ClusterSnapshot, node: str, pod: tuple[str, str], now: float, policy: Policy
) -> ClusterSnapshot:
    """Return the table without that pod (namespace, name) on that node."""
    record = table.records.get(node)
    if record is None:
        return table
    itself = [each for each in record.pods if (each.namespace, each.name) == pod]
    return with_records(table, [after_evictions(record, itself)], now, policy) if itself else table
