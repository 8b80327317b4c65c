"""A term of leadership with single pods that are ungated, never bound, and never deleted."""

from __future__ import annotations

from gputopo.crd.reservations import ReservationState
from gputopo.labels import keys
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from tests.scheduler_core.planner.commit.apiserver import ApiServer
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner

BARE = {"metadata": {"ownerReferences": []}, "spec": {"schedulingGates": [{"name": keys.GATE}]}}


def states(server: ApiServer) -> list[ReservationState | None]:
    """Return the states of all reservations."""
    return [each.status.state for each in server.reservations.values()]


def wait(planner: FakePlanner, seconds: float) -> None:
    """Run the planner after this time."""
    planner.now += seconds
    planner.run()


def test_the_gpus_of_a_single_pod_that_is_never_bound_go_to_the_next_pod() -> None:
    server = ApiServer({"n0": 2})
    first = server.create_pod("first", 2, more=BARE)
    planner = FakePlanner(server)
    planner.run()
    assert states(server) == [ReservationState.COMMITTED]

    wait(planner, 31.0)
    second = server.create_pod("second", 2, more=BARE)
    wait(planner, ASSUMED_POD_LIFETIME_S)
    assert states(server) == [ReservationState.FAILED, ReservationState.COMMITTED]

    (event,) = [each for each in planner.events if each.reason == "GangFailed"]
    assert (event.name, event.message.partition(": ")[2]) == (
        f"first-{first}",
        "not bound in time; its GPUs on n0 are no longer reserved",
    )
    server.bind(second, "n0")
    wait(planner, 600.0)
    assert states(server) == [ReservationState.FAILED]
    server.delete_pod(second)
    server.bind(first, "n0")
    wait(planner, 1.0)
    assert states(server) == []


def test_a_failed_reservation_is_deleted_with_its_pod() -> None:
    server = ApiServer({"n0": 2})
    first = server.create_pod("first", 2, more=BARE)
    planner = FakePlanner(server)
    planner.run()
    wait(planner, 31.0)
    assert states(server) == [ReservationState.FAILED]

    server.delete_pod(first)
    wait(planner, 1.0)
    assert states(server) == []


def test_the_policy_in_force_limits_timeouts() -> None:
    server = ApiServer({"n0": 2})
    asked = {"metadata": {"annotations": {keys.POD_GANG_TIMEOUT.key: "24h"}}}
    server.create_pod("a", 1, "a", 1, asked)
    planner = FakePlanner(server)
    planner.run()
    wait(planner, 60.0)
    assert states(server) == [ReservationState.COMMITTED]

    limits = planner.policies.limits._replace(max_timeout_s=60.0)
    planner.policies = planner.policies._replace(limits=limits)
    wait(planner, 1.0)
    assert "GangRolledBack" in {each.reason for each in planner.events}
