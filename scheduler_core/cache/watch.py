"""Watch the cluster and deliver updates as batches: one list-and-watch per kind, each on a thread of its own.

    Kube ──list, watch──▶ Reflector ──▶ Batch ──▶ ``deliver`` (on the reflector's thread)

Only changes that matter are delivered: not the heartbeat of a Node, nor the IP address of a pod. Pods without GPUs are
not remembered, so the end of every pod is delivered, by its UID.

To add a watch source (another kind of object): add it to ``SOURCES``, the type of its updates to ``events``, their
handling to ``ClusterCache.apply_batch``, and its permissions to ``gputopo.kube.rbac``.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache, partial
from math import inf
from typing import Any, NamedTuple

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from gputopo.crd.reservations import spec_hash
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ForbiddenError, GoneError, NotFoundError
from gputopo.kube.heartbeats import HEARTBEAT_QUERY, HeartbeatLease, heartbeat_of, note_forbidden
from gputopo.kube.objects import PlacementLedger, PlacementReservation
from gputopo.kube.projection import Delta, Projection, WatchSource
from gputopo.kube.rbac import LEASES, LEDGERS, NODE_GPUS, NODES, PODS, RESERVATIONS
from gputopo.kube.reflector import Reflector, ReflectorStatus, WatchTiming
from gputopo.kube.watch_stream import ObjectIdentity
from gputopo.labels import keys
from gputopo.timing import WATCH_SILENT_S
from scheduler_core.cache.events import (
    Batch,
    HeartbeatUpdate,
    LedgerUpdate,
    NodeGpusUpdate,
    NodeUpdate,
    PodUpdate,
    ReservationUpdate,
    WatchStatus,
)
from scheduler_core.cache.node import Node, parse_node
from scheduler_core.cache.node_record import parse_occupant
from scheduler_core.request.disruption import running_facts
from scheduler_core.request.node_load import NO_LOAD, NodeLoad
from scheduler_core.request.pod import Pod, pin_claim, placed_gang
from scheduler_core.request.pod_request import InvalidRequest, PodRequest, parse_request

_log = logging.getLogger(__name__)

# Finished pods hold no GPU. The API server leaves them out of lists, and sends DELETED when a pod finishes.
_UNFINISHED_PODS = ListOptions(fields="status.phase!=Succeeded,status.phase!=Failed")
_JOIN_S = 1.0  # longest wait for all threads; a thread that still waits for the API server delivers nothing any more
# A thread that did nothing for so long, not even fail, hangs, and only a new process helps. Longer than any call may
# take by its own timeouts, including DNS and the retries of the transport.
STUCK_S = 600.0
_UNREADABLE_LOG_S = 60.0  # between two log lines about objects of a kind that cannot be decoded
_MAX_INTERNED = 1 << 14  # values that many objects have in common


class Watches:
    """The running watches. Created by ``make_watches``."""

    def __init__(self, reflectors: tuple[tuple[str, Reflector[Any]], ...]) -> None:
        self._reflectors = reflectors
        self._stopping = False
        self._threads = [
            threading.Thread(target=reflector.run, name=f"watch-{kind}", daemon=True) for kind, reflector in reflectors
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the watches. Nothing is delivered after this returns, within about a second."""
        self._stopping = True
        for _, reflector in self._reflectors:
            reflector.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_JOIN_S / len(self._threads))

    @property
    def synced(self) -> bool:
        """True if a complete list of each kind was delivered."""
        return all(reflector.status.synced for _, reflector in self._reflectors)

    def status(self, now: float) -> tuple[WatchStatus, ...]:
        """Return the condition of each watch. ``now``: by the clock given to ``make_watches``."""
        return tuple(
            _status(kind, reflector.status, now, ended=self._ended(thread))
            for (kind, reflector), thread in zip(self._reflectors, self._threads, strict=True)
        )

    def _ended(self, thread: threading.Thread) -> bool:
        return thread.ident is not None and not thread.is_alive() and not self._stopping


def _status(kind: str, condition: ReflectorStatus, now: float, *, ended: bool) -> WatchStatus:
    last_event_at, moved = condition.last_event_at, condition.moved
    return WatchStatus(
        kind=kind,
        synced=condition.synced,
        last_event_age_s=None if last_event_at is None else max(0.0, now - last_event_at),
        relists=condition.relists,
        failures=condition.failures,
        error=condition.error,
        lag_s=condition.lag_s,
        served=condition.served,
        unreadable=condition.unreadable,
        idle_s=None if moved is None else max(0.0, now - moved),
        ended=ended,
        is_unavailable=condition.is_unavailable,
    )


class _LoggedError(NamedTuple):
    error: str | None = None
    is_unreadable: bool = False  # it is about objects that cannot be decoded
    at: float = -inf  # seconds


