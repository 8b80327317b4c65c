"""Evicts pods for the gang of a capacity hold, as the spec of the hold lists them. Pure.

The ledger lists the hold and its evictions in one write, so the capacity is reserved before the first pod is evicted,
and every planner that leads continues from the objects alone: a listed pod that still exists is evicted, again if
necessary. The status of the hold has the deadline of refused evictions before the first pod is evicted.

    status without a deadline       the deadline is written; nothing is evicted yet
    before the deadline             every listed pod that exists is evicted; a refused eviction is repeated
    after the deadline              a unit of which a pod is gone is finished; the others are spared
    no listed pod is left           the hold is an ordinary capacity hold

A unit is a gang, or the surplus of an elastic gang: half of it would be worthless.
"""

from __future__ import annotations

from collections.abc import Iterator

from gputopo.crd.reservations import PlannedEviction, Preemption, ReservationState
from gputopo.render.wording import counted_noun
from gputopo.timestamps import format_timestamp, parse_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import EvictPod, WriteStatus
from scheduler_core.planner.commit.state import ReconcileInput
from scheduler_core.planner.commit.status import first_names, hold_reason, status_write

AGAIN_S = 60.0  # a pod that exists so long after its eviction was accepted is evicted again
_ERROR_LENGTH = 500  # characters kept of the API server's message


def due_evictions(inputs: ReconcileInput, reservation: ReservationUpdate) -> Iterator[EvictPod]:
    """Yield the evictions that may be done now for a hold that the ledger lists."""
    preemption, deadline = reservation.spec.preemption, parse_timestamp(reservation.status.deadline)
    if preemption is None or deadline is None or inputs.has_stale_view:
        return
    begun = _begun_units(inputs, preemption)
    for each in preemption.evictions:
        is_wanted = inputs.wall_time < deadline or each.unit in begun
        evicted_at = inputs.observations.evicted.get(each.uid)
        is_due = evicted_at is None or (each.gpus > 0 and inputs.now - evicted_at >= AGAIN_S)
        if is_wanted and is_due and _is_left(inputs, each):
            yield EvictPod(each, reservation)


def preemption_status(
    inputs: ReconcileInput, reservation: ReservationUpdate, preemption: Preemption, estimate: float | None
) -> WriteStatus:
    """Return the status of a hold with evictions. The first one has the deadline of refused evictions."""
    timeout_s = preemption.timeout_s if reservation.status.deadline is None else None
    reason = _reason(inputs, reservation, preemption, estimate)
    return status_write(inputs, reservation, ReservationState.HELD, reason, timeout_s=timeout_s)


def _reason(
    inputs: ReconcileInput, reservation: ReservationUpdate, preemption: Preemption, estimate: float | None
) -> str:
    """Return the reason of the hold, stable while nothing changes."""
    left = [each for each in preemption.evictions if _is_left(inputs, each)]
    if not left:
        users = inputs.hold_users.get(reservation.key, ())
        done = f"{counted_noun(len(preemption.evictions), 'pod')} evicted for it ({preemption.rule})"
        return f"{hold_reason(reservation, estimate, users)}; {done}"
    deadline = parse_timestamp(reservation.status.deadline)
    names = first_names([f"{each.namespace}/{each.name}" for each in left])
    of_all = f"{len(left)} of {counted_noun(len(preemption.evictions), 'pod')}"
    if deadline is not None and inputs.wall_time >= deadline:
        begun = _begun_units(inputs, preemption)
        spared = sorted({each.unit for each in left} - begun)
        if spared:
            text = f"evictions were refused until {format_timestamp(deadline)}: {first_names(spared)} spared"
            return text + _refusal(inputs, left)
    return f"evicts {of_all} for it ({preemption.rule}): {names}{_refusal(inputs, left)}"


def _refusal(inputs: ReconcileInput, left: list[PlannedEviction]) -> str:
    refused = inputs.observations.refused_writes
    for each in left:
        found = refused.get((EvictPod, each.uid))
        if found is not None:
            return f"; the API server refuses {each.namespace}/{each.name}: {found.error[:_ERROR_LENGTH]}"
    return ""


def _begun_units(inputs: ReconcileInput, preemption: Preemption) -> set[str]:
    """Return the units of which a pod is gone, or its eviction was accepted."""
    return {
        each.unit
        for each in preemption.evictions
        if each.uid in inputs.observations.evicted or not _is_left(inputs, each)
    }


def _is_left(inputs: ReconcileInput, eviction: PlannedEviction) -> bool:
    """Return whether the pod exists. Pods without GPUs are not watched: they exist until their eviction is accepted."""
    if eviction.gpus:
        return inputs.exists(eviction.uid)
    return eviction.uid not in inputs.observations.evicted
