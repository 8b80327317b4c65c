"""List the cluster once, for a command that a person runs; the extender watches instead. I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ForbiddenError, KubeError, NotFoundError
from gputopo.kube.heartbeats import list_heartbeats, with_heartbeat
from gputopo.kube.rbac import NODES, PODS
from gputopo.kube.run_ahead import run_ahead
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch, LedgerUpdate, NodeGpusUpdate, NodeUpdate, PodUpdate, ReservationUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode, rejection
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of, without_own_reservation
from scheduler_core.cache.reservations import ActiveReservation, ReservationIndex
from scheduler_core.cache.watch import SOURCES, list_all, list_kind, pod_update
from scheduler_core.policy.policy import Policy
from scheduler_core.request.full_pod import FullPod, FullPodSpec
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import InvalidRequest, PodRequest, parse_request


class ListedCluster(NamedTuple):
    """The nodes and reservations of one listing."""

    snapshot: ClusterSnapshot
    nodes: tuple[FullNode, ...]
    active_reservations: tuple[ActiveReservation, ...] | None = ()  # None: the user may not list them


def read_pod(kube: Kube, namespace: str, name: str) -> FullPod:
    """Return a pod, by a list request, which needs no right to get pods. Raises ``NotFoundError``, ``KubeError``."""
    found = kube.list_objects(PODS, FullPod, ListOptions(namespace, fields=f"metadata.name={name}"))
    if kube.unreadable:
        raise KubeError(str(kube.unreadable[-1]))
    if not found:
        raise NotFoundError(f"there is no pod {name} in the namespace {namespace}", kind_missing=False)
    return found[0]


class ListedFor(NamedTuple):
    """Purpose of the snapshot."""

    policy: Policy
    priority: int = 0  # of a pod, which ignores capacity holds of gangs of a lower priority
    parse: Callable[[Pod], PodRequest | InvalidRequest] = parse_request
    gang: tuple[str, str] | None = None  # namespace and name: capacity that is held for it does not count


def read_cluster(kube: Kube, now: float, listed_for: ListedFor) -> ListedCluster:
    """List nodes, pods, PodResources reports and reservations, and return the snapshot. Raises ``KubeError``.

    All kinds are listed side by side. The nodes of a file without any ``NodeGpus`` are trusted, because the file
    has no reports of changes.
    """
    policy = listed_for.policy
    pod_source = SOURCES[PodUpdate]._replace(value=partial(pod_update, parse=listed_for.parse))
    listing_pods = run_ahead(partial(list_kind, kube, PodUpdate, pod_source))
    listing_heartbeats = run_ahead(partial(list_heartbeats, kube))
    listing_gpus = run_ahead(partial(list_kind, kube, NodeGpusUpdate, SOURCES[NodeGpusUpdate]))
    listing_reservations = run_ahead(partial(list_all, kube, ReservationUpdate, LedgerUpdate))
    nodes = tuple(kube.list_objects(NODES, FullNode))
    updates = [NodeUpdate(node.metadata.name, parse_node(node)) for node in nodes]
    pods, heartbeats = listing_pods().updates, listing_heartbeats()
    gpus = tuple(
        NodeGpusUpdate(name, with_heartbeat(each, heartbeats.get(name))) for name, each in listing_gpus().updates
    )
    if kube.from_file and not gpus:
        gpus = _assumed_reports(updates, now)
    index = _reservation_index(pods, listing_reservations)
    if index is None:
        return ListedCluster(snapshot_of(node_records(updates, pods, gpus), now, policy), nodes, None)
    ignored = index.holds_below(listed_for.priority) | _holds_for(listed_for.gang, index)
    records = (index.with_reservations(record, ignored) for record in node_records(updates, pods, gpus))
    snapshot = snapshot_of(records, now, policy)
    return ListedCluster(snapshot, nodes, tuple(index.active.values()))


def _holds_for(gang: tuple[str, str] | None, index: ReservationIndex) -> frozenset[str]:
    """Return the UIDs of the capacity holds of a gang."""
    return frozenset(
        uid
        for uid, each in index.active.items()
        if each.holdings and gang == (each.entry.namespace, each.reservation.spec.gang)
    )


def _assumed_reports(nodes: Sequence[NodeUpdate], now: float) -> tuple[NodeGpusUpdate, ...]:
    """Return reports that confirm the topologies at ``now``, with unknown allocations."""
    at = datetime.fromtimestamp(now, UTC).isoformat()
    hashes = [(node.key, node.facts.topology_hash) for node in nodes]
    return tuple(
        NodeGpusUpdate(name, NodeGpus(at, found, agent_version="")) for name, found in hashes if found is not None
    )


def snapshot_for_pod(uid: str, cluster: ListedCluster) -> ClusterSnapshot:
    """Return the snapshot without what is reserved for this pod."""
    seats = (seat for each in cluster.active_reservations or () for seat in each.seats if seat.uid == uid)
    return without_own_reservation(cluster.snapshot, uid, [seat.node for seat in seats if seat.node is not None])


def _reservation_index(
    pods: Iterable[PodUpdate], listing: Callable[[], tuple[Batch[Any], ...]]
) -> ReservationIndex | None:
    """Return the reservations; None where the user may not list them."""
    found = ReservationIndex({pod.key: pod for pod in pods})
    try:
        reservations, ledgers = listing()
    except ForbiddenError:
        return None
    found.apply_reservations(reservations)
    found.apply_ledgers(ledgers)
    return found


def rejected_nodes(pod: FullPodSpec, cluster: ListedCluster) -> dict[str, str]:
    """Return the GPU nodes that kube-scheduler would reject whatever GPUs are free there, with the reasons."""
    found = {}
    for node in cluster.nodes:
        name = node.metadata.name
        if cluster.snapshot.records[name].machine.allocatable:
            reason = rejection(pod, node)
            if reason is not None:
                found[name] = reason
    return found


def node_records(
    nodes: Iterable[NodeUpdate], pods: Iterable[PodUpdate], gpus: Iterable[NodeGpusUpdate]
) -> list[NodeRecord]:
    """Return the record of each node. Pods that are not bound, or bound to an unknown node, are left out."""
    occupants: dict[str, list[Occupant]] = {}
    for pod in pods:
        if pod.node is not None:
            occupants.setdefault(pod.node, []).append(pod.occupant)
    reports: Mapping[str, NodeGpusUpdate] = {each.key: each for each in gpus}
    return [
        NodeRecord(
            name=node.key,
            machine=node.facts,
            gpus=reports[node.key].gpus if node.key in reports else None,
            pods=tuple(sorted(occupants.get(node.key, ()), key=lambda each: each.uid)),
        )
        for node in nodes
    ]
