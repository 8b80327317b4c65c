"""What a watch saw, reduced to what placement keeps. Values only: between ``watch`` (I/O) and ``knowledge`` (pure).

A batch is what one watch delivers at once: everything there is (after a list), or what changed. A pod without GPUs, and
a field that decides nothing, end at the watch: of 100,000 pods only those that hold or want GPUs are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from gputopo.crd.nodegpus import NodeGpus
from gputopo.crd.reservations import ExtenderAck, LedgerSpec, ReservationSpec, ReservationStatus
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.kube_scheduler_filters import FullNode, SchedulingRules
from scheduler_core.cache.node import NodeFacts
from scheduler_core.request.pod import PinClaim

S = TypeVar("S")


class NodeUpdate(NamedTuple):
    """A Node. Its key is its name."""

    key: str
    facts: NodeFacts
    rules: FullNode | None = None  # what kube-scheduler's own filters look at; only who observes has it


class PodUpdate(NamedTuple):
    """A pod that wants or holds GPUs and has not finished. Its key is its UID."""

    key: str
    occupant: Occupant
    node: str | None  # spec.nodeName; None: not bound yet
    # Where it is expected: status.nominatedNodeName; in ``Knowledge`` also the node of a claim that counts.
    nominated: str | None = None
    scheduler: str | None = None  # spec.schedulerName
    rules: SchedulingRules | None = None  # only who observes has them
    claim: PinClaim | None = None  # ``ungated`` says whether it counts


class NodeGpusUpdate(NamedTuple):
    """A ``NodeGpus``: the kubelet's word as the agent publishes it. Its key is its node's name."""

    key: str
    gpus: NodeGpus


class ReservationUpdate(NamedTuple):
    """A ``PlacementReservation``. Its key is its UID."""

    key: str
    namespace: str
    name: str
    spec: ReservationSpec
    hash: str  # ``spec_hash`` of it, as read here
    status: ReservationStatus = ReservationStatus()
    version: str = ""  # resource version


class LedgerUpdate(NamedTuple):
    """A ``PlacementLedger``. Its key is its name."""

    key: str
    uid: str
    version: str  # resource version: the precondition of its next write
    generation: int  # of its spec
    spec: LedgerSpec = LedgerSpec()
    extenders: Mapping[str, ExtenderAck] = {}  # read only
    created: str | None = None  # RFC 3339, by the API server's clock


class Batch(NamedTuple, Generic[S]):
    """What one watch delivers at once; of one kind of object."""

    kind: type[S]
    updates: tuple[S, ...]
    removed: tuple[str, ...] = ()  # keys; one that was never seen may be among them
    is_full_list: bool = False  # after a list: what is not in ``seen`` is gone


class WatchStatus(NamedTuple):
    """How the watch of one kind is doing."""

    kind: str  # "nodes", "pods", "nodegpus"; where several have one name: "podgroups.v1alpha1.scheduling.x-k8s.io"
    synced: bool  # a complete list was delivered
    last_event_age_s: float | None  # since the server spoke of it: a page, a watch taken, an event, a bookmark
    relists: int  # lists after the first: the watch had fallen too far behind
    failures: int  # calls that failed and streams that broke
    error: str | None  # what is wrong now, for people
    # How long the object that was created last took to get here. Only a creation carries the server's time; in whole
    # seconds, so up to one is too much, as is what our clock is ahead of the server's. None: none was created yet.
    lag_s: float | None
    served: bool = True  # the API server knows of such a kind; else there are none
    unreadable: int = 0  # objects that cannot be read; each stays as it was when it was last read
    still_s: float | None = None  # since its thread last did something; None: it was not begun
    ended: bool = False  # its thread has ended, though nobody stopped it


def removed_keys(batch: Batch[Any], known: Collection[str]) -> set[str]:
    """The keys of what is no more, of what was known; and those that are named as gone, known or not."""
    gone = set(batch.removed)
    return gone | set(known) - {each.key for each in batch.updates} if batch.is_full_list else gone
