"""State of the members of one reservation: gated, unbound, bound, lost; and whether enough are left. Pure."""

from __future__ import annotations

from gputopo.crd.reservations import PlannedMember
from gputopo.labels.keys import GATE
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import reserved_gang
from scheduler_core.planner.commit.state import ReconcileInput
from scheduler_core.planner.gang.gang import FINISHED_PHASES, Gang
from scheduler_core.planner.gang.member import Member


def members_of(inputs: ReconcileInput, reservation: ReservationUpdate) -> list[tuple[PlannedMember, Member | None]]:
    """Return the seats of a reservation, each with its pod; None: the pod is gone."""
    return [(seat, inputs.member(seat.uid)) for seat in reservation.spec.seats]


def unbound_members(inputs: ReconcileInput, reservation: ReservationUpdate) -> list[tuple[PlannedMember, Member]]:
    """Return the members that are not bound yet, with their seats."""
    member_of = inputs.member
    return [
        (seat, member)
        for seat in reservation.spec.seats
        if (member := member_of(seat.uid)) is not None and _is_unbound(member, reservation)
    ]


def _is_unbound(member: Member, reservation: ReservationUpdate) -> bool:
    """Return whether the pod is neither lost nor bound. Each round asks this of every member that is not bound yet."""
    if member.is_terminating or member.phase == "Failed" or is_bound(member):
        return False
    return is_gated(member) or member.reservation == reservation.name


def is_still_gated(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return whether all members are gated as they were when planned; for single pods, whether any is."""
    gated = [
        member is not None and is_gated(member) and not member.is_terminating
        for _, member in members_of(inputs, reservation)
    ]
    return all(gated) if reservation.spec.gang else any(gated)


def find_gang(inputs: ReconcileInput, reservation: ReservationUpdate) -> Gang | None:
    """Return the reservation's gang; None: it is for single pods, or its gang has no member any more."""
    name = reserved_gang(reservation)
    return None if name is None else inputs.gang(name)


def has_enough_members(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return whether, without the lost members, the gang still has its minimum size."""
    seats = members_of(inputs, reservation)
    left = sum(not is_lost(member, reservation) for _, member in seats)
    if left == len(seats):
        return True
    gang = find_gang(inputs, reservation)
    if gang is None or gang.minimum is None:
        return False
    own = {seat.uid for seat in reservation.spec.seats}
    siblings = sum(member.uid not in own for member in (*gang.placed, *gang.succeeded))
    return left + siblings >= gang.minimum


def has_enough_bound(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return whether at least the gang's minimum size is bound."""
    gang = find_gang(inputs, reservation)
    if gang is None or gang.minimum is None:
        return False
    return sum(is_bound(member) for member in (*gang.placed, *gang.succeeded)) >= gang.minimum


def is_gated(member: Member) -> bool:
    """Return whether the pod has our scheduling gate."""
    return GATE in member.gates


def is_bound(member: Member) -> bool:
    """Return whether the pod got its node. A pod that succeeded did."""
    return member.phase == "Succeeded" or (member.node is not None and not is_finished(member))


def is_ungated(member: Member) -> bool:
    """Return whether the pod is ungated and stays: it neither failed nor is being deleted."""
    return not is_gated(member) and not member.is_terminating and member.phase != "Failed"


def is_finished(member: Member) -> bool:
    """Return whether the pod succeeded or failed."""
    return member.phase in FINISHED_PHASES


def is_lost(member: Member | None, reservation: ReservationUpdate) -> bool:
    """Return whether this plan will never bind the pod: it is gone or failed, or another program removed its gate."""
    if member is None or member.is_terminating or member.phase == "Failed":
        return True
    return not is_gated(member) and not is_bound(member) and member.reservation != reservation.name
