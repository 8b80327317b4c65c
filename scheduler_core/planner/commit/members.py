"""How the members of one reservation stand: who is to be bound yet, who was lost, whether that is enough. Pure."""

from __future__ import annotations

from gputopo.crd.reservations import Seat
from gputopo.labels.gate import has_gate
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import reserved_gang
from scheduler_core.planner.commit.state import ReconcileInput
from scheduler_core.planner.gang.gang import FINISHED_PHASES, Gang
from scheduler_core.planner.gang.member import Member


def members_of(world: ReconcileInput, reservation: ReservationUpdate) -> list[tuple[Seat, Member | None]]:
    """Its places, and who is to have them; None: that pod is gone."""
    return [(seat, world.member(seat.uid)) for seat in reservation.spec.seats]


def unbound_members(world: ReconcileInput, reservation: ReservationUpdate) -> list[tuple[Seat, Member]]:
    """Those that are to be bound yet."""
    return [
        (seat, member)
        for seat, member in members_of(world, reservation)
        if member is not None and not is_lost(member, reservation) and not is_bound(member)
    ]


def is_still_gated(world: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Whether its members still are as they were planned: of single pods whether any is."""
    held = [
        member is not None and is_gated(member) and not member.is_terminating
        for _, member in members_of(world, reservation)
    ]
    return all(held) if reservation.spec.gang else any(held)


def find_gang(world: ReconcileInput, reservation: ReservationUpdate) -> Gang | None:
    """Whose it is; None: of single pods, or of a gang that has no member any more."""
    name = reserved_gang(reservation)
    return None if name is None else world.gang(name)


def has_enough_members(world: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Whether without those that went away there still are as many members as it can start with."""
    seats = members_of(world, reservation)
    left = sum(not is_lost(member, reservation) for _, member in seats)
    if left == len(seats):
        return True
    gang = find_gang(world, reservation)
    if gang is None or gang.minimum is None:
        return False
    own = {seat.uid for seat in reservation.spec.seats}
    siblings = sum(member.uid not in own for member in (*gang.placed, *gang.succeeded))
    return left + siblings >= gang.minimum


def has_enough_bound(world: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Whether as many have their nodes as it can start with."""
    gang = find_gang(world, reservation)
    if gang is None or gang.minimum is None:
        return False
    return sum(is_bound(member) for member in (*gang.placed, *gang.succeeded)) >= gang.minimum


def is_gated(member: Member) -> bool:
    """Whether our gate holds it."""
    return has_gate(member.gates)


def is_bound(member: Member) -> bool:
    """Whether it got its node. One that has done its work did."""
    return member.phase == "Succeeded" or (member.node is not None and not is_finished(member))


def is_ungated(member: Member) -> bool:
    """Whether it was let go and stays."""
    return not is_gated(member) and not member.is_terminating and member.phase != "Failed"


def is_finished(member: Member) -> bool:
    """Whether it has done its work, or failed."""
    return member.phase in FINISHED_PHASES


def is_lost(member: Member | None, reservation: ReservationUpdate) -> bool:
    """Whether it will not be bound by that plan: it is gone, failed, or somebody else took its gate away."""
    if member is None or member.is_terminating or member.phase == "Failed":
        return True
    return not is_gated(member) and not is_bound(member) and member.reservation != reservation.name
