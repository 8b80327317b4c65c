"""A cluster as ``kubectl get nodes,pods,nodegpus -A -o json`` prints it. Pure.

ClusterError    the input is not valid; the message quotes the fault
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from gputopo.process.decoding import convert, decode
from gputopo.quantities import parse_mib, parse_quantity
from scheduler_core.cache.events import NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.list_once import ListedCluster, node_records
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_record import parse_occupant
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.cache.staleness import observed_at
from scheduler_core.policy.policy import Policy
from scheduler_core.request.full_pod import FullPod
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import InvalidRequest, PodRequest, parse_request
from scheduler_core.simulation.hosts import UNLIMITED, ClusterError, SimulatedNode


class _Kinded(msgspec.Struct):
    kind: str = ""
    items: list[dict[str, Any]] | None = None


def read_snapshot(
    text: bytes, now: float, policy: Policy, parse: Callable[[Pod], PodRequest | InvalidRequest] = parse_request
) -> ListedCluster:
    """Parse nodes, pods and NodeGpus. Raises ``ClusterError``.

    The cluster is evaluated at the time of the newest ``NodeGpus``; at ``now`` if there is none. ``parse`` reads
    what the pods on the nodes request.
    """
    nodes: list[FullNode] = []
    pods: list[PodUpdate] = []
    reports: list[NodeGpusUpdate] = []
    for item in _items(text):
        kind = item.get("kind")
        try:
            if kind == "Node":
                nodes.append(convert(item, FullNode))
            elif kind == "Pod":
                pods += _pod(convert(item, FullPod), parse)
            elif kind == "NodeGpus":
                reports.append(NodeGpusUpdate(item["metadata"]["name"], convert(item, NodeGpus)))
        except (msgspec.ValidationError, KeyError) as error:
            name = (item.get("metadata") or {}).get("name")
            raise ClusterError(f"invalid {kind} {name!r}: {error}") from None
    if not nodes:
        raise ClusterError("no Node found; print nodes with: kubectl get nodes,pods,nodegpus -A -o json")
    updates = [NodeUpdate(node.metadata.name, parse_node(node)) for node in nodes]
    moment = max((observed_at(each.gpus) for each in reports), default=now)
    records = node_records(updates, pods, reports or _assumed(updates, moment))
    return ListedCluster(snapshot_of(records, moment, policy), tuple(nodes))


def _assumed(nodes: list[NodeUpdate], now: float) -> list[NodeGpusUpdate]:
    """Return reports for a cluster without any: the topologies are trusted, and the allocations are unknown."""
    at = datetime.fromtimestamp(now, UTC).isoformat()
    hashes = [(node.key, node.facts.topology_hash) for node in nodes]
    return [NodeGpusUpdate(name, NodeGpus(at, found, agent_version="")) for name, found in hashes if found is not None]


def idle_nodes(cluster: ListedCluster) -> list[SimulatedNode]:
    """Return the GPU nodes without their pods, as far as their GPUs are known."""
    specs = []
    for node in cluster.nodes:
        topology = cluster.snapshot.records[node.metadata.name].machine.topology
        if topology is not None and topology.usable:
            allocatable = node.status.allocatable or {}
            cpu = parse_quantity(str(allocatable.get("cpu", "")))
            memory = parse_mib(str(allocatable.get("memory", "")))
            cpu_milli = UNLIMITED if cpu is None else int(1000 * cpu)
            specs.append(SimulatedNode(node.metadata.name, topology, cpu_milli, memory or UNLIMITED))
    return specs


def _items(text: bytes) -> list[dict[str, Any]]:
    try:
        found = decode(text, _Kinded)
    except msgspec.MsgspecError as error:
        raise ClusterError(f"invalid JSON, or not printed by kubectl: {error}") from None
    return [decode(text, dict[str, Any])] if found.items is None else found.items


def _pod(pod: FullPod, parse: Callable[[Pod], PodRequest | InvalidRequest]) -> list[PodUpdate]:
    occupant = parse_occupant(pod, parse)
    if occupant is None:
        return []
    return [PodUpdate(occupant.uid, occupant, pod.spec.node_name, None, pod.spec.scheduler_name)]
