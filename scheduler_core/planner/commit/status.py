"""What the status of a reservation says: states, counts, times, and reasons in words for people. Pure."""

from __future__ import annotations

from collections.abc import Collection

from gputopo.crd.reservations import ExtenderAck, ReservationState, ReservationStatus
from gputopo.render.wording import first_of
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import WriteStatus
from scheduler_core.planner.commit.ledger import Acknowledgement
from scheduler_core.planner.commit.members import is_bound, members_of
from scheduler_core.planner.commit.observations import SilentExtender
from scheduler_core.planner.commit.state import CommitTerms, ReconcileInput


def status_write(
    world: ReconcileInput, reservation: ReservationUpdate, state: ReservationState, reason: str | None = None
) -> WriteStatus:
    """That it is in that state by now."""
    seats, held = members_of(world, reservation), reservation.spec.held
    deadline, estimate = reservation.status.deadline, world.estimates.get(reservation.key)
    if state is ReservationState.COMMITTED:
        deadline = format_timestamp(world.wall_time + reservation.spec.timeout_s)
    status = ReservationStatus(
        state=state,
        reason=reason,
        bound=sum(member is not None and is_bound(member) for _, member in seats),
        members=len(seats),
        nodes=len({seat.node for seat, _ in seats if seat.node is not None} | {each.node for each in held}),
        gpus=sum(number for seat, _ in seats for _, number in seat.gpus) + sum(each.gpus for each in held),
        deadline=deadline,
        estimate=None if estimate is None else format_timestamp(estimate),
    )
    return WriteStatus(reservation, status)


def hold_reason(reservation: ReservationUpdate, estimate: float | None) -> str:
    """The same as long as nothing changes. ``estimate``: when the room is free, in seconds since 1970."""
    until = (
        "when their pods end nobody can say" if estimate is None else f"their pods end by {format_timestamp(estimate)}"
    )
    nodes = first_names([each.node for each in reservation.spec.held])
    return f"does not fit yet; what becomes free on {nodes} is held: {until}"


def pending_acknowledgement(
    world: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate, said: Acknowledgement
) -> tuple[str, str]:
    """For whom a proposal waits, the same as long as nothing changes; and until when, by the clock."""
    assert world.ledger is not None  # it lists it
    extenders, silent = world.ledger.extenders, world.observations.silent_extenders
    if said is Acknowledgement.BLOCKED:
        against = [_titled(name, each) for name, each in extenders.items() if reservation.key in each.blocked]
        return f"the extender {first_names(against)} has let in a pod that it conflicts with", ""
    if not extenders:
        return "no extender is registered that could vouch for it", ""
    since = world.observations.since[reservation.key].generation
    behind = {name: each for name, each in extenders.items() if each.generation < since}
    left = max(_left(silent[name], world.now, terms) for name in behind)
    ended = ", whose pod has ended," if all(silent[name].gone is not None for name in behind) else ""
    whom = first_names([_titled(name, each) for name, each in behind.items()])
    return (
        f"waits for the extender {whom}{ended} to vouch for it",
        f"; it is left out at {format_timestamp(world.wall_time + left)} if it stays silent",
    )


def _left(silence: SilentExtender, now: float, terms: CommitTerms) -> float:
    """Seconds until it is left out."""
    lost = silence.since + terms.lost_s
    return (lost if silence.gone is None else min(lost, silence.gone + terms.ended_s)) - now


def _titled(identity: str, extender: ExtenderAck) -> str:
    return extender.pod or f"{identity} (not in a pod)"


def first_names(of: Collection[str]) -> str:
    """The first of them."""
    return first_of(sorted(of) or ["a member"])
