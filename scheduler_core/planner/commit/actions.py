"""Every write that a planner does to the cluster, as a closed set of values. Pure: ``leader/writer.py`` sends them.

Each action carries the object that it was computed from, and so its resource version: where that object has changed
since, the API server refuses the write (compare-and-swap) and nothing happens. One write per ``key`` is under way at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from gputopo.crd.reservations import (
    LedgerSpec,
    LedgerStatus,
    PlannedEviction,
    PlannedMember,
    ReservationSpec,
    ReservationStatus,
)
from gputopo.labels.gate import other_gates
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.gang.member import GangName, Member

Key = tuple[str, str]  # kind of the object, and its UID or name


class Action(msgspec.Struct, frozen=True):
    """One call of the API server."""

    @property
    def key(self) -> Key:
        """The object that is written."""
        raise NotImplementedError

    @property
    def version(self) -> str:
        """Resource version of the object that the action was computed from; "": the object is new, or only read."""
        return ""

    @property
    def namespace(self) -> str:
        """Namespace of the object; "" for cluster-scoped objects."""
        return ""


class LedgerAction(Action, frozen=True):
    """A write of the pool's ledger."""

    def ledger_after(self, uid: str, version: str, generation: int) -> LedgerUpdate:
        """Return the ledger as it is once the write is done, with the metadata of the API server's response."""
        raise NotImplementedError


class CreateLedger(LedgerAction, frozen=True):
    """Create the pool's ledger, without entries."""

    name: str
    spec: LedgerSpec

    @property
    def key(self) -> Key:
        return "ledger", self.name

    def ledger_after(self, uid: str, version: str, generation: int) -> LedgerUpdate:
        return LedgerUpdate(self.name, uid, version, generation, self.spec)


class LedgerReplacement(LedgerAction, frozen=True):
    """A write over an existing ledger."""

    ledger: LedgerUpdate

    @property
    def key(self) -> Key:
        return "ledger", self.ledger.key

    @property
    def version(self) -> str:
        return self.ledger.version


class WriteLedger(LedgerReplacement, frozen=True):
    """Replace the ledger's entries, by which reservations count; the numbers are for metrics and logs."""

    spec: LedgerSpec
    proposed: int = 0  # entries, as the next five
    committed: int = 0
    held: int = 0
    withdrawn: int = 0
    released: int = 0
    relisted: int = 0  # proposed entries that the ledger had listed before, and lost

    def ledger_after(self, uid: str, version: str, generation: int) -> LedgerUpdate:
        return self.ledger._replace(uid=uid, version=version, generation=generation, spec=self.spec)


class DropRegistration(LedgerReplacement, frozen=True):
    """Remove the registrations of extenders that no longer answer."""

    status: LedgerStatus

    def ledger_after(self, uid: str, version: str, generation: int) -> LedgerUpdate:
        extenders = self.status.extenders
        return self.ledger._replace(uid=uid, version=version, generation=generation, extenders=extenders)


class CreateReservation(Action, frozen=True):
    """Create a reservation with a plan. It does not count before the ledger lists it."""

    namespace: str
    name: str
    spec: ReservationSpec

    @property
    def key(self) -> Key:
        return "new", f"{self.namespace}/{self.name}"


class ReservationAction(Action, frozen=True):
    """A write of an existing reservation."""

    reservation: ReservationUpdate

    @property
    def key(self) -> Key:
        return "reservation", self.reservation.key

    @property
    def version(self) -> str:
        return self.reservation.version

    @property
    def namespace(self) -> str:
        return self.reservation.namespace


class WriteStatus(ReservationAction, frozen=True):
    """Write the state of a reservation: for people, and for a successor, which continues a rollback by it."""

    status: ReservationStatus
    unless_bound: Member | None = None  # refused if this pod is bound, which a late watch may not show


class DeleteReservation(ReservationAction, frozen=True):
    """Delete a reservation that nothing depends on any more."""


class PodAction(Action, frozen=True):
    """A write of a gang's pod."""

    member: Member

    @property
    def key(self) -> Key:
        return "pod", self.member.uid

    @property
    def version(self) -> str:
        return self.member.version

    @property
    def namespace(self) -> str:
        return self.member.namespace

    def member_after(self, member: Member) -> Member:
        """Return the pod as it is once the write is done. ``member``: the pod as last observed."""
        raise NotImplementedError


