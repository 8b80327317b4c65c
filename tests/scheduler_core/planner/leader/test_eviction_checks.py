"""The cluster changes while pods are evicted for a gang: what is left is proved again before it is evicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gputopo.labels.keys import POD_GANG, POD_PREEMPTIBLE, POD_PROGRESS
from scheduler_core.cache.events import Batch
from scheduler_core.planner.commit.actions import Action, CheckBudgets, EvictPod, WriteStatus
from scheduler_core.planner.gang.disruption import OwnerDisruption
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.size_sources import JobSetSizes
from scheduler_core.planner.leader.eviction_checks import MOST_CHECKS, TIMEOUT_S
from scheduler_core.planner.leader.preemption_search import PreemptionSearch, run_preemption_search
from scheduler_core.planner.leader.writer import WriteOutcome
from scheduler_core.policy.preemption import PreemptionRule
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.disruption import DisruptionFacts
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner
from tests.scheduler_core.planner.leader.preemption_cases import (
    POLICY,
    RUNNING,
    annotate,
    committed,
    evicted,
    full,
    gang_of_two,
    intents,
    planner,
    run,
    running,
    urgent,
)

PROTECTED = PreemptionRule("all-protected", allow=False)
Change = Callable[[ApiServer, FakePlanner], None]


def lose_gpus(server: ApiServer, _: FakePlanner) -> None:
    for name in server.nodes:
        server.change_node(name, 1)


def delete_member(server: ApiServer, _: FakePlanner) -> None:
    gang = [uid for uid, pod in server.pods.items() if pod["metadata"]["annotations"].get(POD_GANG.key) == "urgent"]
    server.delete_pod(gang[0])


def forbid(server: ApiServer, _: FakePlanner) -> None:
    for uid in running(server):
        annotate(server, uid, POD_PREEMPTIBLE.key, "never")


def protect(_: ApiServer, leader: FakePlanner) -> None:
    leader.policies = BUILT_IN._replace(preemption=POLICY._replace(rules=(PROTECTED,)))


CHANGES = [
    pytest.param(lose_gpus, id="the nodes lose a GPU"),
    pytest.param(delete_member, id="a member of the gang is deleted"),
    pytest.param(forbid, id="the victims forbid it"),
    pytest.param(protect, id="the policy protects the victims"),
]


def is_count(action: Action) -> bool:
    return isinstance(action, CheckBudgets)


def is_begin(action: Action) -> bool:
    return isinstance(action, WriteStatus) and bool(action.status.evicting)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", [is_count, is_begin], ids=["budgets are counted", "a unit is begun"])
def test_no_pod_is_evicted_where_the_cluster_changes_before_the_first_eviction(
    moment: Callable[[Action], bool], change: Change
) -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server, size=2)
    leader = planner(server)
    left = [change]

    def change_then(action: Action) -> None:
        if left and moment(action):
            left.pop()(server, leader)

    leader.refuses = change_then
    run(leader, 60)

    assert left == []
    assert evicted(leader) == []
    assert set(pods.values()) <= server.pods.keys()
    assert intents(server) == []


def test_no_pod_is_evicted_where_its_jobset_forbids_it_before_the_first_eviction() -> None:
    server, _ = full(n0=2, n1=2)
    labels = {"jobset.sigs.k8s.io/jobset-name": "train"}
    for uid in running(server):
        pod = server.pods[uid]
        server._put_pod({**pod, "metadata": {**pod["metadata"], "labels": labels}})
    urgent(server)
    leader = planner(server)
    never = OwnerDisruption(DisruptionFacts(never=POD_PREEMPTIBLE.key), (GangName(SPACE, "jobset.train"),))

    def forbid_then(action: Action) -> None:
        if is_begin(action):
            leader.term.apply_batch(Batch(JobSetSizes, (JobSetSizes("j", (), disruption=never),)))

    leader.refuses = forbid_then
    run(leader, 60)

    assert intents(server) == []
    assert evicted(leader) == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_new_leader_evicts_no_pod_where_the_cluster_changed_meanwhile(change: Change) -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server, size=2)
    first = planner(server)
    first.refuses = lambda action: WriteOutcome.UNANSWERED if isinstance(action, CheckBudgets) else None
    run(first, 10)
    (intent,) = intents(server)

    second = planner(server, "two")
    change(server, second)
    run(second, 60)

    assert (evicted(second), set(pods.values()) <= server.pods.keys()) == ([], True)
    assert intent.key not in server.reservations


def test_where_the_gang_no_longer_fits_a_unit_is_finished_and_an_untouched_one_is_spared() -> None:
    """Two evictions are refused for a time; meanwhile the node of the untouched unit loses a GPU."""
    server = ApiServer({"n0": 2, "n1": 2, "n2": 2})
    pair = gang_of_two(server, ("n0", "n1"))
    annotate(server, pair[0], "gputopo.io/restart-time", "1s")
    single = server.create_pod("single", 2, more=RUNNING)
    server.bind(single, "n2")
    urgent(server, size=3)
    leader = planner(server)
    refused = {pair[1], single}
    leader.refuses = lambda action: (
        WriteOutcome.REFUSED if isinstance(action, EvictPod) and action.eviction.uid in refused else None
    )
    run(leader, 6)
    (intent,) = intents(server)
    assert (len(intent.status.evicting), pair[0] in server.pods) == (2, False)

    server.change_node("n2", 1)
    refused.clear()
    run(leader, 60)

    assert pair[1] not in server.pods
    assert single in server.pods
    assert leader.preemptions == ["planned", "begun", "in-vain"]


def test_a_unit_that_became_protected_is_named_and_other_gangs_need_not_wait_for_it() -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server, size=2)
    leader = planner(server)
    left = [forbid]

    def change_then(action: Action) -> WriteOutcome | None:
        if isinstance(action, EvictPod):
            if not left:
                return WriteOutcome.REFUSED
            left.pop()(server, leader)
        return None

    leader.refuses = change_then
    run(leader, 30)

    (intent,) = intents(server)
    (name,) = [server.pods[uid]["metadata"]["name"] for uid in pods.values() if uid in server.pods]
    why = f"team/{name} is protected by now: an annotation forbids it; not evicted: team/{name}"
    assert intent.status.reason == why
    assert leader.term.preemptions.over == {intent.key}


def test_a_begun_unit_that_is_spared_is_not_evicted_after_the_deadline_either() -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server, size=2)
    leader = planner(server, timeout_s=30.0)
    left = [forbid]

    def change_then(action: Action) -> WriteOutcome | None:
        if isinstance(action, EvictPod):
            if not left:
                return WriteOutcome.REFUSED
            left.pop()(server, leader)
        return None

    leader.refuses = change_then
    run(leader, 200)

    assert left == []
    assert len(evicted(leader)) == 2  # the second one is refused, and not tried again
    assert len(set(pods.values()) & server.pods.keys()) == 1
    assert "stuck" not in leader.preemptions  # it was never evicted


def test_a_proof_needs_all_units_however_long_that_takes() -> None:
    """On thousands of nodes the time of a search may end before all units are found."""
    server, pods = full(n0=2)
    urgent(server)
    leader = planner(server)

    def start(search: PreemptionSearch) -> None:
        if search.planned is not None:
            search = search._replace(units=search.units._replace(is_out_of_time=lambda: True))
        result = run_preemption_search(search)
        leader._pending.append(lambda: leader.term.apply_preemption_result(result))

    leader.start_preemption_search = start  # type: ignore[method-assign]
    run(leader, 40)

    assert evicted(leader) == [pods["n0"]]


def test_a_pod_that_ended_by_itself_is_not_called_evicted() -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server, size=2)
    leader = planner(server)
    seen: list[str] = []

    def end_other(action: Action) -> None:
        if isinstance(action, CheckBudgets) and pods["n1"] in server.pods:
            server.delete_pod(pods["n1"])
        if isinstance(action, WriteStatus):
            seen.append(action.status.reason or "")

    leader.refuses = end_other
    run(leader, 30)

    assert committed(server) == {"urgent"}
    assert not any("2 pods evicted" in each for each in seen)


def test_an_elastic_gang_that_has_shrunk_keeps_its_minimum() -> None:
    server = ApiServer({f"n{at}": 2 for at in range(3)})
    more = {**RUNNING, "metadata": {"annotations": {"gputopo.io/gang-minimum": "2"}}}
    elastic = [
        server.create_pod("elastic", 2, "elastic", 3, more | {"spec": {"nodeName": f"n{at}"}}) for at in range(3)
    ]
    for each in elastic:
        server.pods[each]["spec"]["schedulingGates"] = []
    urgent(server)
    leader = planner(server)
    left = [True]

    def shrink(action: Action) -> None:
        if left and isinstance(action, CheckBudgets):
            left.pop()
            (victim,) = action.evictions
            server.delete_pod(next(uid for uid in elastic if uid != victim.uid))

    leader.refuses = shrink
    run(leader, 60)

    assert left == []
    assert evicted(leader) == []
    assert committed(server) == {"urgent"}  # in the place of the pod that ended


def test_a_protected_pod_that_is_named_like_a_gang_does_not_protect_the_gang() -> None:
    server = ApiServer({"n0": 2, "n1": 2, "n2": 2})
    pair = gang_of_two(server, ("n0", "n1"))
    never = {"annotations": {POD_PREEMPTIBLE.key: "never"}, "name": "pair"}
    namesake = server.create_pod("x", 2, more={**RUNNING, "metadata": never})
    server.bind(namesake, "n2")
    urgent(server, size=2)
    leader = planner(server)

    run(leader, 60)

    assert set(evicted(leader)) == set(pair)
    assert committed(server) == {"urgent"}


def each_check(leader: FakePlanner, change: Callable[[], Any]) -> list[int]:
    """Let the cluster change during each check. Return a list with an entry for each check."""
    checks: list[int] = []

    def start(search: PreemptionSearch) -> None:
        def compute() -> None:
            if search.planned is not None:
                checks.append(len(checks))
                change()
                leader.apply_events()
                leader.term.run_round()
            leader.term.apply_preemption_result(run_preemption_search(search))

        leader._pending.append(compute)

    leader.start_preemption_search = start  # type: ignore[method-assign]
    return checks


def step(leader: FakePlanner) -> None:
    leader.now, leader.server.now = leader.now + 1.0, leader.server.now + 1.0
    leader.run_once()
    leader.term.tick(leader.watches)


def test_an_owner_who_changes_annotations_all_the_time_keeps_no_pod_from_being_evicted() -> None:
    server, pods = full(n0=2)
    urgent(server)
    leader = planner(server)
    checks = each_check(leader, lambda: annotate(server, pods["n0"], POD_PROGRESS.key, f"{len(checks) % 50}%"))

    run(leader, 120)

    assert evicted(leader) == [pods["n0"]]
    assert len(checks) == MOST_CHECKS
    assert committed(server) == {"urgent"}


def test_a_preemption_that_cannot_be_proved_in_time_ends() -> None:
    server, _ = full(n0=2)
    urgent(server)
    leader = planner(server)

    def change() -> None:
        leader.policies = BUILT_IN._replace(preemption=POLICY._replace(max_plans=1_000 + len(checks)))

    checks = each_check(leader, change)
    while not intents(server):
        step(leader)
    (intent,) = intents(server)
    began = leader.now

    while intent.key in server.reservations and leader.now - began < 3 * TIMEOUT_S:
        step(leader)

    assert evicted(leader) == []
    assert TIMEOUT_S <= leader.now - began <= 2 * TIMEOUT_S
