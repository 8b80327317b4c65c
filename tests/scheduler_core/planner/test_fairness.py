"""Tenants cannot move their gangs forward by what they write into pods: the whole loop on a full cluster."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputopo.crd.reservations import EntryPhase, HeldCapacity
from gputopo.labels import keys
from gputopo.labels.reasons import Reason
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.plan_task import PlanResult
from scheduler_core.planner.leader.queue import SETTLE_S, QueueTiming
from scheduler_core.planner.leader.scheduling import REASONS_S, REASONS_SHARE
from scheduler_core.planner.packing import plan
from scheduler_core.planner.packing.search import Search
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


PLAN_COST_S = 0.3  # three plans use up the time of a task


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakePlanner], list[object]]:
    """Return a function that counts the plans of a planner, each of which takes ``PLAN_COST_S``."""

    def counting(planner: FakePlanner) -> list[object]:
        found: list[object] = []

        class CountedSearch(Search):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                found.append(self)
                planner.now += PLAN_COST_S

        monkeypatch.setattr(plan, "Search", CountedSearch)
        return found

    return counting


def end_and_start_pod(server: ApiServer, pods: list[str], node: int, gpus: int = 1) -> None:
    """Let a pod end and another pod start on a node: an event of a GPU pod that frees nothing for long."""
    server.delete_pod(pods[node])
    pods[node] = server.create_pod(f"on-n{node}", gpus)
    server.bind(pods[node], f"n{node}")


def queue_unfit_gangs(server: ApiServer, number: int, random: Random) -> None:
    """Create gangs of any priority that do not fit on four nodes with one free GPU each."""
    for at in range(number):
        size, gpus = random.choice(((2, 2), (5, 1), (4, 2), (1, 3), (2, 4)))
        for _ in range(size):
            server.create_pod(f"unfit-{at}", gpus, f"unfit-{at}", size, created=NOON, priority=random.randint(0, 9))


@given(number=st.integers(0, 40), seed=st.integers(0, 10**9))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_number_of_gangs_that_do_not_fit_delays_no_gang_that_fits(
    planned: Callable[[FakePlanner], list[object]], number: int, seed: int
) -> None:
    """In a stream of pod events, before they were tried and after."""
    random = Random(seed)
    server = ApiServer({f"n{at}": 2 for at in range(4)})
    pods = [server.create_pod(f"on-n{at}", 1) for at in range(4)]  # one GPU of each node stays free
    for at, uid in enumerate(pods):
        server.bind(uid, f"n{at}")
    queue_unfit_gangs(server, number, random)
    server.create_pod("first", 1, "first", 1, created=LATER)
    planner = FakePlanner(server, pace=FAR)
    plans = planned(planner)

    for name in ("first", "second"):
        began, steps = len(plans), 0
        while name not in placed(server):
            end_and_start_pod(server, pods, random.randrange(4))
            planner.run_once()
            planner.now += 0.1
            planner.term.tick()
            steps += 1
            assert steps < 40
        assert len(plans) - began <= 1 + 3  # its own, and what one task has time for beside it
        server.create_pod("second", 1, "second", 1, created=LATER)


def test_a_gang_is_tried_again_though_earlier_gangs_use_up_the_time(
    planned: Callable[[FakePlanner], list[object]],
) -> None:
    """Members of two kinds may fit beside each other or not: only a plan decides, and it may be in vain each time."""
    server = ApiServer({"n0": 2, "n1": 2})
    pods = [server.create_pod(f"on-n{at}", 2) for at in range(2)]
    for at, uid in enumerate(pods):
        server.bind(uid, f"n{at}")
    for at in range(20):
        for gpus in (2, 1):
            server.create_pod(f"mixed-{at}", gpus, f"mixed-{at}", 2, created=NOON, more=tolerating(at))
    server.create_pod("late", 2, "late", 1, created=LATER)
    planner = FakePlanner(server, pace=FAR)
    planner.run()
    plans = planned(planner)

    for _ in range(60):
        server.delete_pod(pods[0])
        planner.run_once()
        if placed(server):  # at once, on GPUs that the next pod would take
            break
        pods[0] = server.create_pod("on-n0", 2)
        server.bind(pods[0], "n0")
        planner.now += 1.0
        planner.term.tick()
        planner.run_once()
        if placed(server):
            break
    else:
        server.delete_pod(pods[0])
        wait(planner, 1.0)

    assert placed(server) == {"late"}
    assert len(plans) <= 21 + 2 * 62 / REASONS_S  # two, in the time for retries, that only find the reasons again


def tolerating(at: int) -> dict[str, Any]:
    """Return rules that differ from gang to gang and change nothing."""
    return {"spec": {"tolerations": [{"key": f"example.com/{at}", "operator": "Exists"}]}}


def test_a_waiting_gang_is_told_the_reason_of_now_after_the_pods_before_it_started() -> None:
    server = ApiServer({"n0": 2})
    first, _ = (server.create_pod(name, 2, name, 1, created=at) for name, at in (("first", NOON), ("second", LATER)))
    planner = FakePlanner(server, pace=FAR)
    planner.run()
    name = GangName("team", "second")
    before = [why for _, why in planner.term.backlog.unplaced[name].missing]
    server.bind(first, "n0")

    for _ in range(3):
        wait(planner, REASONS_S)

    after = [why for _, why in planner.term.backlog.unplaced[name].missing]
    assert (before, after) == ([Reason.RESERVED], [Reason.TOO_FEW_GPUS])


def test_reasons_that_take_long_to_find_are_found_less_often() -> None:
    """At most for a small part of the time, however many nodes there are."""
    server = ApiServer({"n0": 2})
    first, _ = (server.create_pod(name, 2, name, 1, created=at) for name, at in (("first", NOON), ("second", LATER)))
    planner = FakePlanner(server, pace=FAR)
    planner.run()
    planner.term.apply_plan(PlanResult(reasons_s=1.0))
    server.bind(first, "n0")
    found = []

    for seconds in (REASONS_S, REASONS_S, REASONS_S, 1.0 / REASONS_SHARE, REASONS_S):
        wait(planner, seconds)
        found.append([why for _, why in planner.term.backlog.unplaced[GangName("team", "second")].missing])

    assert found[:3] == [[Reason.RESERVED]] * 3
    assert found[-1] == [Reason.TOO_FEW_GPUS]
