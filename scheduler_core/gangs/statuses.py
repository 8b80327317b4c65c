"""What the status of a reservation says: states, counts, times, and reasons in words for people. Pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from gputopo.labels.reservations import ReservationStatus, State
from scheduler_core.gangs.seated import is_bound, seats_of
from scheduler_core.gangs.world import World
from scheduler_core.gangs.writes import WriteStatus
from scheduler_core.sightings import ReservationSeen


def status_of(world: World, reservation: ReservationSeen, state: State, reason: str | None = None) -> WriteStatus:
    """That it is in that state by now."""
    seats, held = seats_of(world, reservation), reservation.spec.held
    deadline, estimate = reservation.status.deadline, world.estimates.get(reservation.key)
    if state is State.COMMITTED:
        deadline = moment(world.wall + reservation.spec.timeout_s)
    status = ReservationStatus(
        state=state,
        reason=reason,
        bound=sum(member is not None and is_bound(member) for _, member in seats),
        members=len(seats),
        nodes=len({seat.node for seat, _ in seats if seat.node is not None} | {each.node for each in held}),
        gpus=sum(number for seat, _ in seats for _, number in seat.gpus) + sum(each.gpus for each in held),
        deadline=deadline,
        estimate=None if estimate is None else moment(estimate),
    )
    return WriteStatus(reservation, status)


def room_reason(reservation: ReservationSeen, estimate: float | None) -> str:
    """The same as long as nothing changes. ``estimate``: when the room is free, in seconds since 1970."""
    until = "when their pods end nobody can say" if estimate is None else f"their pods end by {moment(estimate)}"
    nodes = names([each.node for each in reservation.spec.held])
    return f"does not fit yet; what becomes free on {nodes} is held: {until}"


def names(of: Collection[str]) -> str:
    """The first of them."""
    first = next(iter(sorted(of)), "a member")
    return first if len(of) < 2 else f"{first} and {len(of) - 1} more"


def moment(seconds: float) -> str:
    """``seconds``: since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