class WatchErrorLog:
    """Logs the errors of watches: each once when it begins, and once when it ends.

    Objects that cannot be decoded are logged at most once a minute: users may create and delete them all the time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: monotonic seconds."""
        self._clock = clock
        self._logged: dict[str, _LoggedError] = {}  # by watch

    def log_errors(self, watches: Iterable[WatchStatus]) -> None:
        """Log the errors that changed since the last call."""
        now = self._clock()
        for each in watches:
            logged = self._logged.get(each.kind, _LoggedError())
            is_same = logged.is_unreadable and (each.error is None or each.unreadable > 0)
            if each.error == logged.error or (is_same and now - logged.at < _UNREADABLE_LOG_S):
                continue
            self._logged[each.kind] = _LoggedError(each.error, is_same or each.unreadable > 0, now)
            level = logging.WARNING if each.error and each.served else logging.INFO  # not every cluster serves it
            _log.log(level, "watch", extra={"fields": {"kind": each.kind, "trouble": each.error}})


def make_watches(
    kube: Kube,
    deliver: Callable[[Batch[Any]], None],
    clock: Callable[[], float],
    timing: WatchTiming = WatchTiming(),  # noqa: B008
    sources: Sources | None = None,
    pause: Callable[[], None] = lambda: None,
) -> Watches:
    """Return watches of the sources, by default ``SOURCES``. No request is sent before ``start``.

    ``deliver`` is called on the thread of each watch, and must return quickly: the watch waits for it. ``clock``
    returns seconds, for ages. ``pause`` is called before an object is decoded, so that more urgent work comes first.
    """
    timing = timing._replace(clock=clock, pause=pause)
    sources = sources or SOURCES
    plurals = [source.resource.plural for source in sources.values()]
    return Watches(
        tuple(
            (_display_name(source, plurals), Reflector(kube, source, partial(_deliver_delta, kind, deliver), timing))
            for kind, source in sources.items()
        )
    )


def _display_name(source: WatchSource[Any], plurals: list[str]) -> str:
    """Return the name for people: "nodes"; with version and group where several kinds have that name."""
    resource = source.resource
    if plurals.count(resource.plural) == 1:
        return resource.plural
    return f"{resource.plural}.{resource.version}.{resource.group}"


def sources_with_parser(parse: Callable[[Pod], PodRequest | InvalidRequest]) -> Sources:
    """Return ``SOURCES`` with another parser of pod requests; ``parse`` is called on a watch's thread."""
    return {**SOURCES, PodUpdate: SOURCES[PodUpdate]._replace(value=partial(running_pod_update, parse=parse))}


def silence_reason(statuses: Iterable[WatchStatus], max_silence_s: float = WATCH_SILENT_S) -> str | None:
    """Return why the cache may be out of date: no news of a kind for too long. None: it is up to date."""
    for each in statuses:
        age = each.last_event_age_s
        if age is None or age > max_silence_s:
            since = "" if age is None else f" for {age:.0f} s"
            error = f": {each.error}" if each.error else ""
            return f"gputopo has received nothing about {each.kind} from the API server{since}{error}"
    return None


def restart_reason(statuses: Iterable[WatchStatus]) -> str | None:
    """Return why this process must be restarted: the thread of a watch has ended, or hangs. None: it need not be.

    An API server that does not answer is no reason: it would not answer a new process either.
    """
    for each in statuses:
        error = f": {each.error}" if each.error else ""
        if each.ended:
            return f"the thread that watches {each.kind} has ended{error}"
        if each.idle_s is not None and each.idle_s > STUCK_S:
            return f"the thread that watches {each.kind} has done nothing for {each.idle_s:.0f} s{error}"
    return None


def list_all(kube: Kube, *kinds: type[Any]) -> tuple[Batch[Any], ...]:
    """List each kind of ``SOURCES``, or these kinds, once. Return complete batches. Raises ``KubeError``.

    Objects that cannot be decoded are left out, and are in ``kube.unreadable``.
    """
    sources = {**SOURCES, **RESERVATION_SOURCES} if kinds else SOURCES
    return tuple(list_kind(kube, kind, source) for kind, source in sources.items() if not kinds or kind in kinds)


def list_kind(kube: Kube, kind: type[Any], source: WatchSource[Any]) -> Batch[Any]:
    """List all objects of one source once, as ``list_all`` does. Raises ``KubeError``."""
    try:
        delta = _list_objects(kube, source)
    except GoneError:  # the list grew too old between two pages
        delta = _list_objects(kube, source)
    except NotFoundError:  # the API server does not serve the kind: there are no objects
        delta = Delta(is_full_list=True)
    except ForbiddenError as error:
        if not source.optional:
            raise
        delta = Delta(is_full_list=True)
        note_forbidden(kube, error)  # of heartbeats: the only optional kind
    return Batch(kind, *delta)


def _list_objects(kube: Kube, source: WatchSource[Any]) -> Delta[Any]:
    projection = Projection(source._replace(fingerprint=None))  # no event follows
    pages = kube.list_readable(source.resource, projection.listed_kind, source.query)
    found = projection.apply_list(each for page in pages for each in page.items)
    kube.unreadable += projection.unreadable
    return found


def _deliver_delta(kind: type[Any], deliver: Callable[[Batch[Any]], None], delta: Delta[Any]) -> None:
    deliver(Batch(kind, *delta))


