"""What goes on in the cluster, as ``sightings``: one list-and-watch per kind, each on a thread of its own.

    Kube ──list, watch──▶ Reflector ──▶ Batch ──▶ ``deliver`` (on the reflector's thread)

What is told is new: the heartbeat of a Node, or a pod that learned its address, is not delivered. Of a pod without GPUs
nothing is remembered, so the end of any pod is delivered, by its UID.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from gputopo.crd.reservations import spec_hash
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import GoneError, NotFoundError
from gputopo.kube.objects import PlacementLedger, PlacementReservation
from gputopo.kube.projection import Delta, Projection, WatchSource
from gputopo.kube.rbac import LEDGERS, NODE_GPUS, NODES, PODS, RESERVATIONS
from gputopo.kube.reflector import Reflector, ReflectorStatus, WatchTiming
from gputopo.kube.watch_stream import ObjectIdentity
from gputopo.labels import keys
from gputopo.timing import WATCH_SILENT_S
from scheduler_core.cache.events import (
    Batch,
    LedgerUpdate,
    NodeGpusUpdate,
    NodeUpdate,
    PodUpdate,
    ReservationUpdate,
    WatchStatus,
)
from scheduler_core.cache.node import Node, parse_node
from scheduler_core.cache.node_record import parse_occupant
from scheduler_core.request.pod import Pod, pin_claim
from scheduler_core.request.pod_request import InvalidRequest, PodRequest, parse_request

# What has ended holds nothing. The server leaves it out of lists, and sends a DELETED when a pod ends.
_UNFINISHED_PODS = ListOptions(fields="status.phase!=Succeeded,status.phase!=Failed")
_SHARED_FIELDS = ("nvlink", "pcie", "nics", "numa_nodes")
_JOIN_S = 1.0  # a thread that waits for an answer of the API server is not waited for: it delivers nothing any more
# A watch's thread did nothing for so long, not even fail: it hangs, and only a new process helps. Above all that a call
# may take by its own timeouts, the look-up of a name in DNS and the retries of the transport included.
STUCK_S = 600.0
_SHARED = 1 << 14  # values of which many objects have equal ones


class Watches:
    """The watches. Made by ``watching``."""

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
        """End the watches: when this returns, within about a second, nothing more is delivered."""
        self._stopping = True
        for _, reflector in self._reflectors:
            reflector.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_JOIN_S / len(self._threads))

    @property
    def synced(self) -> bool:
        """Whether a complete list of each kind was delivered."""
        return all(reflector.status.synced for _, reflector in self._reflectors)

    def status(self, now: float) -> tuple[WatchStatus, ...]:
        """How each is doing. ``now``: of the clock that ``watching`` was given."""
        return tuple(
            _status(kind, reflector.status, now, ended=self._ended(thread))
            for (kind, reflector), thread in zip(self._reflectors, self._threads, strict=True)
        )

    def _ended(self, thread: threading.Thread) -> bool:
        return thread.ident is not None and not thread.is_alive() and not self._stopping


def _status(kind: str, condition: ReflectorStatus, now: float, *, ended: bool) -> WatchStatus:
    heard, moved = condition.last_event_at, condition.moved
    return WatchStatus(
        kind,
        condition.synced,
        None if heard is None else max(0.0, now - heard),
        condition.relists,
        condition.failures,
        condition.error,
        condition.lag_s,
        condition.served,
        condition.unreadable,
        None if moved is None else max(0.0, now - moved),
        ended,
    )


def make_watches(
    kube: Kube,
    deliver: Callable[[Batch[Any]], None],
    clock: Callable[[], float],
    timing: WatchTiming = WatchTiming(),  # noqa: B008
    sources: Sources | None = None,
) -> Watches:
    """Watches of all that placement looks at; nothing is asked before ``start``.

    ``deliver`` is called on a thread of each, and must be quick: a watch waits for it. ``clock``: seconds, for ages.
    ``sources``: instead of ``SOURCES``.
    """
    timing = timing._replace(clock=clock)
    sources = sources or SOURCES
    plurals = [source.resource.plural for source in sources.values()]
    return Watches(
        tuple(
            (_called(source, plurals), Reflector(kube, source, partial(_deliver_delta, kind, deliver), timing))
            for kind, source in sources.items()
        )
    )


def _called(source: WatchSource[Any], plurals: list[str]) -> str:
    """What people call it: "nodes"; with version and group where several have that name."""
    resource = source.resource
    if plurals.count(resource.plural) == 1:
        return resource.plural
    return f"{resource.plural}.{resource.version}.{resource.group}"


def sources_with_parser(read: Callable[[Pod], PodRequest | InvalidRequest]) -> Sources:
    """``SOURCES``, with what pods ask for read by a policy; ``read`` is called on a watch's thread."""
    return {**SOURCES, PodUpdate: SOURCES[PodUpdate]._replace(value=partial(pod_update, read=read))}


def silence_reason(statuses: Iterable[WatchStatus], most_s: float = WATCH_SILENT_S) -> str | None:
    """Why what is known may be too old to go by: nothing was heard of a kind for longer than that. None: it is not."""
    for each in statuses:
        age = each.last_event_age_s
        if age is None or age > most_s:
            heard = "nothing" if age is None else f"nothing for {age:.0f} s"
            trouble = f": {each.error}" if each.error else ""
            return f"gputopo has heard {heard} from the API server of {each.kind}{trouble}"
    return None


