"""Evictions that are refused although the budgets allowed them: the gang gets other pods, or waits for these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_core.planner.commit.actions import Action, CheckBudgets, EvictPod
from scheduler_core.planner.leader.forbidden_units import ForbiddenUnits
from scheduler_core.planner.leader.writer import WriteOutcome
from tests.scheduler_core.planner.commit.apiserver import ApiServer
from tests.scheduler_core.planner.leader.fake_planner import START, FakePlanner
from tests.scheduler_core.planner.leader.preemption_cases import (
    RUNNING,
    committed,
    evicted,
    planner,
    run,
    urgent,
)

Json = dict[str, Any]
CHEAP = {"gputopo.io/restart-time": "1s"}


def run_pod(server: ApiServer, name: str, node: str, namespace: str, *, cheap: bool = False) -> str:
    metadata = {"namespace": namespace} | ({"annotations": CHEAP} if cheap else {})
    uid = server.create_pod(name, 2, more={**RUNNING, "metadata": metadata})
    server.bind(uid, node)
    return uid


def run_foes(server: ApiServer, *nodes: str) -> set[str]:
    """Run a cheap gang of the tenant "foe", one pod on each node. Return their UIDs."""
    pods = {
        server.create_pod(
            f"g-{node}",
            2,
            nodes[0],
            len(nodes),
            {**RUNNING, "metadata": {"namespace": "foe", "annotations": CHEAP}, "spec": {"nodeName": node}},
        )
        for node in nodes
    }
    for each in pods:
        server.pods[each]["spec"]["schedulingGates"] = []
    return pods


def only_first(foes: set[str], outcome: WriteOutcome) -> Callable[[Action], WriteOutcome | None]:
    """Return the budget of a tenant that allows all, until one of its pods terminates."""
    accepted: set[str] = set()

    def refuses(action: Action) -> WriteOutcome | None:
        if not isinstance(action, EvictPod) or action.eviction.uid not in foes:
            return None
        accepted.update(() if accepted else (action.eviction.uid,))
        return None if action.eviction.uid in accepted else outcome

    return refuses


def until_committed(leader: FakePlanner, seconds: float) -> float:
    """Run until a gang has places. Return how long that took, or ``seconds``."""
    began = leader.now
    while not committed(leader.server) and leader.now - began < seconds:
        run(leader, 2)
    return leader.now - began


@pytest.mark.parametrize("outcome", [WriteOutcome.REFUSED, WriteOutcome.UNANSWERED])
def test_a_budget_that_allows_nothing_once_the_first_pod_terminates_delays_the_gang_by_a_minute(
    outcome: WriteOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ApiServer({"n0": 2, "n1": 2, "n2": 2, "n3": 2})
    foes = run_foes(server, "n0", "n1")
    others = {run_pod(server, f"dear-{node}", node, "team") for node in ("n2", "n3")}
    urgent(server, size=2)
    leader = planner(server)
    monkeypatch.setattr(leader, "lease_renewed_at", lambda: leader.now - START)
    leader.refuses = only_first(foes, outcome)

    waited = until_committed(leader, 600.0)

    assert waited < 120.0
    (spared,) = foes & server.pods.keys()
    assert len(others & server.pods.keys()) == 1
    assert [each.uid for each in leader.events if each.reason == "EvictionStopped" and each.kind == "Pod"] == [spared]
    assert [why for gang, why in leader.not_evicted if gang == "urgent"] == ["foe/n0 is not evicted: it is refused"]


def test_the_budgets_of_a_namespace_cannot_repeat_it() -> None:
    server = ApiServer({f"n{number}": 2 for number in range(12)})
    foes = {uid for at in range(0, 10, 2) for uid in run_foes(server, f"n{at}", f"n{at + 1}")}
    others = {run_pod(server, f"dear-{node}", node, "team") for node in ("n10", "n11")}
    urgent(server, size=2)
    leader = planner(server)
    leader.refuses = lambda action: (
        WriteOutcome.REFUSED if isinstance(action, EvictPod) and action.eviction.uid in foes else None
    )

    assert until_committed(leader, 600.0) < 120.0

    assert foes <= server.pods.keys()
    assert not others & server.pods.keys()
    tried = {each for each in evicted(leader) if each in foes}
    assert len(tried) == 2  # the pods of one unit


def test_without_other_pods_the_evictions_are_repeated_until_they_are_accepted() -> None:
    server = ApiServer({"n0": 2, "n1": 2})
    foes = run_foes(server, "n0", "n1")
    urgent(server, size=2)
    leader = planner(server)
    leader.refuses = only_first(foes, WriteOutcome.REFUSED)
    run(leader, 60)
    assert (len(foes & server.pods.keys()), committed(server)) == (1, set())

    leader.refuses = lambda _: None

    assert until_committed(leader, 60.0) < 60.0
    assert len([each for each in leader.writes if isinstance(each, CheckBudgets)]) > 0


def test_a_namespace_does_not_wait_after_its_user_deletes_a_gang_whose_evictions_are_refused() -> None:
    server = ApiServer({"n0": 2, "n1": 2, "n2": 2})
    foes = run_foes(server, "n0", "n1")
    run_pod(server, "dear", "n2", "team")
    gang = urgent(server, size=2)
    leader = planner(server)
    leader.refuses = only_first(foes, WriteOutcome.REFUSED)
    run(leader, 10)
    assert len(foes & server.pods.keys()) == 1

    for each in gang:
        server.delete_pod(each)
    (left,) = foes & server.pods.keys()
    for node in {"n0", "n1"} - {server.pods[left]["spec"]["nodeName"]}:  # else the next gang needs no eviction
        run_pod(server, "again", node, "foe")
    leader.refuses = lambda _: None
    urgent(server, "second", size=1)

    assert until_committed(leader, 300.0) < 60.0
    assert leader.preemptions[:5] == ["planned", "begun", "in-vain", "planned", "begun"]


def test_a_namespace_whose_evictions_are_refused_again_is_left_out_for_longer() -> None:
    forbidden, now, found = ForbiddenUnits(), 0.0, []
    for _ in range(5):
        forbidden.refuse({"foe/a"}, now)
        began = now
        while "foe" in forbidden.names(now).namespaces:
            assert "foe/a" in forbidden.names(now).units
            now += 60.0
        found.append((now - began) / 60.0)

    assert found == [2.0, 8.0, 32.0, 128.0, 128.0]
    assert forbidden.names(now).units == {"foe/a"}  # other units are tried first
    assert forbidden.names(now + 3_700.0) == ForbiddenUnits().names(0.0)
