"""When a committed plan is taken back, and by what writes. Pure; ``steps`` says where in a plan's life that is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputopo.crd.reservations import ReservationState, Seat
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import DeletePod, StripFinalizer, TouchPod, UngateAndPin
from scheduler_core.planner.commit.controllers import finalizer_to_strip, is_finalizer_stripped, is_recreated
from scheduler_core.planner.commit.members import (
    has_enough_bound,
    has_enough_members,
    is_bound,
    is_finished,
    is_gated,
    is_lost,
    members_of,
    unbound_members,
)
from scheduler_core.planner.commit.state import CommitTerms, ReconcileInput, ReservationStep, Rollback
from scheduler_core.planner.commit.status import first_names, status_write
from scheduler_core.planner.gang.member import Member

GIVE_UP_S = 60.0  # a pod that the API server does not let us write for so long holds nobody up any more
_WORDS = 1000  # characters of what the API server says


def rollback_reason(
    world: ReconcileInput, reservation: ReservationUpdate, open_: Sequence[tuple[Seat, Member]]
) -> str | None:
    """Why it is taken back; None: all is well so far. ``open_``: its ``open_of``."""
    if reservation.spec.gang:
        if not has_enough_members(world, reservation):
            lost = [seat.name for seat, member in members_of(world, reservation) if is_lost(member, reservation)]
            return f"{first_names(lost)} went away before all were bound"
        nowhere = [seat for seat, _ in open_ if seat.node is not None and seat.node not in world.nodes]
        if nowhere:
            return f"node {nowhere[0].node}, where {nowhere[0].name} was to go, is gone"
    if open_ and world.now - world.observations.since[reservation.key].at >= reservation.spec.timeout_s:
        said = next((f" (kube-scheduler: {member.bind_error})" for _, member in open_ if member.bind_error), "")
        late = (
            f"{first_names([seat.name for seat, _ in open_])} not bound within {reservation.spec.timeout_s:g} s{said}"
        )
        return late + _refusal(world, "go", [UngateAndPin(member, seat, reservation.name) for seat, member in open_])
    return None


def start_rollback(world: ReconcileInput, reservation: ReservationUpdate, trouble: str) -> ReservationStep:
    """That it is taken back; unless its members are not as they were seen."""
    open_ = unbound_members(world, reservation)
    write = status_write(world, reservation, ReservationState.ROLLING_BACK, trouble)
    return ReservationStep((write._replace(unless_changed=open_[0][1] if open_ else None),))


def continue_rollback(world: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> ReservationStep:
    """What is left of it to take back; it is struck when nothing is."""
    seats = [(seat, member) for seat, member in members_of(world, reservation) if member is not None]
    doomed = _to_delete(world, terms, reservation)
    kept = [member.name for member in doomed if not is_recreated(member)]
    if kept and reservation.spec.gang:
        reason = (
            f"{reservation.status.reason}; nobody would make {first_names(kept)} again, so all are left as they are"
        )
        return ReservationStep((status_write(world, reservation, ReservationState.FAILED, reason),))
    gone = _deletions(doomed)
    waiting = [member for _, member in seats if is_gated(member)]
    untouched = [each for each in waiting if (reservation.key, each.uid) not in world.observations.touched]
    touches = [touch for each in untouched if not _is_given_up(world, touch := TouchPod(each, reservation.key))]
    if gone and not touches and all(_is_given_up(world, each) for each in gone):
        refused = _refusal(world, "be deleted", gone)
        reason = f"{reservation.status.reason}{refused}. It is tried again: allow the planner that, or delete them"
        return ReservationStep((status_write(world, reservation, ReservationState.FAILED, reason),))
    return ReservationStep((*gone, *touches), strike=not gone and not touches)


def rollback_deletions(
    world: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate
) -> tuple[StripFinalizer | DeletePod, ...]:
    """Of its members that are to go: of a gang all of them, or none where one would not come again."""
    doomed = _to_delete(world, terms, reservation)
    return () if reservation.spec.gang and not all(map(is_recreated, doomed)) else _deletions(doomed)


def _is_given_up(world: ReconcileInput, what: TouchPod | StripFinalizer | DeletePod) -> bool:
    refused = world.observations.refused_writes.get((type(what), what.member.uid))
    return refused is not None and refused.last - refused.since >= GIVE_UP_S  # time alone gives nothing up


def _refusal(world: ReconcileInput, what: str, writes: Iterable[UngateAndPin | StripFinalizer | DeletePod]) -> str:
    """In the API server's own words, of the first of them; "": it refused nothing."""
    known = world.observations.refused_writes
    refused = {
        each.member.name: known[type(each), each.member.uid].error
        for each in writes
        if (type(each), each.member.uid) in known
    }
    if not refused:
        return ""
    return f"; the API server does not let {first_names(refused)} {what}: {refused[min(refused)][:_WORDS]}"


def _to_delete(world: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> list[Member]:
    """Those that were let go by it and are to go, and do not go already."""
    let_go = [
        member
        for _, member in members_of(world, reservation)
        if member is not None
        and not is_gated(member)
        and member.reservation == reservation.name
        and not is_finished(member)
        and not member.is_terminating
    ]
    if not reservation.spec.gang or has_enough_bound(world, reservation):
        return [member for member in let_go if is_finalizer_stripped(member) or not is_bound(member)]
    whole = terms.rollback is Rollback.GANG
    return [member for member in let_go if whole or is_finalizer_stripped(member) or not member.started]


def _deletions(doomed: Iterable[Member]) -> tuple[StripFinalizer | DeletePod, ...]:
    """Of those that would come again."""
    return tuple(
        DeletePod(member) if (finalizer := finalizer_to_strip(member)) is None else StripFinalizer(member, finalizer)
        for member in doomed
        if is_recreated(member)
    )
