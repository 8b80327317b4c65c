"""The progress of the evictions of a capacity hold: which pods are left, and which do not end in time. Pure.

A pod that was evicted and does not end (a finalizer, a lost node) must not keep other gangs from preempting. It is
stuck once ``timeoutS`` of the intent has passed since the end of its grace period, or since the deadline of the
evictions. Its devices count as used until the kubelet has released them.

An eviction may be refused although the budgets allowed it a moment ago: tenants change budgets. After ``REFUSED_S`` the
evictions of the hold are over, and other pods are searched for. They are repeated until another hold replaces this one.
"""

from __future__ import annotations

from enum import Enum

from gputopo.crd.reservations import PlannedEviction, Preemption
from gputopo.timestamps import parse_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import EvictPod
from scheduler_core.planner.commit.state import ReconcileInput
from scheduler_core.planner.gang.disruption import ends_within

REFUSED_S = 30.0


class EvictionProgress(Enum):
    """The progress of the evictions of a hold."""

    RUNNING = "running"  # pods are evicted, or about to end
    DONE = "done"  # no listed pod is left: the kubelets release the devices
    OVER = "over"  # all pods that are left are stuck, or are not evicted any more, or evictions are refused


def eviction_progress(
    inputs: ReconcileInput, reservation: ReservationUpdate, preemption: Preemption
) -> EvictionProgress:
    """Return the progress of the evictions of a hold."""
    left, begun = left_evictions(inputs, preemption), _begun_units(inputs, reservation, preemption)
    if not left:
        return EvictionProgress.DONE
    if refused_units(inputs, reservation, preemption):
        return EvictionProgress.OVER
    may_begin = not is_late(inputs, reservation) and not _spares_untouched(inputs, reservation)
    if not begun or (may_begin and any(each.unit not in begun for each in left)):
        return EvictionProgress.RUNNING
    stuck = stuck_evictions(inputs, reservation, preemption)
    ending = [each for each in left if each.unit in begun and each not in stuck]
    return EvictionProgress.RUNNING if ending else EvictionProgress.OVER


def left_evictions(inputs: ReconcileInput, preemption: Preemption) -> list[PlannedEviction]:
    """Return the pods that exist."""
    return [each for each in preemption.evictions if is_left(inputs, each)]


def unfinished_evictions(inputs: ReconcileInput, preemption: Preemption) -> list[PlannedEviction]:
    """Return the pods that exist, do not terminate, and whose eviction was not accepted."""
    accepted = inputs.observations.evicted
    return [
        each for each in left_evictions(inputs, preemption) if each.uid not in accepted and not is_ending(inputs, each)
    ]


def untouched_units(inputs: ReconcileInput, reservation: ReservationUpdate, preemption: Preemption) -> frozenset[str]:
    """Return the units with pods that are left, of which no pod was evicted: they can still be spared."""
    unfinished = {each.uid for each in unfinished_evictions(inputs, preemption)}
    begun = set(reservation.status.evicting)
    touched = {each.unit for each in preemption.evictions if each.unit in begun and each.uid not in unfinished}
    return frozenset(each.unit for each in left_evictions(inputs, preemption)) - touched


def refused_units(inputs: ReconcileInput, reservation: ReservationUpdate, preemption: Preemption) -> dict[str, str]:
    """Return the begun units of which the API server refuses or does not answer an eviction since ``REFUSED_S``.

    With the reason for people. The evictions of backfilled pods (``yields``) are repeated until these end.
    """
    if preemption.yields:
        return {}
    found: dict[str, str] = {}
    begun = _begun_units(inputs, reservation, preemption)
    for each in unfinished_evictions(inputs, preemption):
        refused = inputs.observations.refused_writes.get((EvictPod, each.uid))
        if each.unit in begun and refused is not None and inputs.now - refused.since >= REFUSED_S:
            found.setdefault(each.unit, refused.error)
    return found


def _spares_untouched(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return True if the evictions are known not to make the gang fit, or not to be allowed."""
    return inputs.unproved.get(reservation.key) is not None


def _begun_units(inputs: ReconcileInput, reservation: ReservationUpdate, preemption: Preemption) -> set[str]:
    """Return the units of which pods are evicted, without units that are spared."""
    begun = set(reservation.status.evicting)
    if _spares_untouched(inputs, reservation):
        begun -= untouched_units(inputs, reservation, preemption)
    return begun


def stuck_evictions(
    inputs: ReconcileInput, reservation: ReservationUpdate, preemption: Preemption
) -> tuple[PlannedEviction, ...]:
    """Return the pods of begun units that did not end in time."""
    begun, deadline = _begun_units(inputs, reservation, preemption), parse_timestamp(reservation.status.deadline)

    def is_stuck(each: PlannedEviction) -> bool:
        gone_by = inputs.gone_by(each.uid) if is_ending(inputs, each) else None
        accepted = inputs.observations.evicted.get(each.uid)
        if gone_by is None and accepted is not None and inputs.now - accepted < preemption.timeout_s:
            return False  # the watch may not show yet that it terminates
        due = deadline if gone_by is None else gone_by
        return due is not None and inputs.wall_time >= due + preemption.timeout_s

    return tuple(each for each in left_evictions(inputs, preemption) if each.unit in begun and is_stuck(each))


def is_late(inputs: ReconcileInput, reservation: ReservationUpdate) -> bool:
    """Return True if the time in which units are begun is over."""
    deadline = parse_timestamp(reservation.status.deadline)
    return deadline is not None and inputs.wall_time >= deadline


def is_left(inputs: ReconcileInput, eviction: PlannedEviction) -> bool:
    """Return whether the pod exists. Not all pods without GPUs are watched: they count until they are evicted."""
    if eviction.gpus:
        return inputs.exists(eviction.uid)
    return eviction.uid not in inputs.observations.evicted and not is_ending(inputs, eviction)


def is_ending(inputs: ReconcileInput, eviction: PlannedEviction) -> bool:
    """Return True if the pod terminates, and an eviction would not end it earlier.

    The owner of a pod can delete it with any grace period; the one of the eviction replaces a longer one.
    """
    gone_by = inputs.gone_by(eviction.uid)
    if eviction.grace_s is None:  # planned by an earlier version
        return gone_by is not None
    return ends_within(eviction.grace_s, gone_by, inputs.wall_time)
