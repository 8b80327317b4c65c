"""A cluster as ``kubectl get nodes,pods,nodegpus -A -o json`` prints it. Pure.

ClusterError    it is none; the text quotes what is wrong
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from gputopo.process.decoding import convert, decode
from scheduler_core.cache.events import GpusSeen, NodeSeen, PodSeen
from scheduler_core.cache.kube_scheduler_filters import StockNode
from scheduler_core.cache.list_once import Cluster, records
from scheduler_core.cache.node import read_node
from scheduler_core.cache.node_record import read_occupant
from scheduler_core.cache.node_table import table_of
from scheduler_core.cache.staleness import observed
from scheduler_core.policy.policy import Policy
from scheduler_core.request.full_pod import StockPod
from scheduler_core.request.quantity import mib, quantity
from scheduler_core.simulation.hosts import UNLIMITED, ClusterError, NodeSpec


class _Kinded(msgspec.Struct):
    kind: str = ""
    items: list[dict[str, Any]] | None = None


def read_snapshot(text: bytes, now: float, policy: Policy) -> Cluster:
    """Nodes, pods, and where there are any the kubelets' words. Raises ``ClusterError``.

    It is looked at as of the moment at which it was printed, as far as it tells: ``now`` where it has no ``NodeGpus``.
    """
    nodes: list[StockNode] = []
    pods: list[PodSeen] = []
    words: list[GpusSeen] = []
    for item in _items(text):
        kind = item.get("kind")
        try:
            if kind == "Node":
                nodes.append(convert(item, StockNode))
            elif kind == "Pod":
                pods += _pod(convert(item, StockPod))
            elif kind == "NodeGpus":
                words.append(GpusSeen(item["metadata"]["name"], convert(item, NodeGpus)))
        except (msgspec.ValidationError, KeyError) as error:
            name = (item.get("metadata") or {}).get("name")
            raise ClusterError(f"{kind} {name!r} cannot be read: {error}") from None
    if not nodes:
        raise ClusterError("there is no Node in it; print one with: kubectl get nodes,pods,nodegpus -A -o json")
    seen = [NodeSeen(node.metadata.name, read_node(node)) for node in nodes]
    moment = max((observed(word.gpus) for word in words), default=now)
    taken = records(seen, pods, words or _assumed(seen, moment))
    return Cluster(table_of(taken, moment, policy), tuple(nodes))


def _assumed(nodes: list[NodeSeen], now: float) -> list[GpusSeen]:
    """Words for a print that was made without any: the topologies held then, and who has which GPU is not known."""
    at = datetime.fromtimestamp(now, UTC).isoformat()
    hashes = [(node.key, node.machine.topology_hash) for node in nodes]
    return [GpusSeen(name, NodeGpus(at, found, agent_version="")) for name, found in hashes if found is not None]


def idle_nodes(cluster: Cluster) -> list[NodeSpec]:
    """Its GPU nodes without any pod, as far as their GPUs are known."""
    specs = []
    for node in cluster.nodes:
        topology = cluster.table.records[node.metadata.name].machine.topology
        if topology is not None and topology.usable:
            allocatable = node.status.allocatable or {}
            cpu = quantity(str(allocatable.get("cpu", "")))
            memory = mib(str(allocatable.get("memory", "")))
            cpu_milli = UNLIMITED if cpu is None else int(1000 * cpu)
            specs.append(NodeSpec(node.metadata.name, topology, cpu_milli, memory or UNLIMITED))
    return specs


def _items(text: bytes) -> list[dict[str, Any]]:
    try:
        found = decode(text, _Kinded)
    except msgspec.MsgspecError as error:
        raise ClusterError(f"it is no JSON that kubectl prints: {error}") from None
    return [decode(text, dict[str, Any])] if found.items is None else found.items


def _pod(pod: StockPod) -> list[PodSeen]:
    occupant = read_occupant(pod)
    if occupant is None:
        return []
    return [PodSeen(occupant.uid, occupant, pod.spec.node_name, None, pod.spec.scheduler_name)]
