"""What the planner writes down: ``PlacementReservation``, one gang's places, and ``PlacementLedger``, what counts.

A reservation says who goes where, for people and for the extender. It counts only while the ledger of its pool lists it
with its hash: one write of that one object, under the precondition of its resource version, is what commits a gang. So
of two planners one is refused, whatever their clocks say, and a crash between any two writes leaves nothing in doubt.

``status.extenders`` of the ledger is the channel by which extenders vouch for what is proposed (docs/gangs.md).
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
SINGLE_POD_PREFIX = "pod."  # of the gang name under which a single pod is planned, before its UID
POOL = "gpus"  # the ledger's name where nothing else is said


def _limit(**limits: object) -> Meta:
    """What the API server refuses. A reader does not: it takes what is there, also from a later version."""
    return Meta(extra_json_schema=limits)


# An object of etcd has 1.5 MiB at most, and a seat or an entry takes some 200 bytes of that.
_MANY = _limit(maxItems=10_000)
_Uid = Annotated[str, _limit(minLength=1, maxLength=128)]
_Name = Annotated[str, _limit(minLength=1, maxLength=253)]
_Line = Annotated[str, _limit(maxLength=512)]
_Count = Annotated[int, _limit(minimum=0)]
_Time = Annotated[str, _limit(maxLength=64)]


class Seat(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One member and its place."""

    uid: _Uid  # of the pod
    name: _Name  # of the pod
    node: _Name | None = None  # None: it holds no GPU, and kube-scheduler chooses
    # Devices of each resource that it takes there.
    gpus: Annotated[tuple[tuple[str, int], ...], _limit(maxItems=64)] = ()
    # Indices of the GPUs that it will most likely be given; (): not known.
    expected: Annotated[tuple[_Count, ...], _limit(maxItems=256)] = ()
    rank: _Count | None = None