def stuck(statuses: Iterable[WatchStatus]) -> str | None:
    """Return why this process must be restarted: a watch's thread has ended, or hangs. None: it need not be.

    That the API server does not answer is no reason: a new process would not be answered either.
    """
    for each in statuses:
        trouble = f": {each.error}" if each.error else ""
        if each.ended:
            return f"the thread that watches {each.kind} has ended{trouble}"
        if each.still_s is not None and each.still_s > STUCK_S:
            return f"the thread that watches {each.kind} has done nothing for {each.still_s:.0f} s{trouble}"
    return None


def list_all(kube: Kube, *kinds: type[Any]) -> tuple[Batch[Any], ...]:
    """All that placement looks at, once: a complete batch of each kind, or of these. Raises ``KubeError``.

    What cannot be read is left out, and is in ``kube.unreadable``.
    """
    sources = {**SOURCES, **RESERVATION_SOURCES} if kinds else SOURCES
    return tuple(list_kind(kube, kind, source) for kind, source in sources.items() if not kinds or kind in kinds)


def list_kind(kube: Kube, kind: type[Any], source: WatchSource[Any]) -> Batch[Any]:
    """All that there is of one source, once, as ``listed``. Raises ``KubeError``."""
    try:
        delta = _read(kube, source)
    except GoneError:  # the list grew too old between two pages
        delta = _read(kube, source)
    except NotFoundError:  # the kind is not served: nobody has published any
        delta = Delta(is_full_list=True)
    return Batch(kind, *delta)


def _read(kube: Kube, source: WatchSource[Any]) -> Delta[Any]:
    pages, reduction = kube.list_pages(source.resource, msgspec.Raw, source.query), Projection(source)
    found = reduction.apply_list(text for page in pages for text in page.items)
    kube.unreadable += reduction.unreadable
    return found


def _deliver_delta(kind: type[Any], deliver: Callable[[Batch[Any]], None], delta: Delta[Any]) -> None:
    deliver(Batch(kind, *delta))


def node_update(name: str, node: Node) -> NodeUpdate:
    """Machines of one model share all but their GPUs: that is 5 of 8 kB."""
    machine = parse_node(node)
    topology = machine.topology
    if topology is not None:
        shared = {field: _shared(getattr(topology, field)) for field in _SHARED_FIELDS}
        machine = msgspec.structs.replace(machine, topology=msgspec.structs.replace(topology, **shared))
    return NodeUpdate(name, machine)


def node_fingerprint(node: Node) -> Hashable:
    """All that ``read_node`` looks at, hashed: it takes 0.14 ms, and most news of a Node is none for us."""
    annotations, labels = node.metadata.annotations or {}, node.metadata.labels or {}
    allocatable = node.status.allocatable or {}
    return hash((annotations.get(keys.TOPOLOGY.key), frozenset(labels.items()), frozenset(allocatable.items())))


def pod_update(
    uid: str, pod: Pod, read: Callable[[Pod], PodRequest | InvalidRequest] = parse_request
) -> PodUpdate | None:
    """What is kept of a pod; None where it holds and wants no GPU."""
    occupant = parse_occupant(pod, read)
    if occupant is None:
        return None
    namespace, profile = sys.intern(occupant.namespace), _shared(occupant.profile)
    return PodUpdate(
        uid,
        occupant._replace(namespace=namespace, profile=profile),
        _name(pod.spec.node_name),
        _name(pod.status.nominated_node_name),
        _name(pod.spec.scheduler_name),
        claim=pin_claim(pod),
    )


def _gpus(name: str, gpus: NodeGpus) -> NodeGpusUpdate:
    return NodeGpusUpdate(name, gpus)


def _reservation(uid: str, found: PlacementReservation) -> ReservationUpdate:
    metadata, spec = found.metadata, found.spec
    return ReservationUpdate(
        uid, metadata.namespace, metadata.name, spec, spec_hash(spec), found.status, metadata.resource_version
    )


def ledger_update(name: str, found: PlacementLedger) -> LedgerUpdate:
    """What counts, and who vouches for it."""
    metadata = found.metadata
    return LedgerUpdate(
        name,
        metadata.uid,
        metadata.resource_version,
        metadata.generation,
        found.spec,
        found.status.extenders,
        metadata.creation_timestamp,
    )


@lru_cache(maxsize=_SHARED)
def _shared(value: Any) -> Any:
    """The one value for all that are equal to it."""
    return value


def _name(text: str | None) -> str | None:
    """One string for all pods that name it; None where nothing is named."""
    return sys.intern(text) if text else None


def _by_name(which: ObjectIdentity) -> str:
    return which.name


def uid_key(which: ObjectIdentity) -> str:
    """A ``Source``'s key of what outlives no name."""
    return which.uid


Sources = Mapping[type[Any], WatchSource[Any]]  # by the type of the update that a source makes
SOURCES: Sources = {
    NodeUpdate: WatchSource(NODES, Node, _by_name, node_update, node_fingerprint),
    PodUpdate: WatchSource(PODS, Pod, uid_key, pod_update, query=_UNFINISHED_PODS),
    NodeGpusUpdate: WatchSource(NODE_GPUS, NodeGpus, _by_name, _gpus),
}
# What planners write, for who must respect it. Where these kinds are not served, there is none.
RESERVATION_SOURCES: Sources = {
    ReservationUpdate: WatchSource(RESERVATIONS, PlacementReservation, uid_key, _reservation),
    LedgerUpdate: WatchSource(LEDGERS, PlacementLedger, _by_name, ledger_update),
}
