"""Status of a reservation: state, counts, times, and the reason as text for people. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

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
    inputs: ReconcileInput,
    reservation: ReservationUpdate,
    state: ReservationState,
    reason: str | None = None,
    *,
    timeout_s: float | None = None,
) -> WriteStatus:
    """Return the write of the reservation's status, in this state. ``timeout_s``: from now to a new deadline."""
    seats, held = members_of(inputs, reservation), reservation.spec.held
    deadline, estimate = reservation.status.deadline, inputs.estimates.get(reservation.key)
    if timeout_s is not None:
        deadline = format_timestamp(inputs.wall_time + timeout_s)
    status = ReservationStatus(
        state=state,
        reason=reason,
        bound=sum(member is not None and is_bound(member) for _, member in seats),
        members=len(seats),
        nodes=len({seat.node for seat, _ in seats if seat.node is not None} | {each.node for each in held}),
        gpus=sum(number for seat, _ in seats for _, number in seat.gpus) + sum(each.gpus for each in held),
        deadline=deadline,
        estimate=None if estimate is None else format_timestamp(estimate),
        evicting=reservation.status.evicting,
    )
    return WriteStatus(reservation, status)


def hold_reason(reservation: ReservationUpdate, estimate: float | None, users: Collection[str] = ()) -> str:
    """Return the reason of a capacity hold, stable while nothing changes.

    ``estimate``: seconds since 1970. ``users``: pods of a higher priority that use its capacity.
    """
    until = (
        "the end of their pods is unknown" if estimate is None else f"their pods end by {format_timestamp(estimate)}"
    )
    nodes = first_names([each.node for each in reservation.spec.held])
    used = f"; pods of a higher priority on these nodes: {first_names(users)}" if users else ""
    return f"does not fit yet; capacity that becomes free on {nodes} is reserved: {until}{used}"


def pending_acknowledgement(
    inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate, acknowledgement: Acknowledgement
) -> tuple[str, str]:
    """Return what a proposal waits for, stable while nothing changes; and until when, by the clock."""
    assert inputs.ledger is not None  # it lists it
    extenders, silent = inputs.ledger.extenders, inputs.observations.silent_extenders
    if acknowledgement is Acknowledgement.BLOCKED:
        blocking = [_extender_name(name, each) for name, each in extenders.items() if reservation.key in each.blocked]
        return f"extender {first_names(blocking)} has admitted a pod that conflicts with it", ""
    if not extenders:
        return "no extender is registered that could acknowledge it", ""
    since = inputs.observations.since[reservation.key].generation
    behind = {name: each for name, each in extenders.items() if each.generation < since}
    left = max(_left(silent[name], inputs.now, terms) for name in behind)
    ended = " (pod gone)" if all(silent[name].gone_at is not None for name in behind) else ""
    names = first_names([_extender_name(name, each) for name, each in behind.items()])
    return (
        f"waits for extender {names}{ended} to acknowledge it",
        f"; its registration is dropped at {format_timestamp(inputs.wall_time + left)} if it stays silent",
    )


def _left(silent: SilentExtender, now: float, terms: CommitTerms) -> float:
    """Return the seconds until a silent extender's registration is dropped."""
    lost = silent.since + terms.lost_s
    return (lost if silent.gone_at is None else min(lost, silent.gone_at + terms.ended_s)) - now


def _extender_name(identity: str, extender: ExtenderAck) -> str:
    return extender.pod or f"{identity} (not in a pod)"


def first_names(names: Iterable[str]) -> str:
    """Return the first names, sorted, and how many more there are."""
    return first_of(sorted(names) or ["a member"])