class Holding(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Devices of a node that are kept for a gang that does not fit yet: what becomes free there is not for others."""

    node: _Name
    gpus: _Count  # of that resource
    resource: Annotated[str, _limit(minLength=1, maxLength=317)] = GPU_RESOURCES[0]


class ReservationSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A plan. Never changed: another plan is another reservation."""

    gang: Annotated[
        str, _limit(maxLength=253)
    ]  # its name; its namespace is the reservation's. A batch of single pods: ""
    seats: Annotated[tuple[Seat, ...], _MANY] = ()
    held: Annotated[tuple[Holding, ...], _MANY] = ()
    timeout_s: Annotated[float, _limit(minimum=0)] = 30.0  # from letting go to all bound
    domain: _Line | None = None  # "clique=7b96.1": all members are in it
    # Bottleneck of the rings inside the nodes, GB/s, both ways; None: unknown, or no ring.
    gbps: Annotated[float, _limit(minimum=0)] | None = None
    attempt: Annotated[int, _limit(minimum=1)] = 1


class ReservationState(Enum):
    """What has become of a reservation, in its status: for people. What counts is the ledger."""

    HELD = "Held"  # does not fit yet; what becomes free on those nodes is kept for it
    PROPOSED = "Proposed"
    COMMITTED = "Committed"
    BOUND = "Bound"
    ROLLING_BACK = "RollingBack"
    FAILED = "Failed"


class ReservationStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """For people, and ``deadline`` for a planner that starts anew."""

    state: ReservationState | None = None
    reason: Annotated[str, _limit(maxLength=4096)] | None = None
    bound: _Count = 0  # members
    members: _Count = 0
    nodes: _Count = 0
    gpus: _Count = 0
    deadline: _Time | None = None  # RFC 3339; set when the first member was let go
    estimate: _Time | None = None  # RFC 3339: when a gang that is held room for may start; None: nobody can say


class EntryPhase(Enum):
    """What the ledger says of a reservation."""

    HELD = "Held"  # its ``held`` counts, for everybody but its gang
    PROPOSED = "Proposed"  # extenders refuse what conflicts with it, and vouch or block
    COMMITTED = "Committed"  # its members may be let go


class LedgerEntry(msgspec.Struct, frozen=True, rename="camel"):
    """A reservation that counts."""

    uid: _Uid  # of the reservation
    namespace: _Name
    name: _Name
    hash: Annotated[str, _limit(pattern="^[0-9a-f]{64}$")]  # ``spec_hash``
    phase: EntryPhase


class LedgerSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What counts in a pool."""

    planner: _Line = ""  # who wrote it last; a new leader writes itself before anything else
    epoch: _Count = 0  # one more with every new leader
    entries: Annotated[tuple[LedgerEntry, ...], _MANY] = ()
    # For people who ask whether that one still plans, and by what: NAMESPACE/NAME of its Lease, and its --levels.
    lease: _Line = ""
    levels: Annotated[str, _limit(maxLength=4096)] = ""


class ExtenderAck(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What one extender has taken in. Written by it, under ``status.extenders``."""

    pod: _Line = ""  # NAMESPACE/NAME, where it runs in one: whether it still exists can be asked
    generation: _Count = 0  # of the ledger: all that it lists then is held, and others are refused what conflicts
    blocked: Annotated[tuple[_Uid, ...], _MANY] = ()  # UIDs of proposed reservations that it cannot vouch for (yet)
    term: _Count = 0  # one more each time it begins to answer again


class LedgerStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Which extenders answer, by identity. One that is not listed does not answer."""

    extenders: Annotated[dict[str, ExtenderAck], _limit(maxProperties=1000)] = {}


def is_single_pod(gang: str) -> bool:
    """Return whether a gang's name (``spec.gang``) is that of a single pod."""
    return gang.startswith(SINGLE_POD_PREFIX)


def gang_title(namespace: str, spec: ReservationSpec) -> str | None:
    """Return the gang of a reservation as NAMESPACE/NAME; None for single pods."""
    return None if not spec.gang or is_single_pod(spec.gang) else f"{namespace}/{spec.gang}"


def spec_hash(spec: ReservationSpec) -> str:
    """What ties a ledger's entry to the plan that it speaks of: SHA-256 of its canonical JSON."""
    return sha256(msgspec.json.encode(spec, order="deterministic")).hexdigest()


class _Reservation(msgspec.Struct):
    spec: ReservationSpec
    status: ReservationStatus = ReservationStatus()


class _Ledger(msgspec.Struct):
    spec: LedgerSpec
    status: LedgerStatus = LedgerStatus()


def reservation_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of ``PlacementReservation``."""
    schema = structural_schema(_Reservation)
    schema["properties"]["spec"]["x-kubernetes-validations"] = [
        {"rule": "self == oldSelf", "message": "a plan is never changed: another plan is another reservation"}
    ]
    kind = CrdKind(
        RESERVATION_KIND,
        RESERVATIONS,
        VERSION,
        "Where the members of a gang go. Written by gputopo's planner; counts while the ledger lists it.",
        (
            _column("Gang", ".spec.gang"),
            _column("State", ".status.state"),
            _column("Members", ".status.members", "integer"),
            _column("Bound", ".status.bound", "integer"),
            _column("Nodes", ".status.nodes", "integer"),
            _column("GPUs", ".status.gpus", "integer"),
            _column("Bandwidth", ".spec.gbps", "number"),
            _column("Domain", ".spec.domain"),
            _column("Deadline", ".status.deadline"),  # a date is shown as an age, which a time to come has not
            _column("Reason", ".status.reason") | {"priority": 1},
            _column("Age", ".metadata.creationTimestamp", "date"),
        ),
        namespaced=True,
        short=("pres",),
    )
    return crd_definition(kind, schema, status=True)


def ledger_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of ``PlacementLedger``."""
    kind = CrdKind(
        LEDGER_KIND,
        LEDGERS,
        VERSION,
        "Which reservations count, and which extenders have taken them in. Written by gputopo's planner and extenders.",
        (
            _column("Planner", ".spec.planner"),
            _column("Epoch", ".spec.epoch", "integer"),
            _column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )
    return crd_definition(kind, structural_schema(_Ledger), status=True)


def _column(name: str, path: str, of: str = "string") -> dict[str, Any]:
    return {"name": name, "type": of, "jsonPath": path}
