"""Recovery of plans that the ledger does not list, and of reservations that someone deleted. Pure.

Not listed: the reservation is new, ended or failed, or the ledger was deleted or edited while members were ungated. In
the last case the rest of the plan is proposed again, because its places may have been taken since.

Deleted while members are ungated: the reservation is created again from its pods, because without it there is no
deadline and no rollback. Each pod names its reservation (annotation) and its node (node affinity). The new reservation
makes these pods count, so it takes only pods that a planner provably ungated: ``ReconcileInput.awaiting_binding``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import msgspec

from gputopo.crd.reservations import EntryPhase, PlannedMember, ReservationSpec, ReservationState
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import CreateReservation, DeleteReservation
from scheduler_core.planner.commit.members import (
    is_bound,
    is_finished,
    is_gated,
    is_still_gated,
    is_ungated,
    members_of,
    unbound_members,
)
from scheduler_core.planner.commit.rollback import continue_rollback, rollback_deletions
from scheduler_core.planner.commit.state import CommitTerms, ReconcileInput, ReservationStep
from scheduler_core.planner.commit.status import status_write
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.member import Member


def recover_unlisted(inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> ReservationStep:
    """Return the step of a reservation that the ledger does not list: list it, write how it ended, or delete it."""
    state = reservation.status.state
    if _is_unfinished(inputs, terms, reservation):
        return ReservationStep(phase=EntryPhase.PROPOSED, was_listed=True)
    placed = [member for _, member in members_of(inputs, reservation) if member is not None and is_ungated(member)]
    deletions = rollback_deletions(inputs, terms, reservation) if state is ReservationState.FAILED else ()
    partial = deletions and len(placed) < len(
        reservation.spec.seats
    )  # some members were deleted, and the others will be
    if placed and all(map(is_bound, placed)) and reservation.spec.gang and not partial:
        if state is ReservationState.BOUND:
            return ReservationStep()
        return ReservationStep((status_write(inputs, reservation, ReservationState.BOUND),))
    waiting = [member for _, member in unbound_members(inputs, reservation) if not is_gated(member)]
    if state is ReservationState.FAILED and waiting:
        return ReservationStep(deletions)  # while it exists, pods that it ungated in vain count nowhere
    if deletions or (placed and reservation.spec.gang and state in (ReservationState.FAILED, ReservationState.BOUND)):
        return ReservationStep(deletions)
    if _is_ending_backfill(inputs, reservation):
        return ReservationStep()
    if reservation.key not in inputs.observations.created or not _may_be_listed(inputs, reservation):
        return ReservationStep((DeleteReservation(reservation),))
    if reservation.spec.held:
        return ReservationStep(phase=EntryPhase.HELD)
    left = remaining_settle_s(inputs, terms)
    if left > 0:
        until = format_timestamp(inputs.wall_time + left)
        reason = f"planned; the ledger is new, and extenders have until {until} to see it"
        if state is ReservationState.PROPOSED:
            return ReservationStep()
        return ReservationStep((status_write(inputs, reservation, ReservationState.PROPOSED, reason),))
    return ReservationStep(phase=EntryPhase.COMMITTED if terms.gated else EntryPhase.PROPOSED)


def _is_ending_backfill(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return whether pods on held capacity terminate: their owner may have chosen a grace period of years."""
    if reservation.spec.backfill is None:
        return False
    members = (member for _, member in members_of(inputs, reservation) if member is not None)
    return any(is_bound(each) and each.is_terminating and not is_finished(each) for each in members)


def _is_unfinished(inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> bool:
    """Return whether the ledger should still list it: its commit or its rollback is not complete."""
    if reservation.status.state is ReservationState.ROLLING_BACK:
        return bool(continue_rollback(inputs, terms, reservation).writes)
    return reservation.status.state not in (ReservationState.FAILED, ReservationState.BOUND) and was_committed(
        inputs, reservation
    )


def was_committed(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return whether it was committed and has unbound members: its status says so, or one of them is ungated."""
    open_ = unbound_members(inputs, reservation)
    return bool(open_) and (
        reservation.status.state is ReservationState.COMMITTED or any(not is_gated(member) for _, member in open_)
    )


def remaining_settle_s(inputs: ReconcileInput, terms: CommitTerms) -> float:
    """Return the seconds that extenders still have to see a new ledger; 0 or less: the time is over."""
    observations = inputs.observations
    if terms.gated or not observations.is_new_ledger or observations.ledger_seen_at is None:
        return 0.0
    return terms.settle_s - (inputs.now - observations.ledger_seen_at)


def _may_be_listed(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return whether the plan still fits its members and the cluster, as far as the view shows."""
    if inputs.has_stale_view:
        return False
    if reservation.spec.held:
        return reservation.key not in inputs.unwanted_holds
    return is_still_gated(inputs, reservation) and reservation.key not in inputs.no_longer_fitting


def recreate_deleted(inputs: ReconcileInput) -> Iterator[CreateReservation]:
    """Yield a new reservation for each deleted one, under the name that its members state."""
    if not inputs.awaiting_binding:
        return
    plans = inputs.plans
    if plans is None:
        plans = {key for each in inputs.reservations.values() for key in plan_keys(each)}
    members_of_plan: dict[tuple[str, str, str], dict[str, Member]] = {}
    awaiting = {each.uid for each in inputs.awaiting_binding}
    for each in inputs.awaiting_binding:
        name, gang = each.reservation or "", each.gang_request.gang
        if (gang.namespace, name) in plans or (is_single_pod_gang(gang) and (each.uid, name) in plans):
            continue
        key = gang.namespace, name, "" if is_single_pod_gang(gang) else gang.name
        if key not in members_of_plan:
            members_of_plan[key] = {sibling.uid: sibling for sibling in _siblings(inputs, each, awaiting)}
        members_of_plan[key][each.uid] = each
    for (namespace, name, gang_name), members in members_of_plan.items():
        yield CreateReservation(namespace, name, _recreated_spec(gang_name, members.values()))


def plan_keys(reservation: ReservationUpdate) -> tuple[tuple[str, str], ...]:
    """Return the keys by which members find their reservation: its namespace and name, or the pod's UID and its name.

    A batch of single pods has pods of any namespace. Recreated, it is one reservation for each pod, of the same name.
    """
    spec, name = reservation.spec, reservation.name
    return ((reservation.namespace, name), *(() if spec.gang else ((seat.uid, name) for seat in spec.seats)))


def _siblings(inputs: ReconcileInput, member: Member, awaiting: Container[str]) -> Iterator[Member]:
    """Yield members that the same plan ungated. A pod with a pin that no planner provably wrote is left out."""
    gang = inputs.gang(member.gang_request.gang)
    of_plan = (each for each in (() if gang is None else gang.placed) if each.reservation == member.reservation)
    return (each for each in of_plan if each.node is not None or each.pinned_terms is None or each.uid in awaiting)


def _recreated_spec(gang: str, members: Iterable[Member]) -> ReservationSpec:
    """Return a plan with the nodes that members have or are pinned to. Everything else in the deleted plan is lost."""
    seats = [
        PlannedMember(each.uid, each.name, each.node or each.pinned_terms, each.devices, rank=each.gang_request.rank)
        for each in members
    ]
    plan = ReservationSpec(gang, tuple(sorted(seats, key=lambda each: each.name)))
    timeouts = [each.gang_request.timeout_s for each in members if each.gang_request.timeout_s is not None]
    return msgspec.structs.replace(plan, timeout_s=max(timeouts)) if timeouts else plan
