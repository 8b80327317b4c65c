"""Ends a gang when a running member fails, if its members request that (``on-member-failure: end-gang``). Pure.

The failed pod itself is the record: while it exists and a reservation of its gang lists it, the other members are
deleted, and no member of the gang is planned. Once they are gone the reservation is deleted, as that of any gang
without pods, and the failed pod no longer counts: members that a controller creates then are a new gang. So a planner
may be killed after any write, and the next one continues.

A gang ends only if every member that has a place requests it: no pod is deleted by the annotation of another pod.
"""

from __future__ import annotations

from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import EndPod, StripFinalizer
from scheduler_core.planner.commit.controllers import finalizer_to_strip
from scheduler_core.planner.commit.members import find_gang, is_finished, is_gated, members_of
from scheduler_core.planner.commit.recovery import recover_unlisted
from scheduler_core.planner.commit.state import CommitTerms, ReconcileInput, ReservationStep
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import Member


def unlisted_step(inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> ReservationStep:
    """Return the step of a reservation that the ledger does not list."""
    ending = _end_step(inputs, reservation)
    return recover_unlisted(inputs, terms, reservation) if ending is None else ending


def ends_gang(failed: Member, gang: Gang | None) -> bool:
    """Return whether the failure of a member ends its gang. ``gang``: as observed; None: it has no member."""
    if failed.phase != "Failed" or failed.is_terminating or not failed.gang_request.ends_on_failure:
        return False
    attempt = failed.gang_request.attempt
    placed = () if gang is None else gang.placed
    return all(each.gang_request.ends_on_failure and each.gang_request.attempt == attempt for each in placed)


def _end_step(inputs: ReconcileInput, reservation: ReservationUpdate) -> ReservationStep | None:
    """Return the deletions that are left, other plans of the gang first; None: no member failed, or nothing is left."""
    seated = [member for _, member in members_of(inputs, reservation) if member is not None]
    gang = find_gang(inputs, reservation)
    failed = next((each for each in seated if ends_gang(each, gang)), None)
    if failed is None or gang is None:
        return None
    own = {each.uid for each in seated}
    left = sorted(gang.placed, key=lambda each: (each.uid in own, each.name))
    first = [each for each in left if each.uid not in own] or left
    if left:
        return ReservationStep(tuple(_deletion(each, failed) for each in first))
    ending = any(each.is_terminating and not is_gated(each) and not is_finished(each) for each in seated)
    return ReservationStep() if ending else None


def _deletion(member: Member, failed: Member) -> StripFinalizer | EndPod:
    """Return the next write: without its finalizer, a Job does not count the deleted pod as another failure."""
    finalizer = finalizer_to_strip(member)
    return EndPod(member, failed.name) if finalizer is None else StripFinalizer(member, finalizer)
