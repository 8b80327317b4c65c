"""kube-scheduler's preemption does not evict pods that the policy protects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler_core.cache.events import PodUpdate
from scheduler_core.extender.protected_victims import ProtectedVictims
from scheduler_core.extender.victims import DropCause, NodeVictims
from scheduler_core.policy.preemption import (
    DEFAULT_PREEMPTION,
    PreemptionMatch,
    PreemptionMode,
    PreemptionPeer,
    PreemptionRule,
)
from scheduler_core.policy.workload_class import WorkloadClass
from scheduler_core.request.disruption import DisruptionFacts, RunningFacts
from scheduler_core.simulation.assumed_machines import islands
from tests.scheduler_core.builders import NOW
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod

HOUR_S = 3600.0
DAY_S = 86_400.0
SAVED = DisruptionFacts(last_checkpoint=NOW - 60)
URGENT = PreemptionPeer("team", 2_000, WorkloadClass.DEFAULT)
RULES = (PreemptionRule("all-but-batch", PreemptionMatch(frozenset({WorkloadClass.TRAINING}))),)


def victim(
    workload: str = "training",
    priority: int = 0,
    *,
    ran_s: float = 5 * HOUR_S,
    ends_in_s: float | None = None,
    **facts: Any,
) -> PodUpdate:
    """Return a running pod with all GPUs of its node; by default it has just saved a checkpoint."""
    declared = DisruptionFacts(**{"last_checkpoint": NOW - 60, **facts})
    deadline = None if ends_in_s is None else NOW + ends_in_s
    made = pod_update("low", 8, "a", admitted=True, workload=workload)
    return made._replace(priority=priority, running=RunningFacts(declared, NOW - ran_s, deadline))


@pytest.mark.parametrize(
    ("pod", "is_protected"),
    [
        pytest.param(victim(), False, id="training that has just saved"),
        pytest.param(victim(priority=1_000), True, id="important training"),
        pytest.param(victim(completion=NOW + HOUR_S), True, id="training near its end, as it says"),
        pytest.param(victim(ends_in_s=HOUR_S), True, id="training near its deadline"),
        pytest.param(victim(completion=NOW + 3 * HOUR_S), False, id="training that goes on"),
        pytest.param(victim(checkpoints=False), True, id="training without checkpoints"),
        pytest.param(victim(last_checkpoint=NOW - HOUR_S), True, id="training that saved long ago"),
        pytest.param(victim(last_checkpoint=None), True, id="training that reports no last checkpoint"),
        pytest.param(victim(last_checkpoint=None, ran_s=900.0), True, id="young training that reports none"),
        pytest.param(victim(never="gputopo.io/preemptible"), True, id="an annotation forbids it"),
        pytest.param(victim(never="x", ran_s=2 * DAY_S), False, id="an annotation forbade it for a day"),
        pytest.param(victim("batch"), False, id="no rule: the priority decides"),
    ],
)
def test_nodes_with_protected_victims_are_dropped(pod: PodUpdate, is_protected: bool) -> None:
    stage = FakeScheduler.synced_with_reservations({"a": islands("A100", (4, 4))}, pod)
    urgent = unbound_pod("urgent", 4)
    urgent = msgspec.structs.replace(urgent, spec=msgspec.structs.replace(urgent.spec, priority=2_000))

    found = stage.extender.preempt(urgent, {"a": NodeVictims((pod.key,))})

    assert found.dropped == ({"a": DropCause.PROTECTED} if is_protected else {})
    assert set(found.kept) == (set() if is_protected else {"a"})


def test_with_rules_in_the_policy_file_pods_without_a_rule_are_protected() -> None:
    own = DEFAULT_PREEMPTION._replace(rules=RULES)
    judge = ProtectedVictims()

    assert judge.protection_of(victim("batch"), URGENT, own, NOW) is not None
    assert judge.protection_of(victim(), URGENT, own, NOW) is None
    assert judge.protection_of(victim("batch"), URGENT, DEFAULT_PREEMPTION, NOW) is None
    assert judge.protection_of(victim("batch"), URGENT, own._replace(mode=PreemptionMode.OFF), NOW) is None


def test_a_pod_that_says_again_and_again_that_it_ends_soon_is_protected_for_twice_the_time_of_the_rule() -> None:
    judge = ProtectedVictims()

    def is_protected(after_s: float) -> bool:
        now = NOW + after_s
        pod = victim(completion=now + HOUR_S, last_checkpoint=now)
        return judge.protection_of(pod, URGENT, DEFAULT_PREEMPTION, now) is not None

    assert [is_protected(hours * HOUR_S) for hours in (0, 3.9, 4.1)] == [True, True, False]
    judge.forget_pods(())
    assert is_protected(5 * HOUR_S)


def test_facts_that_change_do_not_change_the_node() -> None:
    pod = victim()
    stage = FakeScheduler.synced_with_reservations({"a": islands("A100", (4, 4))}, pod)
    before = stage.cache.snapshot.states["a"]

    stage.watch_pods(pod._replace(running=RunningFacts(SAVED, NOW)))

    assert stage.cache.snapshot.states["a"] is before
    assert stage.cache.pods[pod.key].running == RunningFacts(SAVED, NOW)
