"""What a round looks at: what is open, however many gangs run."""

from __future__ import annotations

from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.gang import DeclaredSize, DeclaredSizes
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.size_sources import JobSizes
from scheduler_core.planner.leader.reservation_index import GangReservationIndex
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer
from tests.scheduler_core.planner.gang.gang_pods import BOUND, LLM, member
from tests.scheduler_core.planner.leader.fake_planner import Desk
from tests.scheduler_core.planner.packing.plans import plan


def running(server: ApiServer, desk: Desk, name: str, size: int = 2) -> list[str]:
    """UIDs of a gang whose members all have their nodes."""
    uids = [server.create_pod(name, 1, name, size) for _ in range(size)]
    desk.run()
    (plan,) = (each for each in server.reservations.values() if each.spec.gang == name)
    for seat in plan.spec.seats:
        server.bind(seat.uid, seat.node or "")
    desk.run()
    return uids


def awake(desk: Desk) -> list[str]:
    """The gangs whose reservations the next round looks at."""
    shelf, known = desk.term.view.reservation_index, desk.term.view.reservations
    return [known[uid].spec.gang for uid in shelf.active]


def test_gangs_that_run_are_not_looked_at_again() -> None:
    server = ApiServer()
    desk = Desk(server)
    for name in "abc":
        running(server, desk, name, 1)
    assert awake(desk) == []

    server.create_pod("d", 1, "d", 1)
    desk.run()

    assert awake(desk) == ["d"]


def test_one_of_whose_members_goes_is_looked_at_again_and_rests_again() -> None:
    server = ApiServer()
    desk = Desk(server)
    first, _ = running(server, desk, "a")
    running(server, desk, "b", 1)

    server.delete_pod(first)
    desk.hear()
    assert awake(desk) == ["a"]
    desk.run()

    assert awake(desk) == []


def test_a_reservation_goes_with_the_last_member() -> None:
    server = ApiServer()
    desk = Desk(server)
    for uid in running(server, desk, "a"):
        server.delete_pod(uid)

    desk.run()

    assert (server.reservations, awake(desk)) == ({}, [])
    assert desk.term.view.reservation_index.seats((GangName(SPACE, "a"),)) == {}


def test_the_seats_of_a_gang_are_found_by_its_name() -> None:
    server = ApiServer()
    desk = Desk(server)
    uids = running(server, desk, "a")
    running(server, desk, "b", 1)

    assert list(desk.term.view.reservation_index.seats((GangName(SPACE, "a"), GangName(SPACE, "nobody")))) == uids


def test_one_that_somebody_deletes_is_forgotten_and_others_of_its_gang_rest_on() -> None:
    server = ApiServer()
    desk = Desk(server)
    first, _ = running(server, desk, "a")
    server.delete_pod(first)
    late = server.create_pod("a", 1, "a", 2)
    desk.run()
    old, new = (each.key for each in server.reservations.values())
    server.bind(late, server.reservations[new].spec.seats[0].node or "")
    desk.run()

    server.delete_reservation(old)
    desk.hear()

    assert (list(desk.term.view.reservations), awake(desk)) == ([new], [])
    server.delete_reservation(new)
    desk.hear()
    assert desk.term.view.reservation_index.seats((GangName(SPACE, "a"),)) == {}


def test_one_whose_member_went_to_another_gang_is_woken_by_that_one_as_long_as_it_is_there() -> None:
    seated = plan("llm-1", {"w-0": ("n1", 1)})
    people = {"uid-w-0": member("w-0", BOUND, gang=GangName("team", "other"))}
    shelf = GangReservationIndex({seated.key: seated}, people.get)
    shelf.update_reservations([seated.key])
    shelf.park([seated.key])
    assert list(shelf.active) == []
    shelf.mark_gangs_dirty([GangName("team", "other")])
    assert list(shelf.active) == [seated.key]

    shelf.park([seated.key])
    people.clear()
    shelf.update_reservations([seated.key])
    shelf.park([seated.key])
    shelf.mark_gangs_dirty([GangName("team", "other")])

    assert list(shelf.active) == []
    shelf.mark_gangs_dirty([LLM])
    assert list(shelf.active) == [seated.key]


def test_one_whose_gang_is_said_to_be_larger_is_looked_at_again() -> None:
    server = ApiServer()
    desk = Desk(server)
    running(server, desk, "a")
    assert awake(desk) == []

    touched = desk.term.view.apply_batch(
        Batch(JobSizes, (DeclaredSizes("job", (DeclaredSize(GangName(SPACE, "a"), 3, 1),)),)), 0.0
    )

    assert (set(touched), awake(desk)) == ({GangName(SPACE, "a")}, ["a"])


def test_a_plan_that_was_written_again_is_there_until_both_are_gone() -> None:
    first = plan("llm-1", {"w-0": ("n1", 1)})
    again = first._replace(key="uid-again")
    there = {each.key: each for each in (first, again)}
    shelf = GangReservationIndex(there, lambda _: None)
    shelf.update_reservations(there)

    del there[first.key]
    shelf.update_reservations([first.key])
    assert ("team", "llm-1") in shelf.plans
    del there[again.key]
    shelf.update_reservations([again.key])

    assert ("team", "llm-1") not in shelf.plans
