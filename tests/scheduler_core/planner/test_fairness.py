"""Tenants cannot move their gangs forward by what they write into pods: the whole loop on a full cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputopo.crd.reservations import EntryPhase, HeldCapacity
from gputopo.labels import keys
from scheduler_core.planner.leader.queue import SETTLE_S, QueueTiming
from tests.scheduler_core.planner.commit.apiserver import ApiServer
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner

PATIENCE_S = 300.0
FAR = QueueTiming(patience_s=1e9)  # no holds
NOON, LATER = "2026-11-21T12:00:00Z", "2026-11-21T13:00:00Z"


def full(nodes: int = 1) -> tuple[ApiServer, list[str]]:
    """Return nodes n0, n1, ... of two GPUs each, all held by ungated pods; and these pods."""
    server = ApiServer({f"n{number}": 2 for number in range(nodes)})
    pods = [server.create_pod(f"on-n{number}", 2) for number in range(nodes)]
    for number, uid in enumerate(pods):
        server.bind(uid, f"n{number}")
    return server, pods


def annotate(server: ApiServer, uid: str, **said: str) -> None:
    """Change annotations of a pod: ``gang``, ``gang_size``."""
    version = server.pods[uid]["metadata"]["resourceVersion"]
    written = {{"gang": keys.POD_GANG.key, "gang_size": keys.POD_GANG_SIZE.key}[key]: said[key] for key in said}
    server.patch_pod({"metadata": {"uid": uid, "resourceVersion": version, "annotations": written}})


def remove_gate(server: ApiServer, uid: str) -> None:
    """Remove all gates except gputopo's."""
    version = server.pods[uid]["metadata"]["resourceVersion"]
    spec = {"schedulingGates": [{"name": keys.GATE}]}
    server.patch_pod({"metadata": {"uid": uid, "resourceVersion": version}, "spec": spec})


def add_gate(server: ApiServer, uid: str) -> None:
    """Give a pod another gate of its owner."""
    version = server.pods[uid]["metadata"]["resourceVersion"]
    spec = {"schedulingGates": [{"name": keys.GATE}, {"name": "example.com/mine"}]}
    server.patch_pod({"metadata": {"uid": uid, "resourceVersion": version}, "spec": spec})


def placed(server: ApiServer) -> set[str]:
    """Return the gangs with places."""
    return {each.spec.gang for each in server.reservations.values() if each.spec.seats}


def held(server: ApiServer) -> dict[str, tuple[HeldCapacity, ...]]:
    """Return the held devices in the ledger, by gang."""
    assert server.ledger is not None
    listed = [server.reservations[each.uid] for each in server.ledger.spec.entries if each.phase is EntryPhase.HELD]
    return {each.spec.gang: each.spec.held for each in listed}


def wait(planner: FakePlanner, seconds: float) -> None:
    """Let this time pass."""
    planner.now += seconds
    planner.run()


def urgent_without_gpus(server: ApiServer) -> None:
    server.create_pod("a", 2, "a", 2, created=LATER)
    server.create_pod("a", 0, "a", 2, created=LATER, priority=1000)


def one_of_two_is_urgent(server: ApiServer) -> None:
    server.create_pod("a", 1, "a", 2, created=LATER)
    server.create_pod("a", 1, "a", 2, created=LATER, priority=1000)


def old_placeholder(server: ApiServer) -> None:
    server.create_pod("a", 0, "a", 2)
    server.create_pod("a", 2, "a", 2, created=LATER)


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(urgent_without_gpus, id="a member without GPUs has a high priority"),
        pytest.param(one_of_two_is_urgent, id="one of two members has a high priority"),
        pytest.param(old_placeholder, id="a member without GPUs is old"),
    ],
)
@pytest.mark.parametrize("late", [pytest.param(False, id="listed"), pytest.param(True, id="watched")])
def test_an_added_member_does_not_move_a_gang_forward(attack: Callable[[ApiServer], None], *, late: bool) -> None:
    server, pods = full()
    server.create_pod("honest", 2, "honest", 1, created=NOON)
    planner = FakePlanner(server, pace=FAR)
    if late:
        planner.run()
    attack(server)
    planner.run()

    server.delete_pod(pods[0])
    wait(planner, 1.0)

    assert placed(server) == {"honest"}


def more_members_were_said(server: ApiServer) -> Callable[[], None]:
    uid = server.create_pod("a", 2, "a", 2)
    return lambda: annotate(server, uid, gang_size="1")


def gated_by_its_owner(server: ApiServer) -> Callable[[], None]:
    uid = server.create_pod("a", 2, "a", 1)
    add_gate(server, uid)
    return lambda: remove_gate(server, uid)


def from_another_gang(server: ApiServer) -> Callable[[], None]:
    uid = server.create_pod("b", 2, "b", 9)
    return lambda: annotate(server, uid, gang="a", gang_size="1")


def the_missing_one_comes(server: ApiServer) -> Callable[[], object]:
    server.create_pod("a", 2, "a", 2)
    return lambda: server.create_pod("a", 0, "a", 2, created=LATER)


KEPT = [
    pytest.param(more_members_were_said, id="its size was larger"),
    pytest.param(gated_by_its_owner, id="its owner held it by another gate"),
    pytest.param(from_another_gang, id="it was in another gang"),
    pytest.param(the_missing_one_comes, id="a member was missing"),
]


@pytest.mark.parametrize("keep", KEPT)
def test_old_pods_of_a_gang_that_was_incomplete_do_not_pass(keep: Callable[[ApiServer], Callable[[], object]]) -> None:
    server, pods = full()
    use = keep(server)
    server.create_pod("honest", 2, "honest", 1, created=NOON)
    planner = FakePlanner(server, pace=FAR)
    planner.run()
    wait(planner, SETTLE_S)

    use()
    planner.run()
    server.delete_pod(pods[0])
    wait(planner, 1.0)

    assert placed(server) == {"honest"}


@pytest.mark.parametrize("keep", KEPT)
def test_patience_starts_when_a_gang_is_complete(keep: Callable[[ApiServer], Callable[[], object]]) -> None:
    server, _ = full()
    use = keep(server)
    planner = FakePlanner(server, pace=QueueTiming(patience_s=PATIENCE_S))
    planner.run()
    wait(planner, PATIENCE_S)
    use()
    planner.run()
    wait(planner, PATIENCE_S - 30.0)
    early = held(server)
    wait(planner, 60.0)

    assert (early, held(server)) == ({}, {"a": (HeldCapacity("n0", 2),)})


def test_a_gang_that_grows_waits_again_before_more_is_held() -> None:
    server, _ = full(2)
    server.create_pod("a", 2, "a", 1)
    planner = FakePlanner(server, pace=QueueTiming(patience_s=PATIENCE_S))
    planner.run()
    wait(planner, PATIENCE_S)
    assert held(server) == {"a": (HeldCapacity("n0", 2),)}

    server.create_pod("a", 2, "a", 2)
    (first, *_) = [uid for uid, each in server.pods.items() if each["spec"]["schedulingGates"]]
    annotate(server, first, gang_size="2")
    planner.run()
    wait(planner, PATIENCE_S - 30.0)
    early = held(server)
    wait(planner, 60.0)

    assert (early, held(server)) == (
        {"a": (HeldCapacity("n0", 2),)},
        {"a": (HeldCapacity("n0", 2), HeldCapacity("n1", 2))},
    )
