"""Events name no pods and gangs of other namespaces: users of a namespace read its Events."""

from __future__ import annotations

import pytest

from gputopo.crd.reservations import (
    HeldCapacity,
    PlannedEviction,
    Preemption,
    ReservationSpec,
    ReservationState,
    ReservationStatus,
)
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import EvictPod, WriteStatus
from scheduler_core.planner.leader.events import eviction_events, status_events, stopped_events, stuck_event

REASON = "evicts 1 pod of team-b/secret; 2.0 GPU-hours of work are lost"


def victim(namespace: str) -> PlannedEviction:
    return PlannedEviction("u", namespace, "secret-0", "n1", f"{namespace}/secret", 4)


def hold(*evictions: PlannedEviction) -> ReservationUpdate:
    preemption = Preemption(evictions, "urgent", REASON)
    spec = ReservationSpec("urgent-model", held=(HeldCapacity("n1", 4),), preemption=preemption, priority=7)
    return ReservationUpdate("uid", "team-a", "urgent-model-1a2b3c", spec, "hash")


def test_an_eviction_in_another_namespace_names_no_side_to_the_other() -> None:
    evicted = victim("team-b")
    on_pod, on_reservation = eviction_events(EvictPod(evicted, hold(evicted)))

    assert (on_pod.namespace, on_reservation.namespace) == ("team-b", "team-a")
    assert on_pod.message == "evicted for a gang of priority 7 (urgent)"
    assert on_reservation.message == "evicts a pod of another namespace to free 4 GPUs on n1 (urgent)"


def test_an_eviction_in_the_same_namespace_names_both() -> None:
    evicted = victim("team-a")
    on_pod, on_reservation = eviction_events(EvictPod(evicted, hold(evicted)))

    assert on_pod.message.endswith(", reservation urgent-model-1a2b3c")
    assert on_reservation.message == "evicts team-a/secret-0 to free 4 GPUs on n1 (urgent)"


@pytest.mark.parametrize(
    "reason",
    [
        "capacity that becomes free on n1 is reserved; pods of a higher priority on these nodes: team-b/secret-0",
        "evicts 1 of 1 pod for it (urgent): team-b/secret-0",
        "team-b/secret-0 did not end in time",
    ],
)
def test_events_of_a_hold_leave_out_the_names_in_its_status(reason: str) -> None:
    evicted = victim("team-b")
    status = ReservationStatus(ReservationState.HELD, reason, stuck=("team-b/secret-0",))
    action = WriteStatus(hold(evicted), status)
    found = [*status_events(action, ()), stuck_event(action), next(stopped_events(hold(evicted), [evicted]))]

    assert [each.namespace for each in found] == ["team-a"] * 3
    assert not any("secret" in each.message or "team-b" in each.message for each in found)
    assert [each.message for each in found] == [
        "does not fit yet; capacity that becomes free on n1 is reserved; evicts 1 pod (urgent)",
        "1 pod did not end in time: gangs of this priority may evict other pods",
        "the preemption has ended before 1 pod of 1 unit could be evicted",
    ]
