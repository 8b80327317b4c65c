"""Capacity holds of tenants that misuse them: other tenants get their holds, and their gangs start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gputopo.crd.reservations import EntryPhase, HeldCapacity
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import Batch
from scheduler_core.cache.full_pods import HOSTNAME
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.planner.gang.gang import DeclaredSizes
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.leader import hold_search
from scheduler_core.planner.packing.holdings import holdings_of
from scheduler_core.planner.packing.model import GangPlan
from scheduler_core.planner.status import planner_status
from scheduler_core.policy.limits import GangLimits, GpuLimit, NamespaceLimits
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.commit.apiserver import ApiServer
from tests.scheduler_core.planner.leader.fake_planner import START, FakePlanner


def on_node(server: ApiServer, name: str, node: str, gpus: int, **more: Any) -> str:
    """Run a pod."""
    uid = server.create_pod(name, gpus, more=more)
    server.bind(uid, node)
    return uid


def gang(
    server: ApiServer, name: str, size: int, gpus: int, namespace: str = "victim", *, nodes: str = "", second: int = 0
) -> list[str]:
    """Create a gang that has waited longer than any patience. ``nodes``: their names, one for each member."""
    pins: list[Any] = [{"nodeSelector": {HOSTNAME: each}} for each in nodes.split()] or [{}] * size
    created = f"2026-11-21T00:00:{second:02}Z"
    metadata = {"namespace": namespace}
    return [
        server.create_pod(name, gpus, name, size, {"metadata": metadata, "spec": pin}, created=created) for pin in pins
    ]


def held(server: ApiServer) -> dict[str, dict[str, int]]:
    """Return the held GPUs by gang and node."""
    assert server.ledger is not None
    listed = [server.reservations[each.uid] for each in server.ledger.spec.entries if each.phase is EntryPhase.HELD]
    return {each.spec.gang: {at.node: at.gpus for at in each.spec.held} for each in listed}


def run(planner: FakePlanner, seconds: float) -> None:
    """Run for a time."""
    for _ in range(int(seconds // 10)):
        planner.now += 9.0
        planner.run()


def limited(planner: FakePlanner, held_gpus: int) -> None:
    """Limit the held GPUs of all namespaces."""
    planner.policies = BUILT_IN._replace(limits=GangLimits(default=NamespaceLimits(held_gpus=GpuLimit(held_gpus))))


def reason_of(planner: FakePlanner, name: str) -> str:
    """Return why a gang waits."""
    found = planner_status(planner.term, True, None, (), planner.now - START)
    return next(each.reason for each in found.gangs if each.gang.name.name == name)


def test_a_gang_that_waits_for_a_pod_of_its_own_tenant_keeps_no_other_tenant_from_a_hold() -> None:
    server = ApiServer({"n0": 2, "n1": 2, "n2": 2})
    pods = {node: on_node(server, f"on-{node}", node, 2) for node in ("n0", "n1", "n2")}
    gang(server, "bogus", 1, 2, "evil", nodes="n2")
    planner = FakePlanner(server)
    planner.run()
    assert held(server) == {"bogus": {"n2": 2}}

    gang(server, "big", 2, 2)
    run(planner, 20)

    assert held(server) == {"bogus": {"n2": 2}, "big": {"n0": 2, "n1": 2}}
    server.delete_pod(pods["n0"])
    server.delete_pod(pods["n1"])
    run(planner, 20)
    assert list(held(server)) == ["bogus"]
    assert {seat.node for each in server.reservations.values() for seat in each.spec.seats} == {"n0", "n1"}


def test_held_gpus_that_pods_of_the_same_tenant_use_leave_others_their_share() -> None:
    server = ApiServer({"n0": 2, "n1": 2, "n2": 2})
    for node in ("n0", "n1", "n2"):
        on_node(server, f"on-{node}", node, 2, metadata={"namespace": "evil" if node == "n2" else "team"})
    gang(server, "bogus", 1, 2, "evil", nodes="n2")
    planner = FakePlanner(server)
    limited(planner, 4)
    planner.run()

    gang(server, "big", 2, 2)
    run(planner, 20)

    assert held(server) == {"bogus": {"n2": 2}, "big": {"n0": 2, "n1": 2}}


def test_a_gang_that_fits_only_on_nodes_of_another_hold_is_searched_for_once_that_ends() -> None:
    server = ApiServer({"n0": 2, "n1": 2})
    for node in ("n0", "n1"):
        on_node(server, f"on-{node}", node, 2)
    members = gang(server, "first", 2, 2, "one")
    planner = FakePlanner(server)
    planner.run()
    gang(server, "second", 2, 2, "two", second=1)
    run(planner, 60)
    assert list(held(server)) == ["first"]

    for each in members:
        server.delete_pod(each)
    run(planner, 20)

    assert list(held(server)) == ["second"]


def test_a_namespace_has_one_hold_of_each_priority() -> None:
    server = ApiServer({"n0": 2, "n1": 2, "n2": 2})
    for node in ("n0", "n1", "n2"):
        on_node(server, f"on-{node}", node, 2)
    for name in ("first", "second"):
        gang(server, name, 1, 2, "evil")
    planner = FakePlanner(server)
    run(planner, 20)
    assert list(held(server)) == ["first"]


def test_all_holds_of_a_priority_together_are_limited_and_the_first_gang_in_the_queue_comes_first() -> None:
    server = ApiServer({f"n{at}": 2 for at in range(4)})
    pods = {node: on_node(server, f"on-{node}", node, 2) for node in server.nodes}
    gang(server, "one", 1, 2, "one")
    planner = FakePlanner(server)
    limited(planner, 4)
    planner.run()
    gang(server, "two", 2, 2, "two", second=1)
    gang(server, "three", 1, 2, "three", second=2)

    run(planner, 60)

    assert list(held(server)) == ["one"]
    assert reason_of(planner, "two").endswith(
        "holds no capacity: it needs 4 GPUs beside 2 held at its priority: together at most 4 (gangs.heldGpus)"
    )
    server.delete_pod(pods["n0"])
    run(planner, 60)
    assert list(held(server)) == ["two"]


def test_later_gangs_use_what_a_gang_that_waits_for_its_share_of_all_holds_leaves() -> None:
    server = ApiServer({f"n{at}": 2 for at in range(6)})
    for node in server.nodes:
        on_node(server, f"on-{node}", node, 2)
    first = gang(server, "first", 2, 2, "evil", nodes="n0 n1")
    planner = FakePlanner(server)
    limited(planner, 6)
    planner.run()
    gang(server, "share", 2, 2, "evil2", nodes="n2 n3", second=1)
    gang(server, "small", 1, 2, "one", nodes="n4", second=2)
    gang(server, "small-too", 1, 2, "two", nodes="n5", second=3)

    run(planner, 60)

    assert list(held(server)) == ["first", "small"]
    for each in first:
        server.delete_pod(each)
    run(planner, 60)
    assert list(held(server)) == ["small", "share"]
    assert reason_of(planner, "small-too").endswith(
        "holds no capacity: it needs 2 GPUs beside 6 held at its priority: together at most 6 (gangs.heldGpus)"
    )


def test_later_gangs_together_leave_the_share_of_a_gang_that_waits_for_it() -> None:
    """Else holds of small gangs, one after the other, would keep it waiting for ever."""
    server = ApiServer({f"n{at}": 2 for at in range(8)})
    for node in server.nodes:
        on_node(server, f"on-{node}", node, 2)
    first = gang(server, "first", 1, 2, "evil", nodes="n0")
    gang(server, "second", 1, 2, "evil2", nodes="n1", second=1)
    planner = FakePlanner(server)
    limited(planner, 8)
    run(planner, 20)
    gang(server, "share", 3, 2, "victim", nodes="n2 n3 n4", second=2)
    for at in range(3):
        gang(server, f"small-{at}", 1, 2, f"team-{at}", second=3 + at)

    run(planner, 60)

    assert sorted(held(server)) == ["first", "second", "small-0"]
    assert reason_of(planner, "small-1").endswith(
        "holds no capacity: it needs 2 GPUs beside 2 held for later gangs and 6 kept for earlier ones: "
        "together at most 8 (gangs.heldGpus)"
    )
    server.delete_pod(first[0])
    run(planner, 60)
    assert sorted(held(server)) == ["second", "small-0"]


def test_a_gang_whose_hold_needs_more_gpus_than_it_requests_keeps_no_other_gang_from_its_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a gang that needs an island: all GPUs of a node are held for it."""

    def whole_nodes(plan: GangPlan, members: Sequence[Member], table: ClusterSnapshot) -> tuple[HeldCapacity, ...]:
        return tuple(msgspec.structs.replace(each, gpus=4) for each in holdings_of(plan, members, table))

    monkeypatch.setattr(hold_search, "holdings_of", whole_nodes)
    server = ApiServer({f"n{at}": 4 for at in range(3)})
    for node in server.nodes:
        on_node(server, f"on-{node}", node, 4)
    gang(server, "first", 1, 4, "one", nodes="n0")
    planner = FakePlanner(server)
    limited(planner, 6)
    planner.run()
    gang(server, "wide", 1, 2, "evil", nodes="n1", second=1)
    low = {"metadata": {"namespace": "two"}, "spec": {"nodeSelector": {HOSTNAME: "n2"}}}
    server.create_pod("low", 4, "low", 1, low, priority=-1)

    run(planner, 60)

    assert list(held(server)) == ["first", "low"]
    monkeypatch.undo()  # a smaller hold is possible
    run(planner, 320)
    assert list(held(server)) == ["first", "low", "wide"]


