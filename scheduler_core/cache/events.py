"""The values that watches deliver to the cluster cache, and the changes that the cache returns. Values only.

A batch is what one watch delivers at once: all objects of its kind (after a list), or those that changed. The watch
drops pods without GPUs and fields that decide nothing: of 100,000 pods only those that request or hold GPUs are kept
(and, by the planner, what the others request: ``pod_loads``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from gputopo.crd.nodegpus import NodeGpus
from gputopo.crd.reservations import ExtenderAck, LedgerSpec, ReservationSpec, ReservationStatus
from gputopo.kube.heartbeats import Heartbeat
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.kube_scheduler_filters import FullNode, SchedulingRules
from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.request.disruption import RunningFacts
from scheduler_core.request.pod import PinClaim
from scheduler_core.request.pod_request import PodRequest

S = TypeVar("S")


class NodeUpdate(NamedTuple):
    """A Node. Its key is its name."""

    key: str
    facts: NodeFacts
    rules: FullNode | None = None  # for kube-scheduler's own filters; only ``FULL_POD_SOURCES`` set it


class PodUpdate(NamedTuple):
    """A pod that requests or holds GPUs and has not finished. Its key is its UID."""

    key: str
    occupant: Occupant
    node: str | None  # spec.nodeName; None: not bound yet
    # The node on which it is expected: status.nominatedNodeName; in ``ClusterCache`` also the node of a proved claim.
    nominated_node: str | None = None
    scheduler: str | None = None  # spec.schedulerName
    rules: SchedulingRules | None = None  # only ``FULL_POD_SOURCES`` set them
    claim: PinClaim | None = None  # ``UngatedPods`` decides whether it counts
    priority: int = 0  # spec.priority
    gang: str | None = None  # NAMESPACE/NAME of the reservation of the gang that the pod says it was placed with
    running: RunningFacts | None = None  # of a bound pod; ``FULL_POD_SOURCES`` do not set it
    malformed: str | None = None  # why its request is invalid; only the cluster page (``scheduler_core.ui``) sets it

    @property
    def request(self) -> PodRequest:
        """The pod's request, by which it is evaluated again."""
        pod = self.occupant
        return PodRequest(self.key, pod.namespace, pod.name, self.scheduler, pod.profile, owner=pod.owner, job=pod.job)


class NodeGpusUpdate(NamedTuple):
    """A ``NodeGpus``: the kubelet's PodResources report as published by the agent. Its key is the node's name."""

    key: str
    gpus: NodeGpus


class HeartbeatUpdate(NamedTuple):
    """The Lease of an agent. Its key is the node's name."""

    key: str
    heartbeat: Heartbeat


class ReservationUpdate(NamedTuple):
    """A ``PlacementReservation``. Its key is its UID."""

    key: str
    namespace: str
    name: str
    spec: ReservationSpec
    hash: str  # ``spec_hash`` of the spec as parsed here
    status: ReservationStatus = ReservationStatus()
    version: str = ""  # resource version


class LedgerUpdate(NamedTuple):
    """A ``PlacementLedger``. Its key is its name."""

    key: str
    uid: str
    version: str  # resource version: the precondition of the next write
    generation: int  # of its spec
    spec: LedgerSpec = LedgerSpec()
    extenders: Mapping[str, ExtenderAck] = {}  # read only
    created: str | None = None  # RFC 3339, by the API server's clock


class Batch(NamedTuple, Generic[S]):
    """Objects of one kind that a watch delivers at once."""

    kind: type[S]
    updates: tuple[S, ...]
    removed: tuple[str, ...] = ()  # keys; may contain keys that were never delivered
    is_full_list: bool = False  # after a list: objects that are not in ``updates`` no longer exist


class WatchStatus(NamedTuple):
    """The condition of the watch of one kind."""

    kind: str  # "nodes", "pods", "nodegpus"; where several have one name: "podgroups.v1alpha1.scheduling.x-k8s.io"
    synced: bool  # a complete list was delivered
    last_event_age_s: float | None  # since the API server last answered: a page, a watch, an event or a bookmark
    relists: int  # lists after the first: the watch had fallen too far behind
    failures: int  # calls that failed and streams that broke
    error: str | None  # what is wrong now, for people
    # How long the object created last took to arrive here. Only a creation carries the API server's time, in whole
    # seconds: the value may be up to one second too high, plus what our clock is ahead. None: no creation was seen yet.
    lag_s: float | None
    served: bool = True  # the API server serves this kind; else there are no objects of it
    unreadable: int = 0  # objects that cannot be decoded; each stays as it was when it was last decoded
    idle_s: float | None = None  # since its thread last did anything; None: it was not started
    ended: bool = False  # its thread ended, though nothing stopped it
    is_unavailable: bool = False  # the error is that the API server does not answer, or is busy


class BoundPod(NamedTuple):
    """A pod that was bound to a node."""

    pod: PodUpdate
    snapshot_before: ClusterSnapshot  # just before the binding, without the assumption about the pod itself


class ReportedNode(NamedTuple):
    """A node before and after a PodResources report of its kubelet, assumed pods included."""

    before: NodeRecord
    after: NodeRecord


class CacheChanges(NamedTuple):
    """The changes of a batch that callers report. The first list of each kind causes none, except removed pods."""

    bound_pods: tuple[BoundPod, ...] = ()
    kubelet_reports: tuple[ReportedNode, ...] = ()
    removed_pods: tuple[PodUpdate, ...] = ()


def pieces(values: Iterable[S], size: int) -> Iterator[tuple[S, ...]]:
    """Yield the values, ``size`` at a time."""
    left = iter(values)
    while piece := tuple(islice(left, size)):
        yield piece


def removed_keys(batch: Batch[Any], known: Collection[str]) -> set[str]:
    """Return the keys of the known objects that no longer exist, and all keys in ``batch.removed``."""
    removed = set(batch.removed)
    return removed | set(known) - {each.key for each in batch.updates} if batch.is_full_list else removed
