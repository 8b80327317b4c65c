"""The planner's custom resources: ``PlacementReservation``, the places of a gang, and ``PlacementLedger``.

A reservation lists the pods of a gang and their nodes. It is in effect only while the ledger of its pool lists it with
its hash: a single write of the ledger, with its resource version as precondition, commits a gang. So the API server
rejects the write of one of two concurrent planners, whatever their clocks show, and a crash between two writes leaves
no ambiguous state.

In ``status.extenders`` of the ledger, extenders acknowledge the proposed reservations (docs/gangs.md).
"""

from __future__ import annotations

from enum import Enum
from hashlib import sha256
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gputopo.crd.definition import CrdKind, crd_definition, structural_schema
from gputopo.labels.keys import GPU_RESOURCES

VERSION = "v1alpha1"
RESERVATION_KIND = "PlacementReservation"
RESERVATIONS = "placementreservations"
LEDGER_KIND = "PlacementLedger"
LEDGERS = "placementledgers"
SINGLE_POD_PREFIX = "pod."  # prefix of the gang name of a single planned pod, followed by its UID
POOL = "gpus"  # the default name of the ledger


def _limit(**limits: object) -> Meta:
    """Return a limit that the API server enforces. Readers do not: they also accept objects of later versions."""
    return Meta(extra_json_schema=limits)


# An object in etcd has at most 1.5 MiB; a seat or an entry takes about 200 bytes.
_MANY = _limit(maxItems=10_000)
_Uid = Annotated[str, _limit(minLength=1, maxLength=128)]
_Name = Annotated[str, _limit(minLength=1, maxLength=253)]
_Line = Annotated[str, _limit(maxLength=512)]
_Count = Annotated[int, _limit(minimum=0)]
_Time = Annotated[str, _limit(maxLength=64)]


