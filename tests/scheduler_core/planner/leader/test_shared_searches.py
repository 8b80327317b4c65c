"""Gangs with equal requests share the searches for pods to evict in dry-run mode."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels.keys import GATE
from scheduler_core.cache.kube_scheduler_filters import SchedulingRules
from scheduler_core.planner.commit.actions import CheckBudgets
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.preemption_search import PreemptionSearch
from scheduler_core.planner.leader.queue import QueuedGang, QueueTiming, UnfitState
from scheduler_core.planner.leader.shared_searches import SharingRules, have_equal_requests
from scheduler_core.planner.packing.model import RequestId
from scheduler_core.planner.status import QueuedGangStatus, planner_status
from scheduler_core.policy.preemption import PreemptionMode
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.full_pod import FullPodSpec
from scheduler_core.request.node_load import NodeLoad
from scheduler_core.request.pod_request import InvalidRequest
from tests.scheduler_core.builders import request
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer
from tests.scheduler_core.planner.gang.gang_pods import members, queued
from tests.scheduler_core.planner.leader.fake_planner import PACE, START, FakePlanner
from tests.scheduler_core.planner.leader.preemption_cases import (
    POLICY,
    TERMS,
    annotate,
    evicted,
    full,
    urgent,
)

NEVER_HOLDS = QueueTiming(patience_s=1e9)
DRY_RUN = POLICY._replace(mode=PreemptionMode.DRY_RUN)
MANY = tuple(f"urgent-{at}" for at in range(20))
# Fields of members that no search reads: the first ones differ in all pods, the next ones are of placed pods, of gates
# and of volume claims, whose effect is in ``rules`` and ``blocked``.
IGNORED = {
    *("uid", "namespace", "name", "version", "created", "owner_kind", "finalizers", "markers", "gates", "claims"),
    *("node", "phase", "started", "is_terminating", "reservation", "bind_error", "pinned_terms", "terms"),
    *("bounded_s", "expected"),  # for backfill
    *("priority", "unplanned"),  # those of the gang count
    *("labels", "anti_affinity"),  # see ``SharingRules.by_request_id``
}


def searching(server: ApiServer, pace: QueueTiming = NEVER_HOLDS, **changed: Any) -> tuple[FakePlanner, list[str]]:
    """Return a planner in dry-run mode, and a list to which it adds the name of each gang that it searches for."""
    leader, searched = FakePlanner(server, pace=pace, terms=TERMS), list[str]()
    leader.policies = BUILT_IN._replace(preemption=DRY_RUN._replace(**changed))
    start = leader.start_preemption_search

    def noting(search: PreemptionSearch) -> None:
        searched.append(search.gang.name.name)
        start(search)

    leader.start_preemption_search = noting  # type: ignore[method-assign]
    return leader, searched


def statuses(leader: FakePlanner) -> dict[str, QueuedGangStatus]:
    gangs = planner_status(leader.term, True, None, (), leader.now).gangs
    return {each.gang.name.name: each for each in gangs}


def units(leader: FakePlanner) -> dict[str, list[str] | None]:
    """Return the units of the dry run of each gang that waits; None: it has none."""
    found = {name: each.dry_run for name, each in statuses(leader).items() if each.judged}
    return {name: None if plan is None else [each.name for each in plan.units] for name, plan in found.items()}


def run(leader: FakePlanner, seconds: int) -> None:
    """Run for exactly this time: searches are repeated by the clock."""
    for _ in range(seconds):
        leader.now, leader.server.now = leader.now + 1.0, leader.server.now + 1.0
        leader.term.tick(leader.watches)
        for _ in range(3):
            leader.run_once()


def equal_gangs(leader: FakePlanner, name: str) -> list[str]:
    """Return the gangs that would get the result of a search that begins now for a gang."""
    waiting = leader.term.backlog.queue.get_queued(GangName(SPACE, name))
    assert waiting is not None
    search = leader.term._scheduler._shared_search(waiting, leader.now - START)
    return [each.name.name for each in search.equal_gangs]


def start_first_search(leader: FakePlanner, searched: list[str]) -> None:
    """Run until a search has begun. It ends with the next ``run_once``."""
    while not searched:
        leader.run_once()
        leader.now += 0.5
        leader.run_round()


def test_equal_gangs_share_a_search_and_each_shows_its_dry_run() -> None:
    server, pods = full(n0=2)
    for name in MANY:
        urgent(server, name)
    leader, searched = searching(server)

    run(leader, 4)

    (victim,) = (f"{SPACE}/{server.pods[uid]['metadata']['name']}" for uid in pods.values())
    assert len(searched) == 1
    assert units(leader) == {name: [victim] for name in MANY}
    assert all(each.dry_run is not None and each.dry_run.gang == each.gang for each in statuses(leader).values())
    assert leader.preemptions == ["dry-run"] * len(MANY)
    assert len(leader.dry_runs) == len(MANY)  # the lost work counts once for each
    assert len([each for each in leader.writes if isinstance(each, CheckBudgets)]) == 1

    run(leader, 60)

    assert len(searched) == 2
    assert (len(leader.preemptions), len(leader.dry_runs)) == (len(MANY), len(MANY))  # the same units
    assert evicted(leader) == []


def test_each_gang_says_why_no_pod_is_evicted() -> None:
    server, _ = full(n0=2)
    for name in MANY:
        urgent(server, name)
    leader, searched = searching(server, rules=())

    run(leader, 4)

    whys = {name: each.no_eviction for name, each in statuses(leader).items()}
    assert len(searched) == 1
    assert whys.keys() == set(MANY)
    (why,) = set(whys.values())
    assert why is not None
    assert why.startswith("the policy allows no running pod")
    assert sorted(leader.not_evicted) == sorted((name, why) for name in MANY)


def test_single_pods_share_a_search_like_gangs() -> None:
    server, _ = full(n0=2)
    for name in MANY:
        server.create_pod(name, 2, more={"spec": {"schedulingGates": [{"name": GATE}]}}, priority=100)
    leader, searched = searching(server)

    run(leader, 4)

    assert len(searched) == 1
    assert [each.dry_run is None for each in statuses(leader).values()] == [False] * len(MANY)


def test_after_a_change_of_pods_or_policy_the_next_search_finds_it_for_all() -> None:
    server, pods = full(n0=2, n1=2)
    names = {uid: f"{SPACE}/{server.pods[uid]['metadata']['name']}" for uid in pods.values()}
    for name in MANY:
        urgent(server, name)
    leader, searched = searching(server)
    run(leader, 4)
    ((first,),) = {tuple(each or ()) for each in units(leader).values()}

    annotate(server, next(uid for uid, name in names.items() if name == first), "gputopo.io/preemptible", "never")
    run(leader, 60)

    (other,) = set(names.values()) - {first}
    assert len(searched) == 2
    assert units(leader) == {name: [other] for name in MANY}

    leader.policies = BUILT_IN._replace(preemption=DRY_RUN._replace(rules=()))
    run(leader, 60)

    assert len(searched) == 3
    assert units(leader) == dict.fromkeys(MANY)


@pytest.mark.parametrize(
    ("name", "gpus", "size", "more", "priority"),
    [
        pytest.param("b", 1, 1, {}, 100, id="devices"),
        pytest.param("b", 2, 2, {}, 100, id="size"),
        pytest.param("b", 2, 1, {}, 99, id="priority"),
        pytest.param("b", 2, 1, {"metadata": {"namespace": "other"}}, 100, id="namespace"),
        pytest.param("b", 2, 1, {"metadata": {"annotations": {"gputopo.io/numa": "required"}}}, 100, id="shape"),
        pytest.param(
            "b", 2, 1, {"metadata": {"annotations": {"gputopo.io/gang-required-topology": "zone"}}}, 100, id="topology"
        ),
        pytest.param("b", 2, 1, {"spec": {"nodeSelector": {"zone": "z"}}}, 100, id="node selector"),
        pytest.param(
            "b",
            2,
            1,
            {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}}}]}},
            100,
            id="CPU",
        ),
    ],
)
def test_gangs_with_different_requests_are_searched_for_one_by_one(
    name: str, gpus: int, size: int, more: dict[str, Any], priority: int
) -> None:
    server, _ = full(n0=2)
    urgent(server, "a")
    for _ in range(size):
        server.create_pod(name, gpus, name, size, more, priority=priority)
    leader, searched = searching(server)

    run(leader, 10)

    assert sorted(searched) == ["a", name]


def test_a_gang_with_a_capacity_hold_is_searched_for_by_itself() -> None:
    """Its search counts the held capacity as free."""
    server, _ = full(n0=2, n1=2)
    for name in MANY:
        urgent(server, name)
    leader, searched = searching(server, PACE)

    run(leader, 10)

    assert {each.gang.name for each in leader.term.holds.open_holds()} == {MANY[0]}
    assert sorted(searched) == [MANY[0], MANY[1]]
    assert None not in units(leader).values()


def test_with_evictions_each_gang_is_searched_for_by_itself() -> None:
    server, _ = full(n0=2)
    for name in MANY[:3]:
        urgent(server, name, size=2)  # fits nowhere
    leader, searched = searching(server, mode=PreemptionMode.EVICT)

    run(leader, 10)

    assert sorted(searched) == sorted(MANY[:3])
    assert equal_gangs(leader, MANY[0]) == []


def test_a_result_for_several_gangs_is_that_of_one_gang_once_the_mode_is_evict() -> None:
    server, _ = full(n0=2)
    for name in MANY[:3]:
        urgent(server, name, size=2)
    leader, searched = searching(server)
    start_first_search(leader, searched)

    leader.policies = BUILT_IN._replace(preemption=POLICY)
    run(leader, 10)

    assert sorted(searched) == sorted(MANY[:3])


def test_a_gang_that_avoids_nodes_is_searched_for_by_itself() -> None:
    server, _ = full(n0=2)
    for name in MANY[:3]:
        urgent(server, name)
    leader, _ = searching(server)
    run(leader, 10)

    leader.term.backlog._avoid_node(GangName(SPACE, MANY[1]), "n0", leader.now)

    assert equal_gangs(leader, MANY[0]) == [MANY[2]]
    assert equal_gangs(leader, MANY[1]) == []


def test_a_gang_that_comes_later_is_searched_for_with_the_others_from_then_on() -> None:
    server, _ = full(n0=2)
    urgent(server, "first")
    leader, searched = searching(server)
    run(leader, 30)
    urgent(server, "second")
    run(leader, 10)
    assert searched == ["first", "second"]

    run(leader, 60)

    assert len(searched) == 3
    assert units(leader)["first"] is not None
    assert units(leader)["first"] == units(leader)["second"]


def test_a_gang_that_changes_during_the_search_does_not_get_its_result() -> None:
    server, _ = full(n0=2)
    urgent(server, "first")
    (changed,) = urgent(server, "second")
    leader, searched = searching(server)
    start_first_search(leader, searched)
    annotate(server, changed, "gputopo.io/island", "required")
    leader.apply_events()
    leader.run_once()

    run(leader, 10)

    assert searched == ["first", "second"]


def test_a_gang_that_is_gone_at_the_end_of_the_search_leaves_the_others_to_the_next_one() -> None:
    server, _ = full(n0=2)
    pods = {name: urgent(server, name)[0] for name in MANY[:3]}
    leader, searched = searching(server)
    start_first_search(leader, searched)
    server.delete_pod(pods.pop(searched[0]))

    run(leader, 10)

    assert len(searched) == 2
    assert {name for name, each in units(leader).items() if each} == pods.keys()


def test_a_gang_that_is_gone_while_budgets_are_counted_leaves_the_result_to_the_others() -> None:
    server, _ = full(n0=2)
    pods = {name: urgent(server, name)[0] for name in MANY[:3]}
    leader, searched = searching(server)
    start_first_search(leader, searched)
    leader.run_once()
    leader.run_round()  # the count begins
    server.delete_pod(pods.pop(searched[0]))
    leader.apply_events()
    leader.term.tick(leader.watches)

    run(leader, 1)

    assert len(searched) == 1
    assert {name for name, each in units(leader).items() if each} == pods.keys()


def test_pods_that_budgets_forbid_are_left_out_for_all() -> None:
    server, pods = full(n0=2, n1=2)
    names = {node: f"{SPACE}/{server.pods[uid]['metadata']['name']}" for node, uid in pods.items()}
    for name in MANY:
        urgent(server, name)
    leader, searched = searching(server)
    leader.blocked = {names["n0"]: "the budget allows none", names["n1"]: "the budget allows none"}
    run(leader, 20)

    assert len(searched) == 3  # after each check of a pod, and then without both
    assert leader.preemptions == []
    assert {each.no_eviction is None for each in statuses(leader).values()} == {False}

    leader.blocked = {}
    run(leader, 200)

    assert all(units(leader)[name] is not None for name in MANY)


def test_a_gang_that_waits_after_evictions_in_vain_gets_no_result() -> None:
    server, _ = full(n0=2)
    urgent(server, "first")
    urgent(server, "second")
    leader, searched = searching(server)
    leader.term.preemptions._history.mark_failed(f"{SPACE}/second", leader.now - START)

    run(leader, 10)

    assert searched == ["first"]
    assert units(leader)["second"] is None


def test_a_gang_that_has_not_waited_gets_no_result() -> None:
    server, _ = full(n0=2)
    urgent(server, "first")
    leader, searched = searching(server, wait_s=30.0)
    run(leader, 20)
    urgent(server, "second")

    run(leader, 20)
    assert searched == ["first"]
    assert units(leader)["second"] is None

    run(leader, 20)
    assert searched == ["first", "second"]


def run_with_anti_affinity(server: ApiServer, node: str) -> None:
    """Run a member that shares no node with pods of the app "urgent"."""
    term = {"labelSelector": {"matchLabels": {"app": "urgent"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    server.create_pod("apart", 2, "apart", 1, {"spec": {**apart, "nodeName": node, "schedulingGates": []}})


@pytest.mark.parametrize(("label", "searches"), [("urgent", 1), ("other", 2)])
def test_with_anti_affinity_the_last_plan_says_which_requests_are_equal(label: str, searches: int) -> None:
    """Labels of two Jobs always differ: only those that a term selects count."""
    server, _ = full(n0=2)
    server.nodes = {**server.nodes, "n1": 2}
    run_with_anti_affinity(server, "n1")
    for name, app in (("a", "urgent"), ("b", label)):
        labels = {"metadata": {"labels": {"app": app, "job-name": name}}}
        server.create_pod(name, 2, name, 1, labels, priority=100)
    leader, searched = searching(server)

    run(leader, 10)

    assert leader.term.view.gang_members.has_anti_affinity
    assert len(searched) == searches


def test_with_new_anti_affinity_no_search_is_shared_until_the_next_plan() -> None:
    server, _ = full(n0=2)
    server.nodes = {**server.nodes, "n1": 2, "n2": 2}
    run_with_anti_affinity(server, "n1")
    for name in MANY[:2]:
        urgent(server, name, gpus=3)
    leader, _ = searching(server)
    run(leader, 10)
    assert equal_gangs(leader, MANY[0]) == [MANY[1]]

    run_with_anti_affinity(server, "n2")
    leader.apply_events()
    assert equal_gangs(leader, MANY[0]) == []

    run(leader, 10)
    assert equal_gangs(leader, MANY[0]) == [MANY[1]]


def pair(name: str, **changed: Any) -> Gang:
    """Return a gang of two members with names and labels of their own. ``changed``: fields of the last member."""
    own = [
        each._replace(uid=f"{name}-{each.uid}", name=f"{name}-{each.name}", labels={"job-name": name})
        for each in members(2)
    ]
    ready = (own[0], own[1]._replace(**changed))
    return queued(name, priority=5)._replace(ready=ready, size=2)


def other_pair(**changed: Any) -> Gang:
    """Return another gang. ``changed``: fields of the gang request of its last member."""
    asked = members(2)[1].gang_request._replace(**changed)
    return pair("b", gang_request=asked)


DIFFERENT = {
    "gang.namespace": pair("b")._replace(name=GangName("other", "b")),
    "gang.priority": pair("b")._replace(priority=6),
    "gang.ready": pair("b")._replace(ready=tuple(members(1))),
    "gang.placed": pair("b")._replace(placed=tuple(members(1, "running"))),
    "gang.succeeded": pair("b")._replace(succeeded=tuple(members(1)), minimum=2),
    "gang.size": pair("b")._replace(size=3),
    "gang.minimum": pair("b")._replace(minimum=1),
    "gang_request.size": other_pair(size=3),
    "gang_request.minimum": other_pair(minimum=1),
    "gang_request.rank": other_pair(rank=7),
    "gang_request.required": other_pair(required="rack"),
    "gang_request.preferred": other_pair(preferred="rack"),
    "request.profile": pair("b", request=request(2, "w-1")),
    "request.scheduler": pair("b", request=request(1, "w-1")._replace(scheduler="mine")),
    "request.namespace": pair("b", request=request(1, "w-1")._replace(namespace="mine")),
    "request.reason": pair("b", request=InvalidRequest("no")),
    "rules": pair("b", rules=SchedulingRules(FullPodSpec(node_selector={"zone": "z"}))),
    "load": pair("b", load=NodeLoad(1, 1_000)),
    "blocked": pair("b", blocked="its volume claim is not bound"),
}


def test_names_and_labels_of_gangs_with_equal_requests_differ() -> None:
    assert have_equal_requests(pair("a"), pair("b"))


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=DIFFERENT)
def test_requests_differ_in_anything_that_a_search_reads(other: Gang) -> None:
    assert not have_equal_requests(pair("a"), other)
    assert not have_equal_requests(other, pair("a"))


def test_each_field_of_a_member_is_compared_or_known_not_to_be_read() -> None:
    compared = {"gang_request", "request", "rules", "load", "blocked"}

    assert compared | IGNORED == set(Member._fields)
    assert compared.isdisjoint(IGNORED)


def waiting(gang: Gang, request_id: RequestId | None = None) -> QueuedGang:
    return QueuedGang(gang, 0.0, unfit_state=UnfitState(1, request_id))


def test_gangs_with_holds_or_avoided_nodes_are_searched_for_by_themselves() -> None:
    one, other = waiting(pair("a")), waiting(pair("b"))

    assert SharingRules().allow(one, other)
    assert not SharingRules((one.gang.name,)).allow(one, other)
    assert not SharingRules((other.gang.name,)).allow(one, other)


def test_with_anti_affinity_only_gangs_that_the_plan_found_equal_share_a_search() -> None:
    same = RequestId()
    rules = SharingRules(by_request_id=True)

    assert rules.allow(waiting(pair("a"), same), waiting(pair("b"), same))
    assert not rules.allow(waiting(pair("a"), same), waiting(pair("b"), RequestId()))
    assert not rules.allow(waiting(pair("a")), waiting(pair("b")))
    assert not rules.allow(waiting(pair("a"), same), waiting(pair("b"))._replace(unfit_state=None))
    assert not rules.allow(waiting(pair("a"), same), waiting(pair("b")._replace(priority=6), same))
