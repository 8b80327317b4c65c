"""Gangs that their owner deletes or changes after pods were evicted for them: their namespace waits."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels.keys import GATE, POD_GANG_REQUIRED, POD_GANG_SIZE, POD_MIN_VRAM
from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.volumes import ClaimUpdate, StorageClassUpdate, VolumeUpdate
from scheduler_core.planner.leader.eviction_history import EvictionHistory
from scheduler_core.planner.leader.preemption_outcomes import GIVE_UP_S, _prevents_plan
from scheduler_core.planner.status import planner_status
from scheduler_core.policy.limits import BackfillMode, BackfillPolicy
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer
from tests.scheduler_core.planner.leader.fake_planner import START, FakePlanner
from tests.scheduler_core.planner.leader.preemption_cases import (
    POLICY,
    RUNNING,
    TERMS,
    bind_all,
    committed,
    evicted,
    full,
    planner,
    run,
    urgent,
)

CLAIM = ClaimUpdate(f"{SPACE}/data", "v", "", None, is_terminating=False, is_lost=False)
UNFIT: dict[str, dict[str, Any]] = {"spec": {"nodeSelector": {"example.com/none": "none"}}}
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "a node that does not exist": UNFIT,
    "an invalid request": {"metadata": {"annotations": {POD_MIN_VRAM.key: "x"}}},
    "another size": {"metadata": {"annotations": {POD_GANG_SIZE.key: "2"}}},
    "a label that others exclude": {"metadata": {"labels": {"app": "excluded"}}},
}


def test_a_namespace_that_deletes_gangs_after_evictions_for_them_waits() -> None:
    """New names of gangs do not help."""
    history = EvictionHistory()

    history.mark_given_up("killer", 0.0)

    assert history.has_given_up("killer", 119.0)
    assert not history.has_given_up("killer", 120.0)
    assert not history.has_given_up("others", 0.0)
    history.mark_given_up("killer", 130.0)
    assert history.has_given_up("killer", 369.0)
    assert not history.has_given_up("killer", 370.0)


@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize("has_places", [False, True])
def test_a_namespace_whose_gang_was_deleted_after_evictions_for_it_evicts_nothing_for_another_gang(
    *, has_places: bool, is_single: bool
) -> None:
    server, pods = full(n0=2, n1=2, ends=has_places)
    gate = {"spec": {"schedulingGates": [{"name": GATE}]}}
    first = server.create_pod("single", 2, more=gate, priority=100) if is_single else urgent(server)[0]
    leader = planner(server)
    while not evicted(leader) or (has_places and server.pods[first]["spec"]["schedulingGates"]):
        run(leader, 2)
    server.delete_pod(first)
    (node,) = (node for node, uid in pods.items() if uid in evicted(leader))
    server.bind(server.create_pod("again", 2, more=RUNNING), node)
    server.create_pod("second", 2, "second", 1, priority=100)

    run(leader, 40)

    assert len(evicted(leader)) == 1
    assert leader.preemptions == ["planned", "begun", "in-vain"]


def planner_that_evicts(server: ApiServer) -> FakePlanner:
    """Return a planner that has begun a preemption."""
    leader = planner(server)
    while not evicted(leader):
        run(leader, 2)
    return leader


def has_given_up(leader: FakePlanner) -> bool:
    return leader.term.preemptions.has_given_up(SPACE, leader.now - START)


def change(server: ApiServer, uid: str, change: dict[str, dict[str, Any]]) -> None:
    """Change fields of a pod as its owner does."""
    pod = dict(server.pods[uid])
    for part, fields in change.items():
        for name, values in fields.items():
            pod[part] = {**pod[part], name: {**pod[part].get(name, {}), **values}}
    server._put_pod(pod)


@pytest.mark.parametrize("is_undone", [False, True])
@pytest.mark.parametrize("changed", CHANGES)
def test_a_namespace_that_changes_a_gang_after_evictions_for_it_evicts_nothing_for_another_gang(
    changed: str, *, is_undone: bool
) -> None:
    server, pods = full(n0=2, n1=2, ends=False)
    (first,) = urgent(server)
    leader = planner_that_evicts(server)
    before = server.pods[first]
    change(server, first, CHANGES[changed])
    run(leader, 2)
    if is_undone:
        server._put_pod(before)
    assert has_given_up(leader)
    run(leader, 10)
    server.delete_pod(first)
    server.create_pod("second", 2, "second", 1, priority=100)

    run(leader, 20)

    assert len(evicted(leader)) == 1
    assert leader.preemptions == ["planned", "begun", "in-vain"]
    assert set(pods.values()) <= server.pods.keys()


@pytest.mark.parametrize("has_places", [False, True])
def test_only_the_planner_may_remove_the_gate_of_a_gang_after_evictions_for_it(*, has_places: bool) -> None:
    """Else an owner could remove the gate and delete the gang later, and pods were evicted for its next one."""
    server, _ = full(n0=2, n1=2, ends=has_places)
    (first,) = urgent(server)
    leader = planner_that_evicts(server)
    if has_places:
        while server.pods[first]["spec"]["schedulingGates"]:
            run(leader, 2)
    else:
        server._put_pod({**server.pods[first], "spec": {**server.pods[first]["spec"], "schedulingGates": []}})
    run(leader, 2)

    assert has_given_up(leader) is not has_places


def test_a_gang_of_which_one_member_is_bound_and_another_was_ungated_by_its_owner_is_given_up() -> None:
    server, pods = full(n0=2, n1=2, ends=False)
    first, second = urgent(server, size=2)
    leader = planner_that_evicts(server)
    ungated = {**server.pods[first]["spec"], "schedulingGates": [], "nodeSelector": {"no": "where"}}
    server._put_pod({**server.pods[first], "spec": ungated})
    run(leader, 2)
    for each in pods.values():
        server.delete_pod(each)
    for _ in range(10):
        run(leader, 2)
        bind_all(leader)

    assert [server.pods[each]["spec"].get("nodeName") is None for each in (first, second)] == [True, False]
    assert leader.preemptions == ["planned", "begun", "in-vain"]
    assert has_given_up(leader)


@pytest.mark.parametrize("is_single", [False, True])
def test_a_gang_is_not_released_while_pods_are_evicted_for_it(*, is_single: bool) -> None:
    server, _ = full(n0=2, n1=2, ends=False)
    gate = {"spec": {"schedulingGates": [{"name": GATE}]}}
    first = server.create_pod("single", 2, more=gate, priority=100) if is_single else urgent(server)[0]
    leader = FakePlanner(server, "one", terms=TERMS, release_after_s=20.0, gate_timeout_s=20.0)
    leader.policies = BUILT_IN._replace(preemption=POLICY)
    while not evicted(leader):
        run(leader, 2)
    run(leader, 30)

    assert server.pods[first]["spec"]["schedulingGates"]
    assert not has_given_up(leader)


def test_a_namespace_that_deletes_what_declares_the_size_of_a_gang_has_given_it_up() -> None:
    """The gang then waits for members, and its pods can be deleted later."""
    gang = Gang(GangName(SPACE, "urgent"), GangPhase.QUEUED, "", size=1)

    assert _prevents_plan(gang, gang._replace(phase=GangPhase.WAITING_FOR_MEMBERS, size=None))
    assert not _prevents_plan(gang._replace(size=None), gang._replace(size=None))
    assert not _prevents_plan(gang, gang)


ADDED: dict[str, dict[str, Any]] = {
    "another size": {"metadata": {"annotations": {POD_GANG_SIZE.key: "2"}}},
    "an invalid request": {"metadata": {"annotations": {POD_MIN_VRAM.key: "x"}}},
    "a topology level that no node has": {"metadata": {"annotations": {POD_GANG_REQUIRED.key: "example.com/none"}}},
    "a lower priority": {"spec": {"priority": 1}},
}


@pytest.mark.parametrize("added", ADDED)
def test_a_namespace_that_adds_a_member_which_prevents_the_plan_has_given_up_the_gang(added: str) -> None:
    """The member that the planner waits for stays as it is."""
    server, _ = full(n0=2, n1=2, ends=False)
    urgent(server)
    leader = planner_that_evicts(server)
    server.create_pod("urgent", 2, "urgent", 1, ADDED[added], priority=100)
    run(leader, 2)

    assert has_given_up(leader)
    run(leader, 20)
    assert has_given_up(leader)


def test_a_gang_for_which_pods_are_evicted_is_not_said_to_wait_because_its_namespace_gave_up_another() -> None:
    server, _ = full(n0=2, n1=2, ends=False)
    urgent(server)
    leader = planner_that_evicts(server)
    leader.term.preemptions._history.mark_given_up(SPACE, leader.now - START)
    server.create_pod("second", 2, "second", 1, priority=100)
    leader.run()

    gangs = planner_status(leader.term, True, None, (), leader.now).gangs

    assert {each.gang.name.name: each.no_eviction is None for each in gangs} == {"urgent": True, "second": False}


def test_a_further_member_that_prevents_nothing_is_no_change_of_the_gang() -> None:
    server, _ = full(n0=2, n1=2, ends=False)
    urgent(server)
    leader = planner_that_evicts(server)
    server.create_pod("urgent", 2, "urgent", 1, priority=100)
    run(leader, 2)

    assert not has_given_up(leader)


def test_labels_that_the_api_server_adds_when_it_binds_a_pod_are_no_change_by_its_owner() -> None:
    """It copies the zone of the node (admission plugin PodTopologyLabels)."""
    server, _ = full(n0=2, n1=2)
    first, _ = urgent(server, size=2)
    leader = planner(server)
    while not committed(server):
        run(leader, 2)
    (node,) = (seat.node for each in server.reservations.values() for seat in each.spec.seats if seat.uid == first)
    assert node is not None
    server.bind(first, node)
    change(server, first, {"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}})
    leader.run()
    assert not has_given_up(leader)

    run(leader, 36)

    assert leader.preemptions == ["planned", "begun", "in-vain"]
    assert not has_given_up(leader)


def test_a_namespace_that_deletes_a_volume_claim_of_a_gang_has_given_it_up() -> None:
    server, _ = full(n0=2, n1=2, ends=False)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    server.create_pod("urgent", 2, "urgent", 1, {"spec": {"volumes": volumes}}, priority=100)
    leader = planner(server)
    run(leader, 2)
    for kind, found in ((ClaimUpdate, CLAIM), (VolumeUpdate, VolumeUpdate("v", None)), (StorageClassUpdate, None)):
        leader.term.apply_batch(Batch(kind, () if found is None else (found,), is_full_list=True))
    while not evicted(leader):
        run(leader, 2)
    assert not has_given_up(leader)

    leader.term.apply_batch(Batch(ClaimUpdate, (), (CLAIM.key,)))
    run(leader, 2)

    assert has_given_up(leader)


def test_members_that_were_compared_are_not_compared_again() -> None:
    """A gang may have thousands of members, and each change of a status makes a new object of one."""
    server, _ = full(n0=2, n1=2, ends=False)
    (first,) = urgent(server)
    leader = planner_that_evicts(server)
    change(server, first, {"metadata": {"annotations": {"a": "b"}}})
    leader.run()

    (begun,) = leader.term.preemptions._outcomes._begun.values()
    assert [each is leader.term.view.gang_members.get_member(first) for each in begun.members] == [True]


def test_a_namespace_that_deletes_a_gang_because_pods_end_late_does_not_wait() -> None:
    server, _ = full(n0=2, n1=2, ends=False)
    (first,) = urgent(server)
    leader = planner_that_evicts(server)
    run(leader, int(GIVE_UP_S) + 4)
    server.delete_pod(first)
    server.create_pod("second", 2, "second", 1, priority=100)

    run(leader, 20)

    assert leader.preemptions == ["planned", "begun", "in-vain", "planned", "begun"]


def test_a_gang_that_is_placed_and_bound_was_not_given_up() -> None:
    """The planner itself pins and ungates its members."""
    server, _ = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server)
    while not committed(server):
        run(leader, 2)
    bind_all(leader)
    server.create_pod("second", 2, "second", 1, priority=100)

    run(leader, 20)

    assert leader.preemptions[:3] == ["planned", "begun", "won"]
    assert len(evicted(leader)) == 2


def test_a_namespace_that_deletes_a_gang_after_backfilled_pods_were_evicted_for_it_holds_nothing() -> None:
    """Else these pods would start again on its next hold, and be evicted again."""
    server = ApiServer({"n0": 2, "n1": 2})
    user = server.create_pod("user", 2, more={**RUNNING, "spec": {"activeDeadlineSeconds": 86_400}})
    server.bind(user, "n1")
    holders = [server.create_pod("big", 2, "big", 2) for _ in range(2)]
    leader = FakePlanner(server, "one", terms=TERMS)
    leader.policies = BUILT_IN._replace(backfill=BackfillPolicy(BackfillMode.DEADLINE))
    leader.run()
    short = server.create_pod("short", 2, "short", 1, {"spec": {"activeDeadlineSeconds": 600}})
    leader.run()
    server.bind(short, "n0")
    server._put_pod({**server.pods[short], **RUNNING})
    server.delete_pod(user)
    while not evicted(leader):
        run(leader, 2)
    for each in holders:
        server.delete_pod(each)
    server.bind(server.create_pod("user", 2, more=RUNNING), "n1")
    for _ in range(2):
        server.create_pod("again", 2, "again", 2)

    run(leader, 50)
    assert [each.spec.gang for each in server.reservations.values() if each.spec.held] == []
    run(leader, 60)
    assert [each.spec.gang for each in server.reservations.values() if each.spec.held] == ["again"]
