"""The cluster as placement looks at it, read once: for a person who asks, not for the extender. I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gputopo.kube.client import Kube, Query
from gputopo.kube.errors import ForbiddenError, KubeError, NotFoundError
from gputopo.kube.rbac import NODES, PODS
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import GpusSeen, LedgerSeen, NodeSeen, PodSeen, ReservationSeen
from scheduler_core.cache.kube_scheduler_filters import StockNode, barred
from scheduler_core.cache.node import read_node
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import NodeTable, table_of, without_seat
from scheduler_core.cache.reservations import Counting, Reserved
from scheduler_core.cache.watch import listed
from scheduler_core.policy.policy import Policy
from scheduler_core.request.full_pod import StockPod, StockSpec


class Cluster(NamedTuple):
    """What was read."""

    table: NodeTable
    nodes: tuple[StockNode, ...]
    counting: tuple[Counting, ...] | None = ()  # reservations; None: they may not be read


def read_pod(kube: Kube, namespace: str, name: str) -> StockPod:
    """One pod. By a list of one, so that who may list pods may ask. Raises ``NotFoundError``, ``KubeError``."""
    found = kube.items(PODS, StockPod, Query(namespace, fields=f"metadata.name={name}"))
    if kube.unreadable:
        raise KubeError(str(kube.unreadable[-1]))
    if not found:
        raise NotFoundError(f"there is no pod {name} in the namespace {namespace}", kind_missing=False)
    return found[0]


def read_cluster(kube: Kube, now: float, policy: Policy) -> Cluster:
    """All nodes, by the conversions that the extender's watch uses. Raises ``KubeError``."""
    nodes = tuple(kube.items(NODES, StockNode))
    seen = [NodeSeen(node.metadata.name, read_node(node)) for node in nodes]
    pods, gpus = (batch.seen for batch in listed(kube, PodSeen, GpusSeen))
    reserved = _reserved(kube, pods)
    if reserved is None:
        return Cluster(table_of(records(seen, pods, gpus), now, policy), nodes, None)
    table = table_of(map(reserved.occupied, records(seen, pods, gpus)), now, policy)
    return Cluster(table, nodes, tuple(reserved.counting.values()))


def seen_by(uid: str, cluster: Cluster) -> NodeTable:
    """The nodes as that pod sees them: a place that is kept for it does not stand in its way."""
    seats = (seat for each in cluster.counting or () for seat in each.seats if seat.uid == uid)
    return without_seat(cluster.table, uid, [seat.node for seat in seats if seat.node is not None])


def _reserved(kube: Kube, pods: Iterable[PodSeen]) -> Reserved | None:
    """What planners keep; None where who asks may not read it."""
    found = Reserved({pod.key: pod for pod in pods})
    try:
        reservations, ledgers = listed(kube, ReservationSeen, LedgerSeen)
    except ForbiddenError:
        return None
    found.take_reservations(reservations)
    found.take_ledgers(ledgers)
    return found


def barred_nodes(pod: StockSpec, cluster: Cluster) -> dict[str, str]:
    """GPU nodes that kube-scheduler would not take, whatever is free there, and why."""
    found = {}
    for node in cluster.nodes:
        name = node.metadata.name
        if cluster.table.records[name].machine.allocatable:
            why = barred(pod, node)
            if why is not None:
                found[name] = why
    return found


def records(nodes: Iterable[NodeSeen], pods: Iterable[PodSeen], gpus: Iterable[GpusSeen]) -> list[NodeRecord]:
    """What was seen, node by node. Pods that are not bound, or bound to a node that is not there, are left out."""
    occupants: dict[str, list[Occupant]] = {}
    for pod in pods:
        if pod.node is not None:
            occupants.setdefault(pod.node, []).append(pod.occupant)
    words: Mapping[str, GpusSeen] = {each.key: each for each in gpus}
    return [
        NodeRecord(
            name=node.key,
            machine=node.machine,
            gpus=words[node.key].gpus if node.key in words else None,
            pods=tuple(sorted(occupants.get(node.key, ()), key=lambda each: each.uid)),
        )
        for node in nodes
    ]