def node_update(name: str, node: Node) -> NodeUpdate:
    """Return the update of a Node. Machines of one model share all values but their GPUs: 5 of 8 kB."""
    return NodeUpdate(name, parse_node(node))


def node_fingerprint(node: Node) -> Hashable:
    """Return a hash of the fields that ``parse_node`` uses. Most changes of a Node are in other fields."""
    annotations, labels = node.metadata.annotations or {}, node.metadata.labels or {}
    allocatable = node.status.allocatable or {}
    return hash((annotations.get(keys.TOPOLOGY.key), frozenset(labels.items()), frozenset(allocatable.items())))


def pod_update(
    uid: str,
    pod: Pod,
    parse: Callable[[Pod], PodRequest | InvalidRequest] = parse_request,
    load: Callable[[Any], NodeLoad] = lambda _: NO_LOAD,
) -> PodUpdate | None:
    """Return the update of a pod; None where it requests no GPU. ``load``: as of ``parse_occupant``."""
    occupant = parse_occupant(pod, parse, load)
    if occupant is None:
        return None
    return PodUpdate(
        key=uid,
        occupant=occupant,
        node=_interned_name(pod.spec.node_name),
        nominated_node=_interned_name(pod.status.nominated_node_name),
        scheduler=_interned_name(pod.spec.scheduler_name),
        claim=pin_claim(pod),
        priority=pod.spec.priority or 0,
        gang=_interned_name(placed_gang(pod.metadata)),
    )


def running_pod_update(
    uid: str, pod: Pod, parse: Callable[[Pod], PodRequest | InvalidRequest] = parse_request
) -> PodUpdate | None:
    """Return the update of a pod, with the facts that decide whether it may be evicted."""
    found = pod_update(uid, pod, parse)
    running = None if found is None else running_facts(pod)
    return found if found is None or running is None else found._replace(running=running)


def _node_gpus_update(name: str, gpus: NodeGpus) -> NodeGpusUpdate:
    return NodeGpusUpdate(name, msgspec.structs.replace(gpus, kubelet=_interned(gpus.kubelet)))


def _heartbeat_update(name: str, lease: HeartbeatLease) -> HeartbeatUpdate | None:
    heartbeat = heartbeat_of(lease)
    return None if heartbeat is None else HeartbeatUpdate(name, heartbeat)


def _reservation_update(uid: str, found: PlacementReservation) -> ReservationUpdate:
    metadata, spec = found.metadata, found.spec
    return ReservationUpdate(
        key=uid,
        namespace=metadata.namespace,
        name=metadata.name,
        spec=spec,
        hash=spec_hash(spec),
        status=found.status,
        version=metadata.resource_version,
    )


def ledger_update(name: str, found: PlacementLedger) -> LedgerUpdate:
    """Return the update of a ledger. A generation that the ledger has not had yet acknowledges nothing."""
    metadata = found.metadata
    return LedgerUpdate(
        key=name,
        uid=metadata.uid,
        version=metadata.resource_version,
        generation=metadata.generation,
        spec=found.spec,
        extenders={
            identity: ack if ack.generation <= metadata.generation else msgspec.structs.replace(ack, generation=0)
            for identity, ack in found.status.extenders.items()
        },
        created=metadata.creation_timestamp,
    )


@lru_cache(maxsize=_MAX_INTERNED)
def _interned(value: Any) -> Any:
    """Return one object for all equal values."""
    return value


def _interned_name(text: str | None) -> str | None:
    """Return one object for all equal strings; None for an empty one."""
    return sys.intern(text) if text else None


def _name_key(which: ObjectIdentity) -> str:
    return which.name


def uid_key(which: ObjectIdentity) -> str:
    """Return the key of objects that may be replaced by another of the same name."""
    return which.uid


def full_name_key(which: ObjectIdentity) -> str:
    """Return the key of objects that other objects name: NAMESPACE/NAME, or NAME."""
    return which.full_name


Sources = Mapping[type[Any], WatchSource[Any]]  # by the type of the updates that the source delivers
SOURCES: Sources = {
    NodeUpdate: WatchSource(NODES, Node, _name_key, node_update, node_fingerprint),
    PodUpdate: WatchSource(PODS, Pod, uid_key, running_pod_update, query=_UNFINISHED_PODS),
    NodeGpusUpdate: WatchSource(NODE_GPUS, NodeGpus, _name_key, _node_gpus_update),
}
# The heartbeats of agents: without them, ``observedAt`` of ``NodeGpus`` is the heartbeat.
HEARTBEAT_SOURCES: Sources = {
    HeartbeatUpdate: WatchSource(
        LEASES, HeartbeatLease, _name_key, _heartbeat_update, query=HEARTBEAT_QUERY, optional=True
    )
}
# Written by planners. Where the API server does not serve these kinds, there are no reservations.
RESERVATION_SOURCES: Sources = {
    ReservationUpdate: WatchSource(RESERVATIONS, PlacementReservation, uid_key, _reservation_update),
    LedgerUpdate: WatchSource(LEDGERS, PlacementLedger, _name_key, ledger_update),
}
