"""How the members of one reservation stand: who is to be bound yet, who was lost, whether that is enough. Pure."""

from __future__ import annotations

from gputopo.crd.reservations import Seat
from gputopo.labels.gate import gated
from scheduler_core.cache.events import ReservationSeen
from scheduler_core.planner.commit.actions import gang_of
from scheduler_core.planner.commit.state import World
from scheduler_core.planner.gang.gang import OVER, Gang
from scheduler_core.planner.gang.member import Member


def seats_of(world: World, reservation: ReservationSeen) -> list[tuple[Seat, Member | None]]:
    """Its places, and who is to have them; None: that pod is gone."""
    return [(seat, world.member(seat.uid)) for seat in reservation.spec.seats]


def open_of(world: World, reservation: ReservationSeen) -> list[tuple[Seat, Member]]:
    """Those that are to be bound yet."""
    return [
        (seat, member)
        for seat, member in seats_of(world, reservation)
        if member is not None and not is_lost(member, reservation) and not is_bound(member)
    ]


def is_waiting(world: World, reservation: ReservationSeen) -> bool:
    """Whether its members still are as they were planned: of single pods whether any is."""
    held = [member is not None and is_gated(member) and not member.ending for _, member in seats_of(world, reservation)]
    return all(held) if reservation.spec.gang else any(held)


def gang_for(world: World, reservation: ReservationSeen) -> Gang | None:
    """Whose it is; None: of single pods, or of a gang that has no member any more."""
    name = gang_of(reservation)
    return None if name is None else world.gang(name)


def is_enough(world: World, reservation: ReservationSeen) -> bool:
    """Whether without those that went away there still are as many members as it can start with."""
    seats = seats_of(world, reservation)
    left = sum(not is_lost(member, reservation) for _, member in seats)
    if left == len(seats):
        return True
    gang = gang_for(world, reservation)
    if gang is None or gang.minimum is None:
        return False
    own = {seat.uid for seat in reservation.spec.seats}
    siblings = sum(member.uid not in own for member in (*gang.placed, *gang.succeeded))
    return left + siblings >= gang.minimum


def enough_bound(world: World, reservation: ReservationSeen) -> bool:
    """Whether as many have their nodes as it can start with."""
    gang = gang_for(world, reservation)
    if gang is None or gang.minimum is None:
        return False
    return sum(is_bound(member) for member in (*gang.placed, *gang.succeeded)) >= gang.minimum


def is_gated(member: Member) -> bool:
    """Whether our gate holds it."""
    return gated(member.gates)


def is_bound(member: Member) -> bool:
    """Whether it got its node. One that has done its work did."""
    return member.phase == "Succeeded" or (member.node is not None and not is_over(member))


def is_placed(member: Member) -> bool:
    """Whether it was let go and stays."""
    return not is_gated(member) and not member.ending and member.phase != "Failed"


def is_over(member: Member) -> bool:
    """Whether it has done its work, or failed."""
    return member.phase in OVER


def is_lost(member: Member | None, reservation: ReservationSeen) -> bool:
    """Whether it will not be bound by that plan: it is gone, failed, or somebody else took its gate away."""
    if member is None or member.ending or member.phase == "Failed":
        return True
    return not is_gated(member) and not is_bound(member) and member.reservation != reservation.name
