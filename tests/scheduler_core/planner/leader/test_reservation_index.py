"""A round checks open reservations only, however many gangs run."""

from __future__ import annotations

from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.gang import DeclaredSize, DeclaredSizes
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.size_sources import JobSizes
from scheduler_core.planner.leader.reservation_index import GangReservationIndex
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer, pinned
from tests.scheduler_core.planner.gang.gang_pods import LLM
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

    late = server.create_pod("d", 1, "d", 1)
    planner.run()
    server.bind(late, pinned(server.pods[late]) or "")
    planner.apply_events()

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


def test_pods_and_gangs_activate_their_reservations() -> None:
    of_gang = plan("llm-1", {"w-0": ("n1", 1), "w-1": ("n2", 1)})
    again, single = plan("llm-2", {"w-1": ("n3", 1)}), plan("pods-1", {"x": ("n4", 1)}, gang="")
    known = {each.key: each for each in (of_gang, again, single)}
    index = GangReservationIndex(known)
    index.update_reservations(known)

    def active_after(pods: tuple[str, ...] = (), gangs: tuple[GangName, ...] = ()) -> list[str]:
        index.park(known)
        assert list(index.active) == []
        index.mark_pods_dirty(pods)
        index.mark_gangs_dirty(gangs)
        return sorted(index.active)

    assert active_after(pods=("uid-w-0",)) == [of_gang.key]
    assert active_after(pods=("uid-w-1", "uid-stranger")) == [of_gang.key, again.key]
    assert active_after(pods=("uid-x",)) == [single.key]
    assert active_after(gangs=(LLM, GangName("team", "other"))) == [of_gang.key, again.key]

    del known[of_gang.key]
    index.update_reservations([of_gang.key])

    assert (active_after(pods=("uid-w-0",)), active_after(pods=("uid-w-1",))) == ([], [again.key])
    assert active_after(gangs=(LLM,)) == [again.key]


def test_a_reservation_with_another_plan_is_indexed_again() -> None:
    first = plan("llm-1", {"w-0": ("n1", 1)})
    known = {first.key: first}
    index = GangReservationIndex(known)
    index.update_reservations(known)
    index.park(known)

    known[first.key] = plan("llm-1", {"w-1": ("n1", 1)})
    index.update_reservations(known)

    assert list(index.active) == [first.key]
    index.park(known)
    index.mark_pods_dirty(["uid-w-0"])
    assert list(index.active) == []
    index.mark_pods_dirty(["uid-w-1"])
    assert list(index.active) == [first.key]


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
    index = GangReservationIndex(there)
    index.update_reservations(there)

    del there[first.key]
    index.update_reservations([first.key])
    assert ("team", "llm-1") in index.plans
    del there[again.key]
    index.update_reservations([again.key])

    assert ("team", "llm-1") not in index.plans


def test_capacity_holds_are_listed_until_they_are_removed() -> None:
    hold, placed = plan("hold-1", held={"n1": 4}), plan("llm-1", {"w-0": ("n1", 1)})
    known = {each.key: each for each in (hold, placed)}
    index = GangReservationIndex(known)
    index.update_reservations(known)
    assert list(index.holds) == [hold.key]

    known.clear()
    index.update_reservations([hold.key, placed.key])

    assert list(index.holds) == []
