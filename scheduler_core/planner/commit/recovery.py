"""A plan that the ledger does not list: made just now, taken out of it by somebody, over, or failed. Pure.

The ledger may be deleted, with all that it lists, while members are let go by it. What was committed is then proposed
again, with what is left of it: its places may have gone to others since.

A plan that was deleted while its members were ungated is written again from the pods: each names its plan (annotation)
and its node (node affinity), and without a plan there is no deadline and no rollback. A plan that is written again
makes its pods count, so it takes only pods that are proved to be ungated by a planner: ``World.coming``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import msgspec

from gputopo.crd.reservations import EntryPhase, ReservationSpec, ReservationState, Seat
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import CreateReservation, DeleteReservation
from scheduler_core.planner.commit.controllers import is_recreated
from scheduler_core.planner.commit.members import (
    is_bound,
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


def recover_unlisted(world: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> ReservationStep:
    """Listed, or the status says what became of it, or it is deleted."""
    state = reservation.status.state
    if _is_unfinished(world, terms, reservation):
        return ReservationStep(phase=EntryPhase.PROPOSED, was_listed=True)
    placed = [member for _, member in members_of(world, reservation) if member is not None and is_ungated(member)]
    tried_again = rollback_deletions(world, terms, reservation) if state is ReservationState.FAILED else ()
    half = tried_again and len(placed) < len(reservation.spec.seats)  # some were deleted, and the rest is to follow
    if placed and all(map(is_bound, placed)) and reservation.spec.gang and not half:
        return (
            ReservationStep()
            if state is ReservationState.BOUND
            else ReservationStep((status_write(world, reservation, ReservationState.BOUND),))
        )
    if tried_again or (placed and reservation.spec.gang and state in (ReservationState.FAILED, ReservationState.BOUND)):
        return ReservationStep(tried_again)
    if reservation.key not in world.observations.made or not _may_be_listed(world, reservation):
        return ReservationStep((DeleteReservation(reservation),))
    if reservation.spec.held:
        return ReservationStep(phase=EntryPhase.HELD)
    left = remaining_settle_s(world, terms)
    if left > 0:
        reason = (
            f"planned; the ledger is new, and extenders have until {format_timestamp(world.wall_time + left)} to see it"
        )
        return (
            ReservationStep()
            if state is ReservationState.PROPOSED
            else ReservationStep((status_write(world, reservation, ReservationState.PROPOSED, reason),))
        )
    return ReservationStep(phase=EntryPhase.COMMITTED if terms.gated else EntryPhase.PROPOSED)


def _is_unfinished(world: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> bool:
    """Whether the ledger was to list it still."""
    if reservation.status.state is ReservationState.ROLLING_BACK:
        return bool(continue_rollback(world, terms, reservation).writes)
    return reservation.status.state not in (ReservationState.FAILED, ReservationState.BOUND) and was_committed(
        world, reservation
    )


def was_committed(world: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Whether it counted when its members were let go, and not all of them are bound."""
    open_ = unbound_members(world, reservation)
    return bool(open_) and (
        reservation.status.state is ReservationState.COMMITTED or any(not is_gated(member) for _, member in open_)
    )


def remaining_settle_s(world: ReconcileInput, terms: CommitTerms) -> float:
    """Seconds, until every extender has had the time to see that there is a ledger; 0 or less: it has."""
    memory = world.observations
    if terms.gated or not memory.is_new_ledger or memory.ledger_seen_at is None:
        return 0.0
    return terms.settle_s - (world.now - memory.ledger_seen_at)


def _may_be_listed(world: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Whether the plan still is what its members need, as far as can be seen."""
    if world.has_stale_view:
        return False
    if reservation.spec.held:
        return reservation.key not in world.unwanted_holds
    return is_still_gated(world, reservation) and reservation.key not in world.no_longer_fitting


def recreate_deleted(world: ReconcileInput) -> Iterator[CreateReservation]:
    """Under the names that their members bear. Single pods that nobody would make again are left to themselves."""
    if not world.awaiting_binding:
        return
    plans = world.plans
    if plans is None:
        plans = {plan for each in world.reservations.values() for plan in plan_keys(each)}
    lost: dict[tuple[str, str, str], dict[str, Member]] = {}
    coming = {each.uid for each in world.awaiting_binding}
    for each in world.awaiting_binding:
        name, gang = each.reservation or "", each.gang_request.gang
        if (gang.namespace, name) in plans or (
            is_single_pod_gang(gang) and ((each.uid, name) in plans or not is_recreated(each))
        ):
            continue
        key = gang.namespace, name, "" if is_single_pod_gang(gang) else gang.name
        if key not in lost:
            lost[key] = {one.uid: one for one in _siblings(world, each, coming)}
        lost[key][each.uid] = each
    for (namespace, name, gang_name), members in lost.items():
        yield CreateReservation(namespace, name, _spec(gang_name, members.values()))


def plan_keys(reservation: ReservationUpdate) -> tuple[tuple[str, str], ...]:
    """Under what its members look for it: namespace and name, or their UID and its name.

    A batch of single pods has those of any namespace. Written again it is one plan for each, of the same name.
    """
    spec, name = reservation.spec, reservation.name
    return ((reservation.namespace, name), *(() if spec.gang else ((seat.uid, name) for seat in spec.seats)))


def _siblings(world: ReconcileInput, member: Member, coming: Container[str]) -> Iterator[Member]:
    """Members that the same plan let go. A pin that is not proved is left out."""
    gang = world.gang(member.gang_request.gang)
    of_plan = (each for each in (() if gang is None else gang.placed) if each.reservation == member.reservation)
    return (each for each in of_plan if each.node is not None or each.pinned_terms is None or each.uid in coming)


def _spec(gang: str, members: Iterable[Member]) -> ReservationSpec:
    """Where they are or are to go. What a plan knows beside that is lost."""
    seats = [
        Seat(each.uid, each.name, each.node or each.pinned_terms, each.devices, rank=each.gang_request.rank)
        for each in members
    ]
    plan = ReservationSpec(gang, tuple(sorted(seats, key=lambda each: each.name)))
    timeouts = [each.gang_request.timeout_s for each in members if each.gang_request.timeout_s is not None]
    return msgspec.structs.replace(plan, timeout_s=max(timeouts)) if timeouts else plan
