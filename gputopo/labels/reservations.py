"""What the planner writes down: ``PlacementReservation``, one gang's places, and ``PlacementLedger``, what counts.

A reservation says who goes where, for people and for the extender. It counts only while the ledger of its pool lists it
with its hash: one write of that one object, under the precondition of its resource version, is what commits a gang. So
of two planners one is refused, whatever their clocks say, and a crash between any two writes leaves nothing in doubt.

``status.extenders`` of the ledger is the channel by which extenders vouch for what is proposed (docs/gangs.md).
"""

from __future__ import annotations

from enum import Enum
from hashlib import sha256

import msgspec

VERSION = "v1alpha1"
RESERVATION_KIND = "PlacementReservation"
RESERVATIONS = "placementreservations"
LEDGER_KIND = "PlacementLedger"
LEDGERS = "placementledgers"
POOL = "gpus"  # the ledger's name where nothing else is said


class Seat(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One member and its place."""

    uid: str  # of the pod
    name: str  # of the pod
    node: str | None = None  # None: it holds no GPU, and kube-scheduler chooses
    gpus: tuple[tuple[str, int], ...] = ()  # devices of each resource that it takes there
    expected: tuple[int, ...] = ()  # indices of the GPUs that it will most likely be given; (): not known
    rank: int | None = None


class Holding(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """GPUs of a node that are kept for a gang that does not fit yet: what becomes free there is not for others."""

    node: str
    gpus: int


class ReservationSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A plan. Never changed: another plan is another reservation."""

    gang: str  # its name; its namespace is the reservation's. A batch of single pods: ""
    seats: tuple[Seat, ...] = ()
    held: tuple[Holding, ...] = ()
    timeout_s: float = 30.0  # from letting go to all bound
    domain: str | None = None  # "clique=7b96.1": all members are in it
    gbps: float | None = None  # bottleneck of the rings inside the nodes, GB/s, both ways; None: unknown, or no ring
    attempt: int = 1


class State(Enum):
    """What has become of a reservation, in its status: for people. What counts is the ledger."""

    HELD = "Held"  # does not fit yet; what becomes free on those nodes is kept for it
    PROPOSED = "Proposed"
    COMMITTED = "Committed"
    BOUND = "Bound"
    ROLLING_BACK = "RollingBack"
    FAILED = "Failed"


class ReservationStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """For people, and ``deadline`` for a planner that starts anew."""

    state: State | None = None
    reason: str | None = None
    bound: int = 0  # members
    members: int = 0
    nodes: int = 0
    gpus: int = 0
    deadline: str | None = None  # RFC 3339; set when the first member was let go
    estimate: str | None = None  # RFC 3339: when a gang that is held room for may start; None: nobody can say


class Phase(Enum):
    """What the ledger says of a reservation."""

    HELD = "Held"  # its ``held`` counts, for everybody but its gang
    PROPOSED = "Proposed"  # extenders refuse what conflicts with it, and vouch or block
    COMMITTED = "Committed"  # its members may be let go


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """A reservation that counts."""

    uid: str  # of the reservation
    namespace: str
    name: str
    hash: str  # ``spec_hash``
    phase: Phase


class LedgerSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What counts in a pool."""

    planner: str = ""  # who wrote it last; a new leader writes itself before anything else
    epoch: int = 0  # one more with every new leader
    entries: tuple[Entry, ...] = ()


class Vouching(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What one extender has taken in. Written by it, under ``status.extenders``."""

    pod: str = ""  # NAMESPACE/NAME, where it runs in one: whether it still exists can be asked
    generation: int = 0  # of the ledger: all that it lists then is held, and others are refused what conflicts
    blocked: tuple[str, ...] = ()  # UIDs of proposed reservations that it cannot vouch for (yet)


class LedgerStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Which extenders answer, by identity. One that is not listed does not answer."""

    extenders: dict[str, Vouching] = {}


def spec_hash(spec: ReservationSpec) -> str:
    """What ties a ledger's entry to the plan that it speaks of: SHA-256 of its canonical JSON."""
    return sha256(msgspec.json.encode(spec, order="deterministic")).hexdigest()
