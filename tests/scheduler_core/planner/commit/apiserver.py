"""An API server for the model check: objects with versions and preconditions, and watches that lag."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from gputopo.crd.reservations import EntryPhase, ExtenderAck, LedgerSpec, ReservationSpec, ReservationStatus, spec_hash
from gputopo.labels import keys
from scheduler_core.cache.events import Batch, LedgerUpdate, NodeGpusUpdate, NodeUpdate, PodUpdate, ReservationUpdate
from scheduler_core.cache.full_pods import HOSTNAME
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.watch import pod_update
from scheduler_core.planner.commit.ledger import active_entries
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.gang.pod_source import PlannerPod, planner_pod
from scheduler_core.request.full_pod import FullPod
from scheduler_core.request.pod import NODE_NAME, Pod

GPU = "nvidia.com/gpu"
TWO = {"n0": 2, "n1": 2}  # nodes and their GPUs
NODES = TWO | {"n2": 2}
# Where the pods without gate go that each scheduler places: what two of them do to each other is none of ours.
OWN = (frozenset({"n0", "n1"}), frozenset({"n2"}))
OLD = "2026-11-21T00:00:00Z"  # when pods were created
SPACE = "team"
Json = dict[str, Any]


class Conflict(Exception):  # noqa: N818  an answer
    """409."""


class NotFound(Exception):  # noqa: N818  an answer
    """404."""


class Event(NamedTuple):
    """A watch event."""

    kind: type[Any]
    key: str
    object: Any  # a pod's JSON, or an update of ``cache/events.py``; None: deleted
    at: float


class ApiServer:
    """Objects with one revision counter, as in etcd."""

    def __init__(self, nodes: Mapping[str, int] = TWO) -> None:
        """``nodes``: GPUs by node."""
        self.nodes = nodes
        self.now = 0.0
        self.deletion_timestamp = "2026-11-21T22:26:00Z"  # of pods that are evicted and do not end
        self.version = 0
        self.pods: dict[str, Json] = {}  # by UID
        self.reservations: dict[str, ReservationUpdate] = {}
        self.ledger: LedgerUpdate | None = None
        self.events: list[Event] = []
        self._uids = 0

    # Reads.

    def listed(self, kind: type[Any]) -> list[Any]:
        """Return all objects of a kind, as watches deliver them."""
        if kind is PlannerPod:
            return list(self.pods.values())
        if kind is ReservationUpdate:
            return list(self.reservations.values())
        if kind is LedgerUpdate:
            return [] if self.ledger is None else [self.ledger]
        if kind is NodeUpdate:
            return [_node(*each) for each in self.nodes.items()]
        assert kind is NodeGpusUpdate
        return []

    def bound(self, node: str) -> int:
        """Return the GPUs of a node that pods use."""
        return sum(gpus(pod) for pod in self.pods.values() if pod["spec"].get("nodeName") == node)

    def committed(self, node: str) -> int:
        """Return the GPUs of a node that are committed to unbound pods."""
        if self.ledger is None:
            return 0
        found = active_entries(self.ledger.spec, self.reservations)
        return sum(
            number
            for uid, entry in found.items()
            if entry.phase is EntryPhase.COMMITTED
            for seat in self.reservations[uid].spec.seats
            if seat.node == node and seat.uid in self.pods and not self.pods[seat.uid]["spec"].get("nodeName")
            for _, number in seat.gpus
        )

    # Pods.

    def create_pod(
        self,
        name: str,
        number: int,
        gang: str | None = None,
        size: int = 0,
        more: Json | None = None,
        *,
        priority: int = 0,
        created: str = OLD,
    ) -> str:
        """Create a pod of a ReplicaSet. ``gang``: gated, a member. ``more``: merged into it."""
        uid = self.uid("pod")
        said = {keys.POD_GANG.key: gang, keys.POD_GANG_SIZE.key: str(size)} if gang else {}
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": f"of-{gang or name}", "controller": True}
        made = {
            "metadata": {
                "name": f"{name}-{uid}",
                "namespace": SPACE,
                "uid": uid,
                "annotations": said,
                "ownerReferences": [owner],
                "creationTimestamp": created,
            },
            "spec": {
                "schedulerName": "s",
                "priority": priority,
                "containers": [{"name": "c", "resources": {"limits": {GPU: str(number)}}}],
                "schedulingGates": [{"name": keys.GATE}] if gang else [],
            },
            "status": {"phase": "Pending"},
        }
        self._put_pod(_merged(made, more or {}))
        return uid

    def forge_pod(self, reservation: str, node: str, *, gang: str | None = None, gated: bool = False) -> str:
        """Create a tenant's pod that claims to be ungated and pinned by a planner; no scheduler binds it."""
        pin = {"key": NODE_NAME, "operator": "In", "values": [node]}
        terms = {"nodeSelectorTerms": [{"matchFields": [pin]}]}
        spec = {
            "schedulingGates": [{"name": "example.com/never"}] if gated else [],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        }
        metadata = {"annotations": {keys.POD_RESERVATION.key: reservation}}
        return self.create_pod("forged", 1, gang, 1, {"metadata": metadata, "spec": spec})

    def bind(self, uid: str, node: str) -> None:
        """Bind a pod, as kube-scheduler does. Raises ``NotFound``, ``Conflict``."""
        pod = self._pod(uid)
        if pod["spec"].get("nodeName") or pod["spec"]["schedulingGates"]:
            raise Conflict
        self._put_pod(_merged(pod, {"spec": {"nodeName": node}}))

    def patch_pod(self, body: Json) -> Json:
        """Apply a merge patch with both preconditions."""
        pod = self._pod(body["metadata"]["uid"])
        if pod["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict
        return self._put_pod(_merged(pod, body))

    def delete_pod(self, uid: str, version: str = "") -> None:
        """Delete a pod at once. ``version``: precondition; "": none."""
        if version not in ("", self._pod(uid)["metadata"]["resourceVersion"]):
            raise Conflict
        del self.pods[uid]
        self._tell(PlannerPod, uid, None)

    def evict_pod(self, uid: str) -> None:
        """Evict a pod, for a hold that the ledger listed, and whose status named the unit and a deadline before.

        A pod with a finalizer terminates, and stays until ``delete_pod``.
        """
        assert any(self._was_held(each) for each in self._holds_that_evict(uid)), f"{uid} is evicted for no hold"
        pod = self._pod(uid)
        if pod["metadata"].get("finalizers"):
            self._put_pod(_merged(pod, {"metadata": {"deletionTimestamp": self.deletion_timestamp}}))
        else:
            self.delete_pod(uid)

    def _holds_that_evict(self, uid: str) -> set[str]:
        """Return the UIDs of holds, also former ones, that list a pod to be evicted and have begun its unit."""
        shown = (event.object for event in self.events if event.kind is ReservationUpdate and event.object is not None)
        return {
            each.key
            for each in shown
            if (intent := each.spec.preemption) is not None
            and each.status.deadline is not None
            and any(eviction.uid == uid and eviction.unit in each.status.evicting for eviction in intent.evictions)
        }

    def _was_held(self, reservation: str) -> bool:
        ledgers = (event.object for event in self.events if event.kind is LedgerUpdate and event.object is not None)
        return any(
            each.uid == reservation and each.phase is EntryPhase.HELD for of in ledgers for each in of.spec.entries
        )

    # Nodes, reservations and the ledger.

    def change_node(self, name: str, number: int) -> None:
        """Give a node another number of GPUs."""
        self.nodes = {**self.nodes, name: number}
        self._tell(NodeUpdate, name, _node(name, number))

    def create_reservation(self, name: str, spec: ReservationSpec, namespace: str = SPACE) -> ReservationUpdate:
        """Create it."""
        uid = self.uid("plan")
        return self._put_reservation(ReservationUpdate(uid, namespace, name, spec, spec_hash(spec)))

    def write_status(
        self, of: ReservationUpdate, status: ReservationStatus, unless_bound: Member | None = None
    ) -> ReservationUpdate:
        """Write a status, with preconditions."""
        if unless_bound is not None and self._pod(unless_bound.uid)["spec"].get("nodeName"):
            raise Conflict
        known = self.reservations.get(of.key)
        if known is None:
            raise NotFound
        if known.version != of.version:
            raise Conflict
        return self._put_reservation(known._replace(status=status))

    def delete_reservation(self, uid: str) -> None:
        """Delete by UID."""
        if self.reservations.pop(uid, None) is None:
            raise NotFound
        self._tell(ReservationUpdate, uid, None)

    def delete_ledger(self) -> None:
        """Delete the ledger with all entries."""
        ledger, self.ledger = self.ledger, None
        assert ledger is not None
        self._tell(LedgerUpdate, ledger.key, None)

    def create_ledger(self, name: str, spec: LedgerSpec) -> LedgerUpdate:
        """Create the ledger."""
        if self.ledger is not None:
            raise Conflict
        return self._put_ledger(LedgerUpdate(name, self.uid("ledger"), "", 1, spec))

    def write_ledger(self, over: LedgerUpdate, spec: LedgerSpec) -> LedgerUpdate:
        """Replace the spec, by compare-and-swap."""
        ledger = self._ledger_of(over)
        return self._put_ledger(ledger._replace(spec=spec, generation=ledger.generation + (spec != ledger.spec)))

    def drop(self, over: LedgerUpdate, extenders: dict[str, ExtenderAck]) -> LedgerUpdate:
        """Replace the status, by compare-and-swap."""
        return self._put_ledger(self._ledger_of(over)._replace(extenders=extenders))

    def apply(self, me: str, said: ExtenderAck | None) -> None:
        """Apply an extender's own part of the status (server-side apply)."""
        if self.ledger is None:
            return
        others = {name: each for name, each in self.ledger.extenders.items() if name != me}
        self._put_ledger(self.ledger._replace(extenders=others if said is None else others | {me: said}))

    def uid(self, kind: str) -> str:
        """Create it."""
        self._uids += 1
        return f"{kind}{self._uids}"

    def _ledger_of(self, over: LedgerUpdate) -> LedgerUpdate:
        if self.ledger is None:
            raise NotFound
        if self.ledger.version != over.version:
            raise Conflict
        return self.ledger

    def _pod(self, uid: str) -> Json:
        if uid not in self.pods:
            raise NotFound
        return self.pods[uid]

    def _put_pod(self, pod: Json) -> Json:
        made = _merged(pod, {"metadata": {"resourceVersion": self._next()}})
        self.pods[made["metadata"]["uid"]] = made
        self._tell(PlannerPod, made["metadata"]["uid"], made)
        return made

    def _put_reservation(self, made: ReservationUpdate) -> ReservationUpdate:
        made = made._replace(version=self._next())
        self.reservations[made.key] = made
        self._tell(ReservationUpdate, made.key, made)
        return made

    def _put_ledger(self, made: LedgerUpdate) -> LedgerUpdate:
        self.ledger = made._replace(version=self._next())
        self._tell(LedgerUpdate, made.key, self.ledger)
        return self.ledger

    def _next(self) -> str:
        self.version += 1
        return str(self.version)

    def _tell(self, kind: type[Any], key: str, made: Any) -> None:
        self.events.append(Event(kind, key, made, self.now))


class Watcher:
    """The watches of one process: events of each kind arrive in order, and late."""

    def __init__(self, server: ApiServer, kinds: tuple[type[Any], ...], read: Any) -> None:
        self._server = server
        self._read = read  # JSON of a pod -> the value that the process keeps, and its kind
        self._kinds = kinds
        self._at: dict[type[Any], int] = {}

    def lists(self) -> list[Batch[Any]]:
        """List everything; later changes arrive as events."""
        found = []
        for kind in self._kinds:
            self._at[kind] = len(self._server.events)
            found.append(self._batch(kind, [(None, each) for each in self._server.listed(kind)], complete=True))
        return found

    def oldest(self) -> float | None:
        """Time of the first event that has not arrived."""
        waiting = [self._server.events[at].at for kind in self._kinds if (at := self._next(kind)) is not None]
        return min(waiting, default=None)

    def behind(self) -> list[type[Any]]:
        """Kinds with events that have not arrived."""
        return [kind for kind in self._kinds if self._next(kind) is not None]

    def hear(self, kind: type[Any]) -> Batch[Any]:
        """Deliver the next event of a kind."""
        at = self._next(kind)
        assert at is not None
        self._at[kind] = at + 1
        event = self._server.events[at]
        return self._batch(kind, [(event.key, event.object)], complete=False)

    def _next(self, kind: type[Any]) -> int | None:
        events = self._server.events
        return next((at for at in range(self._at[kind], len(events)) if events[at].kind is kind), None)

    def _batch(self, kind: type[Any], found: list[tuple[str | None, Any]], *, complete: bool) -> Batch[Any]:
        if kind is PlannerPod:
            kind, read = self._read
            found = [(key, None if each is None else read(each)) for key, each in found]
        gone = tuple(key for key, each in found if each is None and key is not None)
        return Batch(kind, tuple(each for _, each in found if each is not None), gone, is_full_list=complete)


def candidate_of(pod: Json) -> PlannerPod | None:
    """Return a pod as a planner keeps it."""
    return _candidate(msgspec.json.encode(pod))


def pod_of(pod: Json) -> Pod:
    """Return a pod as kube-scheduler sends it."""
    return msgspec.convert(pod, Pod)


def seen_of(pod: Json) -> PodUpdate | None:
    """Return a pod as an extender keeps it."""
    return _seen(msgspec.json.encode(pod))


@lru_cache(maxsize=4096)
def _candidate(pod: bytes) -> PlannerPod | None:
    found = msgspec.json.decode(pod, type=FullPod)
    return planner_pod(found.metadata.uid, found)


@lru_cache(maxsize=4096)
def _seen(pod: bytes) -> PodUpdate | None:
    found = msgspec.json.decode(pod, type=Pod)
    return pod_update(found.metadata.uid, found)


def gpus(pod: Json) -> int:
    """Return the GPUs that a pod asks for."""
    return int(pod["spec"]["containers"][0]["resources"]["limits"][GPU])


def pinned(pod: Json) -> str | None:
    """Return the node that a pod's affinity names."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return str(terms[0]["matchFields"][0]["values"][0]) if terms else None


def _node(name: str, number: int) -> NodeUpdate:
    labelled = msgspec.convert({"metadata": {"name": name, "labels": {HOSTNAME: name}}}, FullNode)
    return NodeUpdate(name, NodeFacts(None, described=False, allocatable=((GPU, number),)), labelled)


def _merged(one: Json, other: Json) -> Json:
    """Merge as RFC 7396, without removal."""
    found = dict(one)
    for key, value in other.items():
        before = found.get(key)
        found[key] = _merged(before, value) if isinstance(value, dict) and isinstance(before, dict) else value
    return found
