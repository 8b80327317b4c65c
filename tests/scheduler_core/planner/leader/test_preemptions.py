"""Evictions for a gang that does not fit, from the term to the ledger."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.crd.reservations import EntryPhase
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.actions import CheckBudgets, EvictPod
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.leader.writer import WriteOutcome
from scheduler_core.planner.status import planner_status
from scheduler_core.policy.preemption import (
    PreemptionMatch,
    PreemptionMode,
    PreemptionPolicy,
    PreemptionRule,
)
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner

RULE = PreemptionRule("lower-yields", PreemptionMatch(), min_runtime_s=0.0)
POLICY = PreemptionPolicy(PreemptionMode.EVICT, (RULE,), wait_s=0.0, min_runtime_s=0.0)
TERMS = CommitTerms(gated=True)


def full(**gpus: int) -> tuple[ApiServer, dict[str, str]]:
    """Return nodes of two GPUs, each with a running pod of so many GPUs; and these pods by node."""
    server = ApiServer(dict.fromkeys(gpus, 2))
    running = {"status": {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"}}
    pods = {node: server.create_pod(f"on-{node}", number, more=running) for node, number in gpus.items()}
    for node, uid in pods.items():
        server.bind(uid, node)
    return server, pods


def urgent(server: ApiServer, name: str = "urgent", size: int = 1, gpus: int = 2) -> list[str]:
    return [server.create_pod(name, gpus, name, size, priority=100) for _ in range(size)]


def planner(server: ApiServer, name: str = "one", **changed: Any) -> FakePlanner:
    made = FakePlanner(server, name, terms=TERMS)
    made.policies = BUILT_IN._replace(preemption=POLICY._replace(**changed))
    return made


def run(of: FakePlanner, seconds: int = 40) -> None:
    """Run for a time: evictions wait until extenders have read the hold."""
    for _ in range(seconds // 2):
        of.now += 2.0
        of.server.now += 2.0
        of.run()


def evicted(of: FakePlanner) -> list[str]:
    return [each.eviction.uid for each in of.writes if isinstance(each, EvictPod)]


def committed(server: ApiServer) -> set[str]:
    """Return the gangs that the ledger has listed as committed at any time: here no scheduler binds them."""
    shown = [each.object for each in server.events if each.kind is ReservationUpdate and each.object is not None]
    gangs = {each.key: each.spec.gang for each in shown}
    ledgers = (each.object for each in server.events if each.kind is LedgerUpdate and each.object is not None)
    return {gangs[entry.uid] for of in ledgers for entry in of.spec.entries if entry.phase is EntryPhase.COMMITTED}


def test_a_pod_of_a_lower_priority_is_evicted_and_the_gang_gets_its_places() -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server)

    run(leader)

    assert len(evicted(leader)) == 1
    assert set(evicted(leader)) <= set(pods.values())
    assert committed(server) == {"urgent"}
    assert leader.preemptions == ["planned", "begun", "won"]


def test_in_dry_run_mode_nothing_is_evicted_and_the_same_units_are_reported_once() -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server, mode=PreemptionMode.DRY_RUN)

    run(leader, 200)

    assert evicted(leader) == []
    assert set(pods.values()) <= server.pods.keys()
    assert leader.preemptions == ["dry-run"]
    assert all(each.spec.preemption is None for each in server.reservations.values())
    gangs = planner_status(leader.term, True, None, (), leader.now).gangs
    ((name, plan),) = ((each.gang.name.name, each.dry_run) for each in gangs if each.dry_run is not None)
    assert (name, len(plan.pods)) == ("urgent", 1)
    assert {each.uid for each in plan.pods} <= set(pods.values())


def test_the_result_of_a_dry_run_goes_with_the_mode() -> None:
    server, _ = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server, mode=PreemptionMode.DRY_RUN)
    run(leader, 200)

    leader.policies = BUILT_IN._replace(preemption=POLICY._replace(mode=PreemptionMode.OFF))
    run(leader, 30)

    gangs = planner_status(leader.term, True, None, (), leader.now).gangs
    assert [each.dry_run for each in gangs if each.dry_run is not None] == []


@pytest.mark.parametrize("changed", [{"mode": PreemptionMode.OFF}, {"wait_s": 1e9}, {"rules": ()}])
def test_nothing_is_evicted_where_the_policy_does_not_allow_it(changed: dict[str, Any]) -> None:
    server, _ = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server, **changed)

    run(leader)

    assert (evicted(leader), leader.preemptions) == ([], [])


def test_nothing_is_evicted_above_the_limit_of_an_hour() -> None:
    server, _ = full(n0=2, n1=2)
    urgent(server, size=2)
    leader = planner(server, max_evictions_per_hour=1)

    run(leader)

    assert evicted(leader) == []
    assert set(leader.preemptions) == {"over-limit"}


def test_no_pod_is_evicted_where_that_would_not_yield_the_places() -> None:
    server, _ = full(n0=2, n1=2)
    urgent(server, size=3)
    leader = planner(server)

    run(leader)

    assert evicted(leader) == []


def test_a_unit_that_a_budget_forbids_is_left_and_another_one_is_evicted() -> None:
    server, pods = full(n0=2, n1=2)
    names = {uid: server.pods[uid]["metadata"]["name"] for uid in pods.values()}
    leader = planner(server)
    urgent(server)
    spared = pods["n0"]
    leader.blocked = {f"{SPACE}/{names[spared]}": "PodDisruptionBudget team/b allows 0 more evictions"}

    run(leader, 120)

    assert evicted(leader) == [pods["n1"]]
    assert committed(server) == {"urgent"}


def test_where_budgets_forbid_all_nothing_is_evicted() -> None:
    server, pods = full(n0=2, n1=2)
    leader = planner(server)
    urgent(server)
    leader.blocked = {f"{SPACE}/{server.pods[uid]['metadata']['name']}": "no" for uid in pods.values()}

    run(leader, 120)

    assert evicted(leader) == []
    assert any(isinstance(each, CheckBudgets) for each in leader.writes)


@pytest.mark.parametrize("writes", range(1, 14))
def test_a_successor_finishes_or_lets_be_after_any_write(writes: int) -> None:
    """The planner is killed after each of its writes; at the end the gang has its places, and one pod was evicted."""
    server, pods = full(n0=2, n1=2)
    urgent(server)
    first = planner(server)
    for _ in range(60):
        if len(first.writes) >= writes:
            break
        first.now += 1.0
        server.now += 1.0
        first.run_once()
        first.term.tick(first.watches)

    second = planner(server, "two")
    second.now = first.now + 20.0
    run(second, 120)

    assert committed(server) == {"urgent"}
    assert len([uid for uid in pods.values() if uid not in server.pods]) == 1


def test_with_mode_off_a_preemption_that_has_not_begun_ends() -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server)
    leader.refuses = lambda action: WriteOutcome.UNANSWERED if isinstance(action, CheckBudgets) else None
    run(leader, 10)
    assert any(each.spec.preemption is not None for each in server.reservations.values())

    leader.policies = BUILT_IN._replace(preemption=POLICY._replace(mode=PreemptionMode.OFF))
    run(leader, 30)

    assert (evicted(leader), set(pods.values()) <= server.pods.keys()) == ([], True)
    assert all(each.spec.preemption is None for each in server.reservations.values())
