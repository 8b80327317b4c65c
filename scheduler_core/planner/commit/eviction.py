"""Evicts pods for the gang of a capacity hold, as the spec of the hold lists them. Pure.

The ledger lists the hold and its evictions in one write, so the capacity is reserved before the first pod is evicted,
and every planner that leads continues from the objects alone: a listed pod that exists and does not terminate is
evicted, again if necessary. A unit is a gang, or the surplus of an elastic gang: half of it would be worthless. All
units begin in one write: while some pods are evicted and others not yet, their owners could protect the others.

    budgets not counted, or long ago     PodDisruptionBudgets are counted, and each eviction is tried as a dry run
    no unit begun, one is forbidden      the hold is removed: nothing is evicted
    all units are allowed                ``status.evicting`` names them, ``status.deadline`` the time for it
    a unit is begun                      its pods are evicted, unless they terminate; a refused eviction is repeated
    after the deadline                   a begun unit is finished; the others are not evicted
    the policy allows no eviction now    a begun unit is finished; the others wait, until the deadline
    a pod does not end                   ``status.stuck`` names it (``eviction_progress``)
    evictions are refused for 30 s       other pods are searched for; a hold with these replaces this one
    no listed pod is left                the hold is an ordinary capacity hold

Backfilled pods (``yields``) are evicted in any mode of the policy; if a budget forbids it, the hold stays, and it is
tried again. Nothing is evicted while the view may be outdated, nor once the gang has other places.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gputopo.crd.reservations import PlannedEviction, Preemption, ReservationState
from gputopo.render.wording import counted_noun
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import CheckBudgets, EvictPod, WriteStatus, reserved_gang, reserved_gangs
from scheduler_core.planner.commit.eviction_progress import (
    is_ending,
    is_late,
    is_left,
    left_evictions,
    refused_units,
    stuck_evictions,
    unfinished_evictions,
    untouched_units,
)
from scheduler_core.planner.commit.observations import BudgetCheck
from scheduler_core.planner.commit.state import ReconcileInput
from scheduler_core.planner.commit.status import first_names, hold_reason, status_write

CHECK_S = 10.0  # until evictions that are forbidden are counted again
FRESH_S = 2.0  # a count that allows all evictions is used for this time
AGAIN_S = 60.0  # a pod that does not terminate so long after its eviction was accepted is evicted again
# Extenders read the hold before pods end: else they may give the devices to other pods.
LISTED_S = 2.0
_ERROR_LENGTH = 500  # characters kept of the API server's message
_STUCK_NAMES = 100  # in the status


def is_useless(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return True if no pod is evicted yet, and the evictions would not make the gang fit, or are not allowed."""
    preemption = reservation.spec.preemption
    if preemption is None:
        return False
    if inputs.unproved.get(reservation.key) is None:
        return is_forbidden(inputs, reservation)
    return untouched_units(inputs, reservation, preemption) >= set(reservation.status.evicting)


