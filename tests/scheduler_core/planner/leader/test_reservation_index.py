"""A round checks open reservations only, however many gangs run."""

from __future__ import annotations

from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.gang import DeclaredSize, DeclaredSizes
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.size_sources import JobSizes
from scheduler_core.planner.leader.reservation_index import GangReservationIndex
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer
from tests.scheduler_core.planner.gang.gang_pods import BOUND, LLM, member
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner
from tests.scheduler_core.planner.packing.plans import plan


def running(server: ApiServer, planner: FakePlanner, name: str, size: int = 2) -> list[str]:
    """Create a gang with all members bound; return their UIDs."""
    uids = [server.create_pod(name, 1, name, size) for _ in range(size)]
    planner.run()
    (plan,) = (each for each in server.reservations.values() if each.spec.gang == name)
    for seat in plan.spec.seats:
        server.bind(seat.uid, seat.node or "")
    planner.run()
    return uids


def active_gangs(planner: FakePlanner) -> list[str]:
    """Return the gangs whose reservations are active."""
    index, known = planner.term.view.reservation_index, planner.term.view.reservations
    return [known[uid].spec.gang for uid in index.active]


def test_running_gangs_are_parked() -> None:
    server = ApiServer()
    planner = FakePlanner(server)
    for name in "abc":
        running(server, planner, name, 1)
    assert active_gangs(planner) == []

    server.create_pod("d", 1, "d", 1)
    planner.run()

    assert active_gangs(planner) == ["d"]


def test_a_reservation_is_active_while_a_member_changes() -> None:
    server = ApiServer()
    planner = FakePlanner(server)
    first, _ = running(server, planner, "a")
    running(server, planner, "b", 1)

    server.delete_pod(first)
    planner.apply_events()
    assert active_gangs(planner) == ["a"]
    planner.run()

    assert active_gangs(planner) == []


def test_a_reservation_is_removed_with_the_last_member() -> None:
    server = ApiServer()
    planner = FakePlanner(server)
    for uid in running(server, planner, "a"):
        server.delete_pod(uid)

    planner.run()

    assert (server.reservations, active_gangs(planner)) == ({}, [])
    assert planner.term.view.reservation_index.seats((GangName(SPACE, "a"),)) == {}


def test_the_places_of_a_gang_are_found_by_its_name() -> None:
    server = ApiServer()
    planner = FakePlanner(server)
    uids = running(server, planner, "a")
    running(server, planner, "b", 1)

    assert list(planner.term.view.reservation_index.seats((GangName(SPACE, "a"), GangName(SPACE, "nobody")))) == uids


def test_a_deleted_reservation_is_forgotten_and_others_of_its_gang_stay_parked() -> None:
    server = ApiServer()
    planner = FakePlanner(server)
    first, _ = running(server, planner, "a")
    server.delete_pod(first)
    late = server.create_pod("a", 1, "a", 2)
    planner.run()
    old, new = (each.key for each in server.reservations.values())
    server.bind(late, server.reservations[new].spec.seats[0].node or "")
    planner.run()

    server.delete_reservation(old)
    planner.apply_events()

    assert (list(planner.term.view.reservations), active_gangs(planner)) == ([new], [])
    server.delete_reservation(new)
    planner.apply_events()
    assert planner.term.view.reservation_index.seats((GangName(SPACE, "a"),)) == {}


def test_a_gang_activates_reservations_of_members_that_joined_it() -> None:
    planned_nodes = plan("llm-1", {"w-0": ("n1", 1)})
    people = {"uid-w-0": member("w-0", BOUND, gang=GangName("team", "other"))}
    index = GangReservationIndex({planned_nodes.key: planned_nodes}, people.get)
    index.update_reservations([planned_nodes.key])
    index.park([planned_nodes.key])
    assert list(index.active) == []
    index.mark_gangs_dirty([GangName("team", "other")])
    assert list(index.active) == [planned_nodes.key]

    index.park([planned_nodes.key])
    people.clear()
    index.update_reservations([planned_nodes.key])
    index.park([planned_nodes.key])
    index.mark_gangs_dirty([GangName("team", "other")])

    assert list(index.active) == []
    index.mark_gangs_dirty([LLM])
    assert list(index.active) == [planned_nodes.key]


def test_a_changed_gang_size_activates_its_reservation() -> None:
    server = ApiServer()
    planner = FakePlanner(server)
    running(server, planner, "a")
    assert active_gangs(planner) == []

    touched = planner.term.view.apply_batch(
        Batch(JobSizes, (DeclaredSizes("job", (DeclaredSize(GangName(SPACE, "a"), 3, 1),)),)), 0.0
    )

    assert (set(touched), active_gangs(planner)) == ({GangName(SPACE, "a")}, ["a"])


def test_a_restored_plan_is_indexed_until_both_copies_are_gone() -> None:
    first = plan("llm-1", {"w-0": ("n1", 1)})
    again = first._replace(key="uid-again")
    there = {each.key: each for each in (first, again)}
    index = GangReservationIndex(there, lambda _: None)
    index.update_reservations(there)

    del there[first.key]
    index.update_reservations([first.key])
    assert ("team", "llm-1") in index.plans
    del there[again.key]
    index.update_reservations([again.key])

    assert ("team", "llm-1") not in index.plans
