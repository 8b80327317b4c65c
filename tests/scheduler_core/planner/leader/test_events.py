"""Events name no pods and gangs of other namespaces: users of a namespace read its Events."""

from __future__ import annotations

import msgspec
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
from scheduler_core.planner.preemption.model import EvictionUnit, VictimPod

REASON = "evicts 1 pod of team-b/secret; 2.0 GPU-hours of work are lost"


def victim(namespace: str) -> PlannedEviction:
    return PlannedEviction("u", namespace, "secret-0", "n1", f"{namespace}/secret", 4)


def hold(*evictions: PlannedEviction) -> ReservationUpdate:
    preemption = Preemption(evictions, "urgent", REASON)
    spec = ReservationSpec("urgent-model", held=(HeldCapacity("n1", 4),), preemption=preemption, priority=7)
    return ReservationUpdate("uid", "team-a", "urgent-model-1a2b3c", spec, "hash")


def unit_of(pod: PlannedEviction) -> EvictionUnit:
    victim_pod = VictimPod(pod.uid, pod.namespace, pod.name, pod.node)
    return EvictionUnit(pod.unit, (victim_pod,), rule="saved", reason="training, last checkpoint 5 min ago")


def test_an_eviction_in_another_namespace_names_no_side_to_the_other() -> None:
    evicted = victim("team-b")
    on_pod, on_reservation = eviction_events(EvictPod(evicted, hold(evicted)), unit_of(evicted))

    assert (on_pod.namespace, on_reservation.namespace) == ("team-b", "team-a")
    why = "(rule saved: training, last checkpoint 5 min ago)"
    assert on_pod.message == f"evicted for a gang of priority 7 {why}"
    assert on_reservation.message == "evicts a pod of another namespace to free 4 GPUs on n1 (rule saved)"


def test_an_eviction_in_the_same_namespace_names_both() -> None:
    evicted = victim("team-a")
    on_pod, on_reservation = eviction_events(EvictPod(evicted, hold(evicted)), unit_of(evicted))

    why = "(rule saved: training, last checkpoint 5 min ago)"
    assert on_pod.message == f"evicted for gang urgent-model of priority 7, reservation urgent-model-1a2b3c {why}"
    assert on_reservation.message == f"evicts team-a/secret-0 to free 4 GPUs on n1 {why}"


def test_an_eviction_for_a_single_pod_is_not_called_one_for_a_gang() -> None:
    evicted = victim("team-a")
    waiting = hold(evicted)
    waiting = waiting._replace(spec=msgspec.structs.replace(waiting.spec, gang="pod.u-1"))
    on_pod, _ = eviction_events(EvictPod(evicted, waiting), unit_of(evicted))

    assert on_pod.message.startswith(
        "evicted for a single pod of priority 7, reservation urgent-model-1a2b3c (rule saved: "
    )


@pytest.mark.parametrize(
    ("rules", "named"), [("urgent", "(rule urgent)"), ("saved, urgent", "(one of the rules saved, urgent)")]
)
def test_the_events_of_an_eviction_that_another_leader_chose_have_what_the_hold_says(rules: str, named: str) -> None:
    evicted = victim("team-b")
    found = hold(evicted)
    assert found.spec.preemption is not None
    intent = msgspec.structs.replace(found.spec.preemption, rule=rules)
    found = found._replace(spec=msgspec.structs.replace(found.spec, preemption=intent))

    for each in eviction_events(EvictPod(evicted, found)):
        assert each.message.endswith(f" {named}")


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