class PlannedMember(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A member of a gang and its node."""

    uid: _Uid  # UID of the pod
    name: _Name  # name of the pod; its namespace is the reservation's
    # Node of the pod. None: it requests no GPU, and kube-scheduler chooses the node.
    node: _Name | None = None
    # Devices that the member takes on the node: pairs of resource and number.
    gpus: Annotated[tuple[tuple[str, int], ...], _limit(maxItems=64)] = ()
    # Indices of the GPUs that the device plugin is expected to allocate; (): unknown.
    expected: Annotated[tuple[_Count, ...], _limit(maxItems=256)] = ()
    rank: _Count | None = None  # rank of the member in its gang, from 0


class HeldCapacity(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A capacity hold: devices of a node that are reserved, once free, for a gang that does not fit yet."""

    node: _Name  # name of the node
    gpus: _Count  # number of devices of the resource
    # Name of the resource. Default: nvidia.com/gpu.
    resource: Annotated[str, _limit(minLength=1, maxLength=317)] = GPU_RESOURCES[0]


class PlannedEviction(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod that is evicted for the gang of a capacity hold."""

    uid: _Uid  # UID of the pod
    namespace: _Name  # namespace of the pod
    name: _Name  # name of the pod
    node: _Name  # node on which the pod runs
    unit: _Line  # gang or single pod that the pod is evicted with, as NAMESPACE/NAME
    gpus: _Count = 0  # number of devices that become free
    # NAMESPACE/UID of the object that creates the pods of the unit again. Empty: `unit`.
    key: _Line = ""
    # Seconds that the eviction gives the pod to end: its grace period, at most `maxGrace` of the policy.
    grace_s: _Count | None = None


class Preemption(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The intent to evict pods, so that the capacity of a hold becomes free.

    The write of the ledger that makes the hold effective makes the intent effective too. From then on every planner
    that leads continues it.
    """

    evictions: Annotated[tuple[PlannedEviction, ...], _MANY]  # pods to evict
    rule: _Line  # name of the rule in the policy file that allows the evictions
    reason: Annotated[str, _limit(maxLength=4096)] = ""  # why the pods are evicted, as a text for users
    # Work that is lost, of all units: GPUs x (time since the last checkpoint + restart + grace period).
    gpu_hours: Annotated[float, _limit(minimum=0)] = 0.0
    cost: Annotated[float, _limit(minimum=0)] | None = None  # cost of the lost work, in the unit of node-cost-per-hour
    timeout_s: Annotated[float, _limit(minimum=0)] = 600.0  # seconds for which refused evictions are retried
    # Whether the pods were placed by backfill on the capacity that is held for this gang: they are evicted in any mode
    # of preemption.
    yields: bool = False


class Backfill(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The places are on capacity that is held for another gang, until that gang can start."""

    gang: _Line  # gang that the capacity is held for, as NAMESPACE/NAME
    # RFC 3339: the places are committed before this time, or withdrawn. Members that are not bound one bind timeout
    # later are rolled back.
    start_by: _Time
    until: _Time  # RFC 3339: the estimated start of the other gang; the members are expected to end by then


class ReservationSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A plan. Never changed: another plan is another reservation."""

    # Name of the gang, in the namespace of the reservation. Empty: a batch of single pods.
    gang: Annotated[str, _limit(maxLength=253)]
    # The members of the gang and their nodes.
    seats: Annotated[tuple[PlannedMember, ...], _MANY] = ()
    # Devices that are reserved for a gang that does not fit yet.
    held: Annotated[tuple[HeldCapacity, ...], _MANY] = ()
    timeout_s: Annotated[float, _limit(minimum=0)] = 30.0  # seconds from ungating until all members are bound
    domain: _Line | None = None  # topology domain that contains all members, such as "clique=7b96.1"
    # Bottleneck of the rings inside the nodes, GB/s, both ways; None: unknown, or no ring.
    gbps: Annotated[float, _limit(minimum=0)] | None = None
    attempt: Annotated[int, _limit(minimum=1)] = 1  # number of the plan, from 1
    # Priority of the gang of a capacity hold: pods and gangs of a higher priority ignore the hold.
    priority: int = 0
    held_since: _Time | None = None  # RFC 3339: when the gang got its first hold; the age of a hold is limited
    preemption: Preemption | None = None  # pods that are evicted, so that the capacity of a hold becomes free
    backfill: Backfill | None = None  # condition of places on capacity that is held for another gang


class ReservationState(Enum):
    """The state in the status of a reservation, for people. The ledger decides what is in effect."""

    HELD = "Held"  # the gang does not fit yet; capacity is held for it
    PROPOSED = "Proposed"
    COMMITTED = "Committed"
    BOUND = "Bound"
    ROLLING_BACK = "RollingBack"
    FAILED = "Failed"


class ReservationStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Information for people; a restarted planner reads ``deadline``."""

    state: ReservationState | None = None  # state of the reservation; the ledger decides what is in effect
    # Why the reservation is in this state, as a text for users.
    reason: Annotated[str, _limit(maxLength=4096)] | None = None
    bound: _Count = 0  # number of members that are bound
    members: _Count = 0  # number of members that the plan places
    nodes: _Count = 0  # number of nodes that the plan uses
    gpus: _Count = 0  # number of GPUs that the plan uses
    # RFC 3339: time by which all members must be bound, set when the first one is ungated. Of a preemption: time until
    # which the eviction of further units may begin.
    deadline: _Time | None = None
    estimate: _Time | None = None  # RFC 3339: expected start of a gang with a capacity hold; None: unknown
    # Units of a preemption whose eviction has begun. Each planner that leads finishes them.
    evicting: Annotated[tuple[_Line, ...], _MANY] = ()
    # Pods, as NAMESPACE/NAME, that were evicted and did not end in time. Other gangs may preempt meanwhile.
    stuck: Annotated[tuple[_Line, ...], _MANY] = ()


class EntryPhase(Enum):
    """The phase of a reservation in the ledger."""

    HELD = "Held"  # a capacity hold: its ``held`` is in effect for all other pods
    PROPOSED = "Proposed"  # extenders reject conflicting pods, and acknowledge or block it
    COMMITTED = "Committed"  # its members may be ungated


class LedgerEntry(msgspec.Struct, frozen=True, rename="camel"):
    """A reservation that is in effect."""

    uid: _Uid  # UID of the reservation
    namespace: _Name  # namespace of the reservation
    name: _Name  # name of the reservation
    hash: Annotated[str, _limit(pattern="^[0-9a-f]{64}$")]  # SHA-256 of its spec
    # Held: a capacity hold; Proposed: extenders acknowledge or block it; Committed: its members may be ungated.
    phase: EntryPhase


class PastPreemption(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A preemption that limits later ones: by the evictions of an hour, and by the cool-down of its victims."""

    hold: _Uid  # UID of the reservation
    at: _Time  # RFC 3339: when the ledger listed it
    pods: _Count = 0  # number of pods to evict
    # Workloads whose pods are evicted, as NAMESPACE/NAME of a gang or NAMESPACE/UID of their owner.
    units: Annotated[tuple[_Line, ...], _limit(maxItems=256)] = ()
    # Number of devices of the pods to evict of each of `units`, in the same order, without pods of the namespace of the
    # gang that they are evicted for. The other units have one.
    unit_devices: Annotated[tuple[_Count, ...], _limit(maxItems=256)] = ()
    # Priority of the gang: the cool-down does not protect from gangs of a higher one. Unset: it protects from all.
    priority: int | None = None

    def devices_by_unit(self) -> dict[str, int]:
        """Return the number of devices that the cool-down of each unit protects; 1 in a record without numbers."""
        return dict.fromkeys(self.units, 1) | dict(zip(self.units, self.unit_devices, strict=False))


class LedgerSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The reservations that are in effect in a pool."""

    planner: _Line = ""  # identity of the planner that wrote last; a new leader writes its identity first
    epoch: _Count = 0  # number of the term of leadership; every new leader increases it
    # Reservations that are in effect.
    entries: Annotated[tuple[LedgerEntry, ...], _MANY] = ()
    lease: _Line = ""  # the planner's Lease as NAMESPACE/NAME, for `gputopo gangs`
    # The planner's --levels, for `gputopo gangs`.
    levels: Annotated[str, _limit(maxLength=4096)] = ""
    # The last preemptions, so that the limits of evictions survive a change of the leader.
    preemptions: Annotated[tuple[PastPreemption, ...], _limit(maxItems=256)] = ()


class ExtenderAck(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The acknowledgement of an extender, which writes it under ``status.extenders``."""

    pod: _Line = ""  # the extender's pod as NAMESPACE/NAME, so that the planner can check that the pod exists
    # Generation of the ledger that the extender enforces: it rejects pods that conflict with the entries.
    generation: _Count = 0
    blocked: Annotated[
        tuple[_Uid, ...], _MANY
    ] = ()  # UIDs of proposed reservations that the extender cannot acknowledge
    term: _Count = 0  # number of the period of answering; increased each time the extender starts to answer again
    # Identities of earlier processes of the pod that the ledger listed when the extender registered; they have ended.
    replaces: Annotated[tuple[Annotated[str, _limit(maxLength=128)], ...], _limit(maxItems=16)] = ()


class LedgerStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The registered extenders by identity. An extender that is not listed answers no request."""

    # Acknowledgement of each registered extender, by its identity.
    extenders: Annotated[dict[str, ExtenderAck], _limit(maxProperties=1000)] = {}


def is_single_pod(gang: str) -> bool:
    """Return whether a gang's name (``spec.gang``) is that of a single pod."""
    return gang.startswith(SINGLE_POD_PREFIX)


def gang_title(namespace: str, spec: ReservationSpec) -> str | None:
    """Return the gang of a reservation as NAMESPACE/NAME; None for single pods."""
    return None if not spec.gang or is_single_pod(spec.gang) else f"{namespace}/{spec.gang}"


def spec_hash(spec: ReservationSpec) -> str:
    """Return the SHA-256 of the canonical JSON of a plan; the ledger's entry contains it."""
    return sha256(msgspec.json.encode(spec, order="deterministic")).hexdigest()


class _Reservation(msgspec.Struct):
    spec: ReservationSpec
    status: ReservationStatus = ReservationStatus()


class _Ledger(msgspec.Struct):
    spec: LedgerSpec
    status: LedgerStatus = LedgerStatus()


def reservation_crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition of ``PlacementReservation``."""
    schema = structural_schema(_Reservation)
    schema["properties"]["spec"]["x-kubernetes-validations"] = [
        {"rule": "self == oldSelf", "message": "a plan is immutable: create another reservation for another plan"}
    ]
    kind = CrdKind(
        RESERVATION_KIND,
        RESERVATIONS,
        VERSION,
        "The nodes of the members of a gang. Written by gputopo's planner; in effect while the ledger lists it.",
        (
            _column("Gang", ".spec.gang"),
            _column("State", ".status.state"),
            _column("Members", ".status.members", "integer"),
            _column("Bound", ".status.bound", "integer"),
            _column("Nodes", ".status.nodes", "integer"),
            _column("GPUs", ".status.gpus", "integer"),
            _column("Bandwidth", ".spec.gbps", "number"),
            _column("Domain", ".spec.domain"),
            _column(
                "Deadline", ".status.deadline"
            ),  # not "date": kubectl prints dates as ages, which a future time has not
            _column("Reason", ".status.reason") | {"priority": 1},
            _column("Age", ".metadata.creationTimestamp", "date"),
        ),
        namespaced=True,
        short=("pres",),
    )
    return crd_definition(kind, schema, status=True)


def ledger_crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition of ``PlacementLedger``."""
    kind = CrdKind(
        LEDGER_KIND,
        LEDGERS,
        VERSION,
        "The reservations in effect and the extenders' acknowledgements. Written by gputopo's planner and extenders.",
        (
            _column("Planner", ".spec.planner"),
            _column("Epoch", ".spec.epoch", "integer"),
            _column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )
    return crd_definition(kind, structural_schema(_Ledger), status=True)


def _column(name: str, path: str, of: str = "string") -> dict[str, Any]:
    return {"name": name, "type": of, "jsonPath": path}
