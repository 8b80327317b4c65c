"""Short gangs on capacity that is held for another gang, from the term to the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gputopo.crd.reservations import EntryPhase
from gputopo.labels.keys import POD_ESTIMATED_COMPLETION, POD_EXPECTED_DURATION
from gputopo.timestamps import format_timestamp, parse_timestamp
from scheduler_core.cache import cluster_cache, node_table
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.planner.commit.actions import CreateReservation, EvictPod, WriteStatus
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.gang import DEFAULT_BIND_TIMEOUT_S
from scheduler_core.planner.packing.backfill import RELEASE_S, YIELD_S
from scheduler_core.policy.limits import BackfillMode, BackfillPolicy
from scheduler_core.policy.preemption import PreemptionMode, PreemptionPolicy
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.commit.apiserver import ApiServer
from tests.scheduler_core.planner.leader.fake_planner import START, FakePlanner
from tests.scheduler_core.planner.leader.preemption_cases import bind_all

HOUR_S = 3600.0
GATED = CommitTerms(gated=True)
POLICY = BackfillPolicy(BackfillMode.DEADLINE)


def running(ends_in_s: float | None) -> dict[str, Any]:
    """Return the fields of a pod that started at ``START``."""
    spec = {} if ends_in_s is None else {"activeDeadlineSeconds": int(ends_in_s)}
    return {"spec": spec, "status": {"phase": "Running", "startTime": format_timestamp(START)}}


def waiting_for(ends_in_s: float | None = HOUR_S) -> ApiServer:
    """Return two nodes of two GPUs, one in use for some time, and a gang that needs both; n0 is held for it."""
    server = ApiServer({"n0": 2, "n1": 2})
    server.bind(server.create_pod("user", 2, more=running(ends_in_s)), "n1")
    for _ in range(2):
        server.create_pod("big", 2, "big", 2)
    return server


def planner(server: ApiServer, name: str = "one", terms: CommitTerms = GATED, **changed: Any) -> FakePlanner:
    made = FakePlanner(server, name, terms=terms)
    off = PreemptionPolicy(PreemptionMode.OFF)
    made.policies = BUILT_IN._replace(backfill=POLICY._replace(**changed), preemption=off)
    return made


def short(server: ApiServer, deadline_s: int | None = 600, grace_s: int = 10, priority: int = 0) -> str:
    bounds = {"terminationGracePeriodSeconds": grace_s}
    spec = bounds if deadline_s is None else {**bounds, "activeDeadlineSeconds": deadline_s}
    return server.create_pod("short", 2, "short", 1, {"spec": spec}, priority=priority)


def run(of: FakePlanner, seconds: int = 40) -> None:
    for _ in range(seconds // 2):
        of.now += 2.0
        of.server.now += 2.0
        of.run()


def places(server: ApiServer, gang: str) -> list[str | None]:
    """Return the nodes of the committed places of a gang."""
    assert server.ledger is not None
    committed = {each.uid for each in server.ledger.spec.entries if each.phase is EntryPhase.COMMITTED}
    found = [each for uid, each in server.reservations.items() if each.spec.gang == gang and uid in committed]
    return [seat.node for each in found for seat in each.spec.seats]


def proposed(server: ApiServer) -> set[str]:
    """Return the gangs with proposed places."""
    assert server.ledger is not None
    found = (each.uid for each in server.ledger.spec.entries if each.phase is EntryPhase.PROPOSED)
    return {server.reservations[uid].spec.gang for uid in found}


def was_placed(of: FakePlanner, gang: str) -> bool:
    """Return whether the ledger listed committed places of a gang: here no scheduler binds them."""
    made = (each for each in of.writes if isinstance(each, CreateReservation) and each.spec.seats)
    names = {each.name for each in made if each.spec.gang == gang}
    return any(each.name in names and each.phase is EntryPhase.COMMITTED for of_all in of.ledgers for each in of_all)


def started(server: ApiServer, uid: str, node: str) -> None:
    server.bind(uid, node)
    version = server.pods[uid]["metadata"]["resourceVersion"]
    status = {"phase": "Running", "startTime": format_timestamp(server.now)}
    server.patch_pod({"metadata": {"uid": uid, "resourceVersion": version}, "status": status})


def backfilled(leader: FakePlanner) -> str:
    """Run a short gang on the capacity that is held for the other gang. Return the UID of its pod."""
    leader.run()
    pod = short(leader.server)
    leader.run()
    started(leader.server, pod, "n0")
    return pod


def end_user(server: ApiServer) -> None:
    """End the pod that the holder waits for."""
    server.delete_pod(next(uid for uid, each in server.pods.items() if each["metadata"]["name"].startswith("user")))


def evicted(of: FakePlanner) -> list[str]:
    return [each.eviction.uid for each in of.writes if isinstance(each, EvictPod)]


def test_a_gang_that_ends_in_time_uses_held_capacity_and_its_places_name_the_holder() -> None:
    server = waiting_for()
    leader = planner(server)
    leader.run()
    short(server)
    leader.run()

    assert places(server, "short") == ["n0"]
    (found,) = (each.spec for each in server.reservations.values() if each.spec.gang == "short")
    assert found.backfill is not None
    assert found.backfill.gang.endswith("/big")
    assert found.backfill.until == format_timestamp(START + HOUR_S)
    start_by = parse_timestamp(found.backfill.start_by)
    assert start_by == START + HOUR_S - DEFAULT_BIND_TIMEOUT_S - 610 - 30  # deadline and grace period, release
    assert places(server, "big") == []


@pytest.mark.parametrize(
    ("ends_in_s", "pod", "policy"),
    [
        pytest.param(HOUR_S, {}, {"mode": BackfillMode.OFF}, id="off"),
        pytest.param(HOUR_S, {"deadline_s": None}, {}, id="no deadline of its own"),
        pytest.param(HOUR_S, {"deadline_s": 3540}, {}, id="it would end too late"),
        pytest.param(HOUR_S, {"grace_s": 120}, {}, id="its grace period is too long"),
        pytest.param(None, {}, {}, id="the end of the hold is unknown"),
    ],
)
def test_a_gang_waits_where_it_could_delay_the_holder(
    ends_in_s: float | None, pod: dict[str, Any], policy: dict[str, Any]
) -> None:
    server = waiting_for(ends_in_s)
    leader = planner(server, **policy)
    leader.run()
    short(server, **pod)
    run(leader)

    assert places(server, "short") == []


def claiming(server: ApiServer, run_s: int = 600, grace_s: int = 10) -> str:
    """Create a short gang without a deadline that says how long it runs. Return the UID of its pod."""
    claim = {POD_EXPECTED_DURATION.key: f"{run_s}s"}
    more = {"metadata": {"annotations": claim}, "spec": {"terminationGracePeriodSeconds": grace_s}}
    return server.create_pod("short", 2, "short", 1, more)


@pytest.mark.parametrize(
    ("mode", "run_s", "expected"),
    [
        pytest.param(BackfillMode.DEADLINE, 600, [], id="nothing enforces the claim"),
        pytest.param(BackfillMode.ESTIMATE, 600, ["n0"], id="claims count"),
        pytest.param(BackfillMode.ESTIMATE, 3500, [], id="it would end too late"),
    ],
)
def test_a_gang_that_says_how_long_it_runs_uses_held_capacity_where_claims_count(
    mode: BackfillMode, run_s: int, expected: list[str]
) -> None:
    leader = planner(waiting_for(), mode=mode)
    leader.run()
    claiming(leader.server, run_s)
    leader.run()

    assert places(leader.server, "short") == expected


def test_a_gang_that_runs_longer_than_it_said_is_evicted_so_early_that_its_devices_are_free_in_time() -> None:
    server = waiting_for()
    leader = planner(server, mode=BackfillMode.ESTIMATE)
    leader.run()
    pod = claiming(server, grace_s=20)
    leader.run()
    started(server, pod, "n0")
    due = START + HOUR_S - 20 - RELEASE_S - YIELD_S
    while leader.now < due:
        assert evicted(leader) == []
        run(leader, 2)

    while leader.now < due + YIELD_S:
        run(leader, 2)
    assert evicted(leader) == [pod]
    end_user(server)
    run(leader)
    assert was_placed(leader, "big")


def test_a_later_claim_of_an_earlier_end_evicts_no_backfilled_pod_before_the_capacity_is_free() -> None:
    """The owner of the pod in use could have pods of others evicted by a claim that is not true."""
    server = waiting_for(None)
    claim(server, "user", 1_200.0)
    leader = planner(server, mode=BackfillMode.ESTIMATE)
    leader.run()
    pod = claiming(server, 300, grace_s=20)
    leader.run()
    started(server, pod, "n0")
    run(leader)

    claim(server, "user", leader.now - START + 50.0)
    run(leader, 80)
    assert evicted(leader) == []
    end_user(server)
    run(leader)

    assert evicted(leader) == [pod]
    assert was_placed(leader, "big")


def claim(server: ApiServer, name: str, ends_at_s: float) -> None:
    """Let a pod say when it ends."""
    uid = next(uid for uid, each in server.pods.items() if each["metadata"]["name"].startswith(name))
    version = server.pods[uid]["metadata"]["resourceVersion"]
    annotations = {POD_ESTIMATED_COMPLETION.key: format_timestamp(START + ends_at_s)}
    server.patch_pod({"metadata": {"uid": uid, "resourceVersion": version, "annotations": annotations}})


def test_a_hold_is_used_only_until_the_pods_that_it_waits_for_say_that_they_end() -> None:
    """A claim makes the time for backfill shorter, and never longer."""
    server = waiting_for()
    claim(server, "user", 1_000.0)
    leader = planner(server)
    leader.run()
    short(server, deadline_s=950)
    leader.run()
    assert places(server, "short") == []
    server.create_pod("shorter", 2, "shorter", 1, {"spec": {"activeDeadlineSeconds": 600}})
    leader.run()

    (found,) = (each.spec.backfill for each in server.reservations.values() if each.spec.gang == "shorter")
    assert found is not None
    assert found.until == format_timestamp(START + 1000)


def test_the_gang_yields_at_once_if_the_capacity_comes_free_earlier_also_with_a_new_leader() -> None:
    server = waiting_for()
    first = planner(server)
    pod = backfilled(first)
    run(first)
    assert evicted(first) == []

    end_user(server)
    second = planner(server, "two")
    second.now = first.now
    run(second, 10)
    bind_all(second)

    assert evicted(second) == [pod]
    assert was_placed(second, "big")
    assert second.preemptions == ["yield", "begun", "won"]
    limit = second.policies.preemption.max_evictions_per_hour
    assert second.term.preemptions.evictions_left(second.now) == limit  # for which it does not count


def test_with_preemption_off_evictions_are_forgotten_too() -> None:
    server = waiting_for()
    leader = planner(server)
    pod = backfilled(leader)
    end_user(server)
    run(leader)
    assert evicted(leader) == [pod]
    assert leader.term.preemptions.evicted()

    leader.now += 3 * 86_400.0
    server.now += 3 * 86_400.0
    run(leader)

    assert not leader.term.preemptions.evicted()


def test_the_owner_of_a_backfilled_pod_cannot_prolong_its_end() -> None:
    """It deletes the pod with a grace period of years, and the pod goes on."""
    server = waiting_for()
    leader = planner(server)
    pod = backfilled(leader)
    found = server.pods[pod]["metadata"]
    change = {"finalizers": ["example.com/keep"], "deletionTimestamp": "2036-11-21T00:00:00Z"}
    server.patch_pod({"metadata": {"uid": pod, "resourceVersion": found["resourceVersion"], **change}})
    run(leader)
    assert evicted(leader) == []

    end_user(server)
    run(leader)

    assert evicted(leader) == [pod]
    (intent,) = (each.spec.preemption for each in server.reservations.values() if each.spec.preemption is not None)
    assert [each.grace_s for each in intent.evictions] == [10]


def test_pods_are_not_evicted_before_the_holder_would_fit() -> None:
    server = waiting_for()
    other = server.create_pod("other", 1, more=running(HOUR_S))
    server.bind(other, "n1")
    leader = planner(server)
    backfilled(leader)
    server.delete_pod(other)
    run(leader)

    assert evicted(leader) == []


def test_a_budget_that_forbids_the_eviction_does_not_remove_the_hold() -> None:
    server = waiting_for()
    leader = planner(server)
    pod = backfilled(leader)
    leader.blocked = {f"{server.pods[pod]['metadata']['namespace']}/short": "the budget keep allows no disruption"}
    end_user(server)
    run(leader)

    assert evicted(leader) == []
    assert server.ledger is not None
    held = [server.reservations[each.uid].spec for each in server.ledger.spec.entries if each.phase is EntryPhase.HELD]
    assert [each.gang for each in held] == ["big"]
    leader.policies = leader.policies._replace(preemption=PreemptionPolicy(wait_s=0.0))  # dry-run
    server.create_pod("other", 4, "other", 1)
    run(leader, 90)
    searched = {each.name for each in leader.term.preemptions.reports}
    assert "other" in searched  # of the same priority as the holder
    server.delete_pod(pod)
    run(leader)
    assert was_placed(leader, "big")


def test_places_that_were_not_used_in_time_are_rolled_back() -> None:
    server = waiting_for()
    leader = planner(server)
    leader.run()
    short(server, deadline_s=3500 - 60 - 30)
    leader.run()
    assert places(server, "short") == ["n0"]

    late = planner(server, "two")
    late.now = leader.now + 600.0
    for _ in range(20):
        late.run_once()

    reasons = [each.status.reason for each in late.writes if isinstance(each, WriteStatus)]
    assert "the latest time to start on capacity that is held for another gang has passed" in reasons


def test_a_proposal_that_is_not_committed_in_time_is_withdrawn() -> None:
    server = waiting_for()
    leader = planner(server, terms=CommitTerms(gated=False))  # no extender acknowledges it
    run(leader, 60)
    short(server, deadline_s=3200)
    run(leader, 60)
    assert proposed(server) == {"short"}

    run(leader, 300)

    assert proposed(server) == set()


def test_a_pod_of_a_higher_priority_than_the_holder_is_no_backfill() -> None:
    server = waiting_for()
    leader = planner(server)
    leader.run()
    short(server, priority=5)
    leader.run()

    (found,) = (
        each.spec for each in leader.writes if isinstance(each, CreateReservation) and each.spec.gang == "short"
    )
    assert found.backfill is None


def test_a_gang_that_cannot_use_one_hold_uses_another_one() -> None:
    """Two priorities have holds. That of the higher priority, with the later estimate, has no free device."""
    server = ApiServer({"n0": 1, "n1": 1, "n2": 2, "n3": 2})
    for node, gpus, ends_in_s in (("n1", 1, HOUR_S), ("n2", 2, 2 * HOUR_S), ("n3", 2, 2 * HOUR_S)):
        server.bind(server.create_pod(f"user-{node}", gpus, more=running(ends_in_s)), node)
    for _ in range(2):
        server.create_pod("wide", 2, "wide", 2, priority=7)
    leader = planner(server)
    run(leader)
    for _ in range(2):
        server.create_pod("small", 1, "small", 2, priority=5)
    run(leader)
    holds = [each.spec.gang for each in server.reservations.values() if each.spec.held]
    assert sorted(holds) == ["small", "wide"]

    server.create_pod("short", 1, "short", 1, {"spec": {"activeDeadlineSeconds": 600}})
    leader.run()

    assert places(server, "short") == ["n0"]


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_member_without_gpus_does_not_keep_a_gang_on_held_capacity(is_bound: bool) -> None:
    """It has a high priority, or no node takes it."""
    server = waiting_for()
    leader = planner(server)
    leader.run()
    spec = {"terminationGracePeriodSeconds": 10, "activeDeadlineSeconds": 600}
    bounds = {"spec": spec, "metadata": {"ownerReferences": []}}  # so a rollback leaves them
    pod = server.create_pod("short", 2, "short", 2, more=bounds)
    server.create_pod("launcher", 0, "short", 2, more=bounds, priority=1_000)
    leader.run()
    for uid, each in server.pods.items():
        if each["metadata"]["name"].startswith(("short", "launcher") if is_bound else "short"):
            started(server, uid, "n0")
    run(leader)
    end_user(server)
    run(leader)

    assert pod in evicted(leader)


def test_without_a_hold_node_states_are_not_computed_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pod that is bound changes the state of its node: it is computed when something needs it."""
    server = ApiServer({"n0": 20})
    leader = planner(server)
    leader.run()
    computed: list[str] = []
    original = node_table.with_records

    def with_records(snapshot: ClusterSnapshot, records: Iterable[NodeRecord], *more: Any) -> ClusterSnapshot:
        changed = list(records)
        computed.extend(each.name for each in changed)
        return original(snapshot, changed, *more)

    monkeypatch.setattr(cluster_cache, "with_records", with_records)
    for at in range(10):
        server.bind(server.create_pod(f"user-{at}", 1, more=running(None)), "n0")
        run(leader, 2)

    assert len(computed) < 5
