"""Rollback of a committed plan: the reasons, and the writes. Pure; ``reconcile`` decides when they are considered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gputopo.crd.reservations import PlannedMember, ReservationState
from gputopo.timestamps import parse_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import DeletePod, PodAction, StripFinalizer, TouchPod, UngateAndPin
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

GIVE_UP_S = 60.0  # a pod that the API server refuses to let us write for so long no longer delays a rollback
_ERROR_LENGTH = 1000  # characters kept of the API server's message


def rollback_reason(
    inputs: ReconcileInput,
    terms: CommitTerms,
    reservation: ReservationUpdate,
    open_: Sequence[tuple[PlannedMember, Member]],
) -> str | None:
    """Return why the plan must be rolled back; None: it proceeds. ``open_``: its ``unbound_members``."""
    if reservation.spec.gang:
        if not has_enough_members(inputs, reservation):
            lost = [seat.name for seat, member in members_of(inputs, reservation) if is_lost(member, reservation)]
            return f"{first_names(lost)} disappeared before all members were bound"
        without_node = [seat for seat, _ in open_ if seat.node is not None and seat.node not in inputs.nodes]
        if without_node:
            return f"node {without_node[0].node}, planned for {without_node[0].name}, is gone"
    timeout_s, start_by = terms.timeout_of(reservation), latest_start(reservation)
    if open_ and start_by is not None and inputs.wall_time >= start_by + timeout_s:  # as after a time without a planner
        return "the latest time to start on capacity that is held for another gang has passed"
    if open_ and inputs.now - inputs.observations.since[reservation.key].at >= timeout_s:
        cause = next((f" (kube-scheduler: {member.bind_error})" for _, member in open_ if member.bind_error), "")
        limit = " (gangs.maxTimeout)" if timeout_s < reservation.spec.timeout_s else ""
        late = f"{first_names([seat.name for seat, _ in open_])} not bound within {timeout_s:g} s{limit}{cause}"
        return late + _refusal(
            inputs, "ungating", [UngateAndPin(member, seat, reservation.name) for seat, member in open_]
        )
    return None


def latest_start(reservation: ReservationUpdate) -> float | None:
    """Return until when places on capacity that is held for another gang are committed, in seconds since 1970."""
    backfill = reservation.spec.backfill
    return None if backfill is None else parse_timestamp(backfill.start_by)


def start_rollback(inputs: ReconcileInput, reservation: ReservationUpdate, reason: str) -> ReservationStep:
    """Return the write of status RollingBack, with the condition that an unbound member is as it was observed."""
    open_ = unbound_members(inputs, reservation)
    write = status_write(inputs, reservation, ReservationState.ROLLING_BACK, reason)
    return ReservationStep((msgspec.structs.replace(write, unless_bound=open_[0][1] if open_ else None),))


def continue_rollback(inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> ReservationStep:
    """Return the remaining writes of a rollback; without any the entry leaves the ledger."""
    seats = [(seat, member) for seat, member in members_of(inputs, reservation) if member is not None]
    to_delete = _to_delete(inputs, terms, reservation)
    kept = [member.name for member in to_delete if not is_recreated(member)]
    if kept and reservation.spec.gang:
        return _failed_step(inputs, reservation, kept, "all pods are left as they are")
    deletions = _deletions(to_delete)
    gated = [member for _, member in seats if is_gated(member)]
    untouched = [each for each in gated if (reservation.key, each.uid) not in inputs.observations.touched]
    touches = [touch for each in untouched if not _is_given_up(inputs, touch := TouchPod(each, reservation.key))]
    if deletions and not touches and all(_is_given_up(inputs, each) for each in deletions):
        refused = _refusal(inputs, "deletion", deletions)
        reason = f"{reservation.status.reason}{refused}. The planner retries: allow the deletion, or delete the pods"
        return ReservationStep((status_write(inputs, reservation, ReservationState.FAILED, reason),))
    if kept and not deletions and not touches:
        return _failed_step(inputs, reservation, kept, "nothing is deleted, and nothing is reserved any more")
    return ReservationStep((*deletions, *touches), remove=not deletions and not touches)


def _failed_step(
    inputs: ReconcileInput, reservation: ReservationUpdate, kept: Iterable[str], result: str
) -> ReservationStep:
    """Return the write of status Failed. ``kept``: pods that stay, because no controller would recreate them."""
    reason = f"{reservation.status.reason}; no controller would recreate {first_names(kept)}, so {result}"
    return ReservationStep((status_write(inputs, reservation, ReservationState.FAILED, reason),))


def rollback_deletions(
    inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate
) -> tuple[StripFinalizer | DeletePod, ...]:
    """Return the deletions of a rollback. Of a gang all of them, or none if one pod would not be recreated."""
    to_delete = _to_delete(inputs, terms, reservation)
    return () if reservation.spec.gang and not all(map(is_recreated, to_delete)) else _deletions(to_delete)


def _is_given_up(inputs: ReconcileInput, action: PodAction) -> bool:
    refused = inputs.observations.refused_writes.get((type(action), action.member.uid))
    return refused is not None and refused.last - refused.since >= GIVE_UP_S  # time alone is not enough


def _refusal(inputs: ReconcileInput, act: str, writes: Iterable[PodAction]) -> str:
    """Return the pods of refused writes, with the API server's message on the first; "": nothing was refused."""
    known = inputs.observations.refused_writes
    refused = {
        each.member.name: known[type(each), each.member.uid].error
        for each in writes
        if (type(each), each.member.uid) in known
    }
    if not refused:
        return ""
    return f"; the API server refuses {act} of {first_names(refused)}: {refused[min(refused)][:_ERROR_LENGTH]}"


def _to_delete(inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> list[Member]:
    """Return the members that this plan ungated and the rollback must delete, without pods that are being deleted."""
    ungated = [
        member
        for _, member in members_of(inputs, reservation)
        if member is not None
        and not is_gated(member)
        and member.reservation == reservation.name
        and not is_finished(member)
        and not member.is_terminating
    ]
    if not reservation.spec.gang or has_enough_bound(inputs, reservation):
        return [member for member in ungated if is_finalizer_stripped(member) or not is_bound(member)]
    whole = terms.rollback is Rollback.GANG
    return [member for member in ungated if whole or is_finalizer_stripped(member) or not member.started]


def _deletions(to_delete: Iterable[Member]) -> tuple[StripFinalizer | DeletePod, ...]:
    """Return the next write for each pod that would be recreated: strip its finalizer, or delete it."""
    return tuple(
        DeletePod(member) if (finalizer := finalizer_to_strip(member)) is None else StripFinalizer(member, finalizer)
        for member in to_delete
        if is_recreated(member)
    )
