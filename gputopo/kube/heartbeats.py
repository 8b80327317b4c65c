"""The heartbeats of agents: a Lease per node, in a namespace of their own, as kubelets have theirs in kube-node-lease.

A ``NodeGpus`` has kilobytes, so an agent writes it only when its content changes. In between the agent renews the Lease
with the name of its node, which etcd stores in 200 to 300 bytes: ``renewTime`` is when the agent last saw the GPUs, and
``holderIdentity`` is the ``observedAt`` of the ``NodeGpus`` that still described them then.

The two objects are watched separately. So a Lease counts only together with the ``NodeGpus`` that it names: a reader
that has not received the last change yet must not take an old allocation for a confirmed one. An agent of a version
without Leases writes its heartbeat into ``observedAt``; the later of both times counts.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ForbiddenError, NotFoundError
from gputopo.kube.objects import ObjectMeta, Unreadable
from gputopo.kube.rbac import LEASES
from gputopo.timestamps import parse_timestamp

G = TypeVar("G", bound=NodeGpus)
HEARTBEAT_NAMESPACE = "gputopo-node-lease"
HEARTBEAT_QUERY = ListOptions(HEARTBEAT_NAMESPACE)
MAX_TIME_LENGTH = 64  # characters of a time
_Time = Annotated[str, Meta(max_length=MAX_TIME_LENGTH)]


class HeartbeatSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of ``coordination.k8s.io/v1`` LeaseSpec that agents write."""

    holder_identity: _Time | None = None
    renew_time: _Time | None = None


class HeartbeatLease(msgspec.Struct, frozen=True):
    """The Lease of an agent."""

    metadata: ObjectMeta
    spec: HeartbeatSpec = HeartbeatSpec()


class Heartbeat(NamedTuple):
    """The heartbeat in the Lease of a node."""

    confirms: str  # ``observedAt`` of the ``NodeGpus``
    at: str  # RFC 3339: when the agent last saw the GPUs


def heartbeat_of(lease: HeartbeatLease) -> Heartbeat | None:
    """Return the heartbeat; None: a field of the Lease is missing."""
    confirms, at = lease.spec.holder_identity, lease.spec.renew_time
    return Heartbeat(confirms, at) if confirms and at else None


def with_heartbeat(gpus: G, heartbeat: Heartbeat | None) -> G:
    """Return the ``NodeGpus`` as observed at the heartbeat, if the heartbeat is later and confirms this content."""
    if heartbeat is None or heartbeat.confirms != gpus.observed_at:
        return gpus
    at, before = parse_timestamp(heartbeat.at), parse_timestamp(gpus.observed_at)
    if at is None or (before is not None and at <= before):
        return gpus
    return msgspec.structs.replace(gpus, observed_at=heartbeat.at)


def list_heartbeats(kube: Kube) -> dict[str, Heartbeat]:
    """Return the heartbeats by node. If the user may not list them, that is noted in ``kube.unreadable``."""
    try:
        leases = kube.list_objects(LEASES, HeartbeatLease, HEARTBEAT_QUERY)
    except NotFoundError:
        return {}
    except ForbiddenError as error:
        note_forbidden(kube, error)
        return {}
    found = ((lease.metadata.name, heartbeat_of(lease)) for lease in leases)
    return {name: heartbeat for name, heartbeat in found if heartbeat is not None}


def note_forbidden(kube: Kube, error: ForbiddenError) -> None:
    """Note in ``kube.unreadable`` that heartbeats could not be read, and what follows from it."""
    if kube.from_file:  # a file without Leases: of a version without them, or of a reader who left them out
        return
    why = f"agents count as silent once their NodeGpus is old; allow to list leases there: {error}"
    kube.unreadable.append(Unreadable(LEASES.plural, HEARTBEAT_NAMESPACE, why))