class UngateAndPin(PodAction, frozen=True):
    """Pin a member to its node and remove our gate, in one patch."""

    seat: PlannedMember
    reservation: str  # its name

    def member_after(self, member: Member) -> Member:
        gates = other_gates(member.gates)
        return member._replace(gates=gates, reservation=self.reservation, pinned_terms=self.seat.node)


class ReleasePod(PodAction, frozen=True):
    """Remove our gate without a pin: for kube-scheduler and a cluster autoscaler it is an ordinary pod."""

    reason: str  # for people
    policy: str  # that asks for it: "unplaceable", "gate-timeout", "pod-rules"

    def member_after(self, member: Member) -> Member:
        return member._replace(gates=other_gates(member.gates))


class TouchPod(PodAction, frozen=True):
    """Move the resource version of a pod that stays gated, so that writes of a deposed planner fail."""

    reservation_uid: str  # UID of the reservation that is rolled back

    def member_after(self, member: Member) -> Member:
        return member


class StripFinalizer(PodAction, frozen=True):
    """Remove the Job's finalizer before a deletion, as the Job controller does to scale down: no failure is counted."""

    finalizer: str

    def member_after(self, member: Member) -> Member:
        return member._replace(finalizers=tuple(each for each in member.finalizers if each != self.finalizer))


class DeletePod(PodAction, frozen=True):
    """Delete a member; its controller creates it again, gated."""

    def member_after(self, member: Member) -> Member:
        return member._replace(is_terminating=True, pinned_terms=None)


class EndPod(DeletePod, frozen=True):
    """Delete a running member because another member of its gang has failed, as both ask for."""

    failed: str  # name of the member that failed


class EvictPod(Action, frozen=True):
    """Evict a pod for the gang of a capacity hold (Eviction API), within its disruption budgets."""

    eviction: PlannedEviction
    reservation: ReservationUpdate  # the hold

    @property
    def key(self) -> Key:
        return "eviction", self.eviction.uid

    @property
    def namespace(self) -> str:
        return self.eviction.namespace


class CheckBudgets(Action, frozen=True):
    """Count which units the PodDisruptionBudgets allow to evict. The answer goes into ``Observations``.

    A read, and the evictions are tried as dry runs.
    """

    hold: str  # UID
    evictions: tuple[PlannedEviction, ...]
    finds_forbidden: bool = False  # also find the other pods that the same budgets forbid to evict
    gang_namespace: str = ""
    seats: tuple[PlannedMember, ...] = ()  # of the gang: also check the CPU and memory that its members request
    dry_run_for: GangName | None = None  # of a dry run: there is no hold

    @property
    def key(self) -> Key:
        return "budgets", self.hold

    @property
    def namespace(self) -> str:
        return self.evictions[0].namespace if self.evictions else ""


class ProbeExtenderPod(Action, frozen=True):
    """Ask whether the pod of a silent extender still runs. A read; the answer goes into ``Observations``."""

    identity: str  # of the extender
    pod: str  # NAMESPACE/NAME

    @property
    def key(self) -> Key:
        return "extender", self.identity


class RequestNodes(Action, frozen=True):
    """Ask the cluster autoscaler for nodes for a gang that does not fit: a ProvisioningRequest and its PodTemplates."""

    gang: GangName
    name: str  # of the request; the same for the same pods
    provisioning_class: str
    owner: Member  # the first member: with it, Kubernetes deletes the request
    groups: tuple[tuple[str, int], ...]  # a pod of each kind of members, and how many there are

    @property
    def key(self) -> Key:
        return "provisioning", f"{self.gang.namespace}/{self.name}"

    @property
    def namespace(self) -> str:
        return self.gang.namespace


def reserved_gang(reservation: ReservationUpdate) -> GangName | None:
    """Return the gang that a reservation is for; None: it is for single pods."""
    return GangName(reservation.namespace, reservation.spec.gang) if reservation.spec.gang else None


def reserved_gangs(namespace: str, spec: ReservationSpec, member: Callable[[str], Member | None]) -> Iterator[GangName]:
    """Yield the gang that a reservation is for, or that of each of its single pods. ``member``: a pod by its UID."""
    if spec.gang:
        yield GangName(namespace, spec.gang)
        return
    members = (member(seat.uid) for seat in spec.seats)
    yield from (each.gang_request.gang for each in members if each is not None)