def test_a_gang_that_fits_nowhere_keeps_no_later_gang_from_a_hold_beside_others() -> None:
    server = ApiServer({f"n{at}": 2 for at in range(4)})
    for node in server.nodes:
        on_node(server, f"on-{node}", node, 2)
    gang(server, "one", 1, 2, "one")
    planner = FakePlanner(server)
    limited(planner, 4)
    planner.run()
    gang(server, "never", 2, 2, "evil", nodes="n3 n3", second=1)
    gang(server, "two", 1, 2, "two", second=2)

    run(planner, 30)

    assert list(held(server)) == ["one", "two"]


def test_a_single_hold_may_exceed_what_holds_have_together() -> None:
    server = ApiServer({"n0": 2, "n1": 2})
    for node in ("n0", "n1"):
        on_node(server, f"on-{node}", node, 2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    more = {"victim": NamespaceLimits(held_gpus=GpuLimit(4))}
    limits = GangLimits(default=NamespaceLimits(held_gpus=GpuLimit(2)), by_namespace=more)
    planner.policies = BUILT_IN._replace(limits=limits)

    planner.run()

    assert list(held(server)) == ["big"]


def test_a_hold_of_few_gpus_of_many_nodes_keeps_no_whole_nodes_from_other_gangs() -> None:
    server = ApiServer({f"n{at}": 4 for at in range(4)})
    on_node(server, "own", "n3", 4)
    gang(server, "sparse", 4, 1, "evil", nodes="n0 n1 n2 n3")
    planner = FakePlanner(server)
    run(planner, 60)
    assert held(server) == {}
    assert reason_of(planner, "sparse").endswith(
        "holds no capacity: it requests 4 of the 16 GPUs of 4 nodes: a hold is for at least half of them"
    )

    gang(server, "whole", 3, 4)
    run(planner, 20)

    assert {seat.node for each in server.reservations.values() for seat in each.spec.seats} == {"n0", "n1", "n2"}


def full(*nodes: str) -> tuple[ApiServer, dict[str, str]]:
    """Return nodes of two GPUs, each with a pod of a Job, and these pods by node."""
    server = ApiServer(dict.fromkeys(nodes, 2))
    running = {"phase": "Running", "startTime": format_timestamp(START)}
    return server, {node: on_node(server, f"on-{node}", node, 2, status=running) for node in nodes}


def job_ends(server: ApiServer, planner: FakePlanner, pod: str, seconds: float | None) -> None:
    """Set the deadline of the Job of a pod."""
    (owner,) = server.pods[pod]["metadata"]["ownerReferences"]
    found = DeclaredSizes(owner["uid"], (), None if seconds is None else START + seconds)
    planner.term.view.deadlines.apply_job_deadlines(Batch(DeclaredSizes, (found,)))


@pytest.mark.parametrize("raised", [pytest.param(80_000.0, id="raised"), pytest.param(None, id="removed")])
def test_a_hold_leaves_the_node_of_a_job_whose_deadline_is_raised(raised: float | None) -> None:
    server, pods = full("n0", "n1", "n2")
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.apply_events()
    planner.apply_events()
    job_ends(server, planner, pods["n2"], 100.0)
    run(planner, 30)
    assert held(server) == {"big": {"n0": 2, "n2": 2}}
    since = [each.spec.held_since for each in server.reservations.values()]

    job_ends(server, planner, pods["n2"], raised)
    run(planner, 180)

    assert held(server) == {"big": {"n0": 2, "n1": 2}}
    assert [each.spec.held_since for each in server.reservations.values()] == since
    before = len(planner.ledgers)
    run(planner, 1_000)
    assert planner.ledgers[before:] == []


def test_a_hold_leaves_the_node_of_a_pod_that_is_deleted_with_a_long_grace_period() -> None:
    """A kubelet applies no deadline to it any more."""
    server, pods = full("n0", "n1")
    pod = server.pods[pods["n1"]]
    server._put_pod({**pod, "spec": {**pod["spec"], "activeDeadlineSeconds": 100}})
    gang(server, "big", 1, 2)
    planner = FakePlanner(server)
    run(planner, 30)
    assert held(server) == {"big": {"n1": 2}}

    pod = server.pods[pods["n1"]]
    gone_by = format_timestamp(START + 1e6)
    server._put_pod({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": gone_by}})
    run(planner, 40)

    assert held(server) == {"big": {"n0": 2}}


def test_a_hold_leaves_nodes_whose_pods_have_not_ended_after_half_of_its_age_and_keeps_the_others() -> None:
    server, pods = full("n0", "n1", "n2")
    server.delete_pod(pods["n1"])
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    run(planner, 30)
    assert held(server) == {"big": {"n0": 2, "n1": 2}}
    half_s = planner.policies.limits.max_hold_age_s / 2

    planner.now += half_s - 120.0
    run(planner, 30)
    assert held(server) == {"big": {"n0": 2, "n1": 2}}
    planner.now += 180.0
    run(planner, 30)
    assert held(server) == {"big": {"n1": 2, "n2": 2}}
    before = len(planner.ledgers)
    run(planner, 2_000)
    assert planner.ledgers[before:] == []


def test_late_pods_move_no_hold_where_pods_are_late_everywhere() -> None:
    server, pods = full("n0", "n1", "n2")
    gang(server, "big", 3, 2)
    planner = FakePlanner(server)
    planner.apply_events()
    planner.apply_events()
    for each in pods.values():
        job_ends(server, planner, each, 100.0)
    run(planner, 30)
    before = len(planner.ledgers)

    run(planner, 1_000)

    assert held(server) == {"big": {"n0": 2, "n1": 2, "n2": 2}}
    assert planner.ledgers[before:] == []


def test_a_late_pod_beside_held_gpus_that_are_free_moves_no_hold() -> None:
    """Its tenant could drive the hold from a node on which its GPUs are free already."""
    server = ApiServer({"n0": 4, "n1": 4, "n2": 4})
    beside = on_node(server, "beside", "n0", 2)
    for node in ("n1", "n2"):
        on_node(server, f"on-{node}", node, 4)
    apart = {"matchExpressions": [{"key": HOSTNAME, "operator": "NotIn", "values": ["n0"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [apart]}}}
    server.create_pod("big", 2, "big", 2)
    server.create_pod("big", 4, "big", 2, {"spec": {"affinity": affinity}})
    planner = FakePlanner(server)
    planner.apply_events()
    planner.apply_events()
    job_ends(server, planner, beside, 100.0)
    run(planner, 30)
    assert held(server) == {"big": {"n0": 2, "n1": 4}}
    before = len(planner.ledgers)

    run(planner, 600)

    assert held(server) == {"big": {"n0": 2, "n1": 4}}
    assert planner.ledgers[before:] == []