def is_forbidden(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return True if a PodDisruptionBudget forbids the eviction of a unit, and no unit is begun."""
    preemption, check = reservation.spec.preemption, inputs.observations.budgets.get(reservation.key)
    if preemption is None or preemption.yields or reservation.status.evicting or check is None:
        return False
    return any(each.unit in check.blocked for each in preemption.evictions if is_left(inputs, each))


def due_evictions(inputs: ReconcileInput, reservation: ReservationUpdate) -> Iterator[EvictPod | CheckBudgets]:
    """Yield the evictions of begun units that may be done now, or the count of the budgets for further units."""
    preemption, begun = reservation.spec.preemption, reservation.status.evicting
    if preemption is None or not _may_evict(inputs, reservation):
        return
    # A unit of which no pod is evicted yet can still be spared.
    spared = (
        untouched_units(inputs, reservation, preemption) if reservation.key in inputs.unproved else frozenset[str]()
    )
    if unfinished := [each for each in unfinished_evictions(inputs, preemption) if each.unit in begun]:
        due = [each for each in unfinished if each.unit not in spared and _is_due(inputs, each)]
        # Else the owner of hundreds of pods without GPUs sees the first of them end, and protects those with GPUs.
        due.sort(key=lambda each: not each.gpus)
        yield from (EvictPod(each, reservation) for each in due)
        return
    left = left_evictions(inputs, preemption)
    yield from (EvictPod(each, reservation) for each in left if each.unit in begun and _is_due(inputs, each))
    waiting = tuple(each for each in left if each.unit not in begun)
    if all(is_ending(inputs, each) for each in waiting):  # they end without an eviction
        return
    if _may_begin(inputs, reservation) and _fresh_check(inputs, reservation) is None:
        is_first = not begun and not preemption.yields
        if is_first and reservation.key in inputs.unproved:  # the proof says where the members of the gang would be
            return
        seats = inputs.proved_seats.get(reservation.key, ()) if is_first else ()
        yield CheckBudgets(reservation.key, waiting, is_first, reservation.namespace, seats)


def preemption_status(
    inputs: ReconcileInput, reservation: ReservationUpdate, preemption: Preemption, estimate: float | None
) -> WriteStatus:
    """Return the status of a hold with evictions. The first begun units set the deadline of further ones."""
    units, status = _next_units(inputs, reservation, preemption), reservation.status
    timeout_s = preemption.timeout_s if units and status.deadline is None else None
    reason = _reason(inputs, reservation, preemption, estimate)
    write = status_write(inputs, reservation, ReservationState.HELD, reason, timeout_s=timeout_s)
    stuck = [f"{each.namespace}/{each.name}" for each in stuck_evictions(inputs, reservation, preemption)]
    changed = msgspec.structs.replace(
        write.status, evicting=(*status.evicting, *units), stuck=tuple(stuck[:_STUCK_NAMES])
    )
    return WriteStatus(reservation, changed)


def _next_units(inputs: ReconcileInput, reservation: ReservationUpdate, preemption: Preemption) -> tuple[str, ...]:
    """Return the units that may begin now: all at once; of backfilled pods only the allowed ones."""
    check, begun = _fresh_check(inputs, reservation), reservation.status.evicting
    if check is None or not _may_evict(inputs, reservation) or not _may_begin(inputs, reservation):
        return ()
    if reservation.key in inputs.unproved:
        return ()
    units = dict.fromkeys(each.unit for each in unfinished_evictions(inputs, preemption))
    # Without a forbidden or refused unit the gang would not fit: the others would be evicted in vain.
    if any(unit in begun for unit in units) or (not preemption.yields and any(unit in check.blocked for unit in units)):
        return ()
    return tuple(unit for unit in units if unit not in check.blocked)


def _reason(
    inputs: ReconcileInput, reservation: ReservationUpdate, preemption: Preemption, estimate: float | None
) -> str:
    """Return the reason of the hold, stable while nothing changes."""
    left = left_evictions(inputs, preemption)
    if not left:
        users = inputs.hold_users.get(reservation.key, ())
        return f"{hold_reason(reservation, estimate, users)}; {_done(reservation, preemption)}"
    if stuck := stuck_evictions(inputs, reservation, preemption):
        text = f"{first_names([f'{each.namespace}/{each.name}' for each in stuck])} did not end in time"
        return f"{text}: gangs of this priority may evict other pods{_refusal(inputs, reservation, left)}"
    if refused := refused_units(inputs, reservation, preemption):
        text = f"evictions of {first_names(sorted(refused))} are refused: other pods are searched for"
        return text + _refusal(inputs, reservation, left)
    spared = sorted({each.unit for each in unfinished_evictions(inputs, preemption)} - set(reservation.status.evicting))
    if spared and is_late(inputs, reservation):
        text = f"evictions were refused until {reservation.status.deadline}: {first_names(spared)} not evicted"
        return text + _refusal(inputs, reservation, left)
    if (why := inputs.unproved.get(reservation.key)) is not None:
        untouched = sorted(untouched_units(inputs, reservation, preemption))
        return f"{why}; not evicted: {first_names(untouched)}"
    if spared and not inputs.may_evict and not preemption.yields:
        return f"the policy allows no eviction now: {first_names(spared)} not evicted"
    names = first_names([f"{each.namespace}/{each.name}" for each in left])
    of_all = f"{len(left)} of {counted_noun(len(preemption.evictions), 'pod')}"
    return f"evicts {of_all} for it ({preemption.rule}): {names}{_refusal(inputs, reservation, left)}"


def _done(reservation: ReservationUpdate, preemption: Preemption) -> str:
    """Return which pods were evicted. Pods of units that never began ended by themselves."""
    begun = sum(each.unit in reservation.status.evicting for each in preemption.evictions)
    ended = counted_noun(len(preemption.evictions) - begun, "pod") + " ended before the eviction"
    if not begun:
        return ended
    done = f"{counted_noun(begun, 'pod')} evicted for it ({preemption.rule})"
    return done if begun == len(preemption.evictions) else f"{done}, {ended}"


def _refusal(inputs: ReconcileInput, reservation: ReservationUpdate, left: list[PlannedEviction]) -> str:
    refused, check = inputs.observations.refused_writes, inputs.observations.budgets.get(reservation.key)
    for each in left:
        found = refused.get((EvictPod, each.uid))
        if found is not None:
            return f"; the API server refuses {each.namespace}/{each.name}: {found.error[:_ERROR_LENGTH]}"
        if check is not None and each.unit in check.blocked:
            return f"; {check.blocked[each.unit][:_ERROR_LENGTH]}"
    return ""


def _may_evict(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return False while the view may be old, the hold is new, or the gang has other places."""
    name, memory = reserved_gang(reservation), inputs.observations
    since = memory.since.get(reservation.key)
    if inputs.has_stale_view or name is None or since is None or inputs.now - since.at < LISTED_S:
        return False
    others = (inputs.reservations.get(uid) for uid in {*memory.since, *memory.created} - {reservation.key})
    plans = (each for each in others if each is not None and not each.spec.held)
    return all(name not in reserved_gangs(each.namespace, each.spec, inputs.member) for each in plans)


def _may_begin(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return True if further units may be begun."""
    preemption = reservation.spec.preemption
    is_allowed = inputs.may_evict or (preemption is not None and preemption.yields)
    return is_allowed and not is_late(inputs, reservation)


def _fresh_check(inputs: ReconcileInput, reservation: ReservationUpdate) -> BudgetCheck | None:
    check = inputs.observations.budgets.get(reservation.key)
    if check is None or inputs.now - check.at > (CHECK_S if check.blocked else FRESH_S):
        return None
    return check


def _is_due(inputs: ReconcileInput, eviction: PlannedEviction) -> bool:
    if is_ending(inputs, eviction):
        return False
    evicted_at = inputs.observations.evicted.get(eviction.uid)
    return evicted_at is None or (eviction.gpus > 0 and inputs.now - evicted_at >= AGAIN_S)
