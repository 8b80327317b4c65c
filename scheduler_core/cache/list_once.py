"""The cluster as placement looks at it, read once: for a person who asks, not for the extender. I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ForbiddenError, KubeError, NotFoundError
from gputopo.kube.rbac import NODES, PODS
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import LedgerUpdate, NodeGpusUpdate, NodeUpdate, PodUpdate, ReservationUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode, rejection
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import Snapshot, snapshot_of, without_own_reservation
from scheduler_core.cache.reservations import ActiveReservation, ReservationIndex
from scheduler_core.cache.watch import list_all
from scheduler_core.policy.policy import Policy
from scheduler_core.request.full_pod import FullPod, FullPodSpec


class ClusterSnapshot(NamedTuple):
    """What was read."""

    table: Snapshot
    nodes: tuple[FullNode, ...]
    active_reservations: tuple[ActiveReservation, ...] | None = ()  # reservations; None: they may not be read


def read_pod(kube: Kube, namespace: str, name: str) -> FullPod:
    """One pod. By a list of one, so that who may list pods may ask. Raises ``NotFoundError``, ``KubeError``."""
    found = kube.list_objects(PODS, FullPod, ListOptions(namespace, fields=f"metadata.name={name}"))
    if kube.unreadable:
        raise KubeError(str(kube.unreadable[-1]))
    if not found:
        raise NotFoundError(f"there is no pod {name} in the namespace {namespace}", kind_missing=False)
    return found[0]


def read_cluster(kube: Kube, now: float, policy: Policy) -> ClusterSnapshot:
    """All nodes, by the conversions that the extender's watch uses. Raises ``KubeError``."""
    nodes = tuple(kube.list_objects(NODES, FullNode))
    seen = [NodeUpdate(node.metadata.name, parse_node(node)) for node in nodes]
    pods, gpus = (batch.updates for batch in list_all(kube, PodUpdate, NodeGpusUpdate))
    reserved = _reservation_index(kube, pods)
    if reserved is None:
        return ClusterSnapshot(snapshot_of(node_records(seen, pods, gpus), now, policy), nodes, None)
    table = snapshot_of(map(reserved.with_reservations, node_records(seen, pods, gpus)), now, policy)
    return ClusterSnapshot(table, nodes, tuple(reserved.active.values()))


def table_for_pod(uid: str, cluster: ClusterSnapshot) -> Snapshot:
    """The nodes as that pod sees them: a place that is kept for it does not stand in its way."""
    seats = (seat for each in cluster.active_reservations or () for seat in each.seats if seat.uid == uid)
    return without_own_reservation(cluster.table, uid, [seat.node for seat in seats if seat.node is not None])


def _reservation_index(kube: Kube, pods: Iterable[PodUpdate]) -> ReservationIndex | None:
    """What planners keep; None where who asks may not read it."""
    found = ReservationIndex({pod.key: pod for pod in pods})
    try:
        reservations, ledgers = list_all(kube, ReservationUpdate, LedgerUpdate)
    except ForbiddenError:
        return None
    found.apply_reservations(reservations)
    found.apply_ledgers(ledgers)
    return found


def rejected_nodes(pod: FullPodSpec, cluster: ClusterSnapshot) -> dict[str, str]:
    """GPU nodes that kube-scheduler would not take, whatever is free there, and why."""
    found = {}
    for node in cluster.nodes:
        name = node.metadata.name
        if cluster.table.records[name].machine.allocatable:
            why = rejection(pod, node)
            if why is not None:
                found[name] = why
    return found


def node_records(
    nodes: Iterable[NodeUpdate], pods: Iterable[PodUpdate], gpus: Iterable[NodeGpusUpdate]
) -> list[NodeRecord]:
    """What was seen, node by node. Pods that are not bound, or bound to a node that is not there, are left out."""
    occupants: dict[str, list[Occupant]] = {}
    for pod in pods:
        if pod.node is not None:
            occupants.setdefault(pod.node, []).append(pod.occupant)
    words: Mapping[str, NodeGpusUpdate] = {each.key: each for each in gpus}
    return [
        NodeRecord(
            name=node.key,
            machine=node.facts,
            gpus=words[node.key].gpus if node.key in words else None,
            pods=tuple(sorted(occupants.get(node.key, ()), key=lambda each: each.uid)),
        )
        for node in nodes
    ]
