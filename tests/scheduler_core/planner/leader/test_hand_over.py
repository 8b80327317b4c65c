"""Pods whose rules only kube-scheduler can follow lose their gate without a pin."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.planner.commit.actions import ReleasePod, UngateAndPin
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.hand_over import MAX_ROLLBACKS, POLICY, hand_over_reason
from scheduler_core.planner.leader.queue import QueuedGang
from scheduler_core.request.full_pod import LabelSelector, PodAffinityTerm
from tests.scheduler_core.planner.commit.apiserver import ApiServer
from tests.scheduler_core.planner.gang.gang_pods import members, queued
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner

SPREAD = {
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
}
APART = PodAffinityTerm("kubernetes.io/hostname", LabelSelector({"app": "web"}))


def test_a_gang_with_such_a_rule_is_handed_over_and_others_are_planned() -> None:
    server = ApiServer()
    spread = {server.create_pod(f"s{at}", 1, "spread", 2, {"spec": SPREAD}) for at in range(2)}
    plain = {server.create_pod(f"p{at}", 1, "plain", 2) for at in range(2)}
    planner = FakePlanner(server)

    planner.run()

    released = [each for each in planner.writes if isinstance(each, ReleasePod)]
    assert {each.member.uid for each in released} == spread
    assert {each.policy for each in released} == {POLICY}
    assert {each.member.uid for each in planner.writes if isinstance(each, UngateAndPin)} == plain
    assert [each.reason for each in planner.events if each.reason == "GangReleased"] == ["GangReleased"] * 2
    (message,) = {each.message for each in planner.events if each.reason == "GangReleased"}
    assert message == (
        "its gate was removed without a place: plans do not follow the rules of its members (topology spread), so "
        "kube-scheduler chooses their nodes, one by one: the gang may start in part"
    )
    assert not any(server.pods[uid]["spec"]["schedulingGates"] for uid in spread)


def test_a_gang_is_handed_over_when_it_is_complete() -> None:
    server = ApiServer()
    server.create_pod("s0", 1, "spread", 2, {"spec": SPREAD})
    planner = FakePlanner(server)

    planner.run()

    assert not any(isinstance(each, ReleasePod) for each in planner.writes)


@pytest.mark.parametrize(
    ("changed", "rollbacks", "handed_over"),
    [
        pytest.param({"anti_affinity": (APART,)}, MAX_ROLLBACKS, True, id="anti-affinity, refused often"),
        pytest.param({"claims": ("data",)}, MAX_ROLLBACKS, True, id="volumes, refused often"),
        pytest.param({"claims": ("data",)}, MAX_ROLLBACKS - 1, False, id="volumes, refused once"),
        pytest.param({}, 99, False, id="no such rule"),
    ],
)
def test_rules_that_plans_follow_in_part_lead_to_it_after_two_rollbacks(
    changed: dict[str, Any], rollbacks: int, *, handed_over: bool
) -> None:
    gang: Gang = queued(ready=tuple(members(2, **changed)))
    waiting = QueuedGang(gang, 0.0, rollbacks=rollbacks, rollback_reason="w-0 not bound within 30 s")

    reason = hand_over_reason(waiting)

    assert (reason is not None) is handed_over
    assert reason is None or "refused 2 plans (w-0 not bound within 30 s)" in reason
