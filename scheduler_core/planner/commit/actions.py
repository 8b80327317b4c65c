"""All that a planner ever does to the cluster: a closed set of values, carried out by ``scheduler_core.planner``.

Each names the versions that it was worked out from: where these have changed it fails, and nothing is done. ``key`` is
what it writes to; of one key one write is under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from gputopo.crd.reservations import LedgerSpec, LedgerStatus, ReservationSpec, ReservationStatus, Seat
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.gang.member import GangName, Member

Key = tuple[str, str]  # kind, and UID or name


class CreateLedger(NamedTuple):
    """The pool's ledger, with nothing in it."""

    name: str
    spec: LedgerSpec

    @property
    def key(self) -> Key:
        """What it writes to."""
        return "ledger", self.name


class WriteLedger(NamedTuple):
    """What counts from now on."""

    over: LedgerUpdate
    spec: LedgerSpec
    proposed: int = 0  # entries, as the next five
    committed: int = 0
    held: int = 0
    withdrawn: int = 0
    released: int = 0
    again: int = 0  # of those that are proposed: that the ledger had lost

    @property
    def key(self) -> Key:
        """What it writes to."""
        return "ledger", self.over.key


class DropRegistration(NamedTuple):
    """Of extenders that cannot answer any more."""

    over: LedgerUpdate
    status: LedgerStatus

    @property
    def key(self) -> Key:
        """What it writes to."""
        return "ledger", self.over.key


class CreateReservation(NamedTuple):
    """A plan, which does not count yet."""

    namespace: str
    name: str
    spec: ReservationSpec

    @property
    def key(self) -> Key:
        """What it writes to."""
        return "new", f"{self.namespace}/{self.name}"


class WriteStatus(NamedTuple):
    """What has become of a reservation, for people; and that it is being rolled back, for a successor."""

    of: ReservationUpdate
    status: ReservationStatus
    unless_changed: Member | None = None  # not written if that pod is not as it was seen: the watch may be silent

    @property
    def key(self) -> Key:
        """What it writes to."""
        return "reservation", self.of.key


class DeleteReservation(NamedTuple):
    """One that nothing hangs on any more."""

    of: ReservationUpdate

    @property
    def key(self) -> Key:
        """What it writes to."""
        return "reservation", self.of.key


class UngateAndPin(NamedTuple):
    """Pin a member to its place and take away our gate."""

    member: Member
    seat: Seat
    reservation: str  # its name

    @property
    def key(self) -> Key:
        """What it writes to."""
        return "pod", self.member.uid


class ReleasePod(NamedTuple):
    """Take away our gate and pin nothing: kube-scheduler, and a cluster autoscaler, see an ordinary pod."""

    member: Member
    why: str  # for people
    policy: str  # by which it is: "unplaceable", "gate-timeout"

    @property
    def key(self) -> Key:
        """What it writes to."""
        return "pod", self.member.uid


class TouchPod(NamedTuple):
    """Move the resource version of a member that stays gated: what a deposed planner may still send then fails."""

    member: Member
    of: str  # UID of the reservation that is taken back

    @property
    def key(self) -> Key:
        """What it writes to."""
        return "pod", self.member.uid


class StripFinalizer(NamedTuple):
    """Keep the Job controller from counting a pod that we delete as a failure: so it does itself to scale down."""

    member: Member
    finalizer: str

    @property
    def key(self) -> Key:
        """What it writes to."""
        return "pod", self.member.uid


class DeletePod(NamedTuple):
    """A member that its controller makes again, gated."""

    member: Member

    @property
    def key(self) -> Key:
        """What it writes to."""
        return "pod", self.member.uid


class ProbeExtenderPod(NamedTuple):
    """Whether the pod of an extender that is silent still runs. A look, no write; the answer goes into ``Memory``."""

    identity: str  # of the extender
    pod: str  # NAMESPACE/NAME

    @property
    def key(self) -> Key:
        """What it asks about."""
        return "extender", self.identity


Action = (
    CreateLedger
    | WriteLedger
    | DropRegistration
    | CreateReservation
    | WriteStatus
    | DeleteReservation
    | UngateAndPin
    | ReleasePod
    | TouchPod
    | StripFinalizer
    | DeletePod
    | ProbeExtenderPod
)


def reserved_gang(reservation: ReservationUpdate) -> GangName | None:
    """Whose it is; None: of single pods."""
    return GangName(reservation.namespace, reservation.spec.gang) if reservation.spec.gang else None


def reserved_gangs(namespace: str, spec: ReservationSpec, member: Callable[[str], Member | None]) -> Iterator[GangName]:
    """The gang that a reservation is for, or the single pods that are there. ``member``: a pod by its UID."""
    if spec.gang:
        yield GangName(namespace, spec.gang)
        return
    members = (member(seat.uid) for seat in spec.seats)
    yield from (each.gang_request.gang for each in members if each is not None)
