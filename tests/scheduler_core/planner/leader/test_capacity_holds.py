"""Room that is held for gangs that do not fit, from the term that asks for it to the ledger that lists it."""

from __future__ import annotations

from itertools import pairwise

from gputopo.crd.reservations import EntryPhase, ExtenderAck, Holding, ReservationState, ReservationStatus
from gputopo.labels import keys
from scheduler_core.cache.events import Batch, NodeUpdate
from scheduler_core.planner.commit.actions import WriteStatus
from scheduler_core.planner.commit.pod_patches import ungate_patch
from scheduler_core.planner.commit.reconcile import BLOCKED_S
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.pod_deadlines import PodDeadline
from scheduler_core.planner.leader.capacity_holds import AWAY_S, ESTIMATE_S, RETRY_S, SOON_S
from scheduler_core.planner.leader.hold_search import HoldTask, search_hold
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.view import TRY_S
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer
from tests.scheduler_core.planner.leader.fake_planner import Desk

HELD, PROPOSED, COMMITTED = EntryPhase


def busy(**gpus: int) -> tuple[ApiServer, dict[str, str]]:
    """Nodes n0 and n1 of two GPUs each, of which pods that nobody gated hold so many; the pods by their nodes."""
    server = ApiServer({"n0": 2, "n1": 2})
    pods = {node: server.create_pod(f"on-{node}", number) for node, number in gpus.items() if number}
    for node, uid in pods.items():
        server.bind(uid, node)
    return server, pods


def gang(server: ApiServer, name: str, size: int, gpus: int, priority: int = 0) -> list[str]:
    """A gang that has waited for longer than anybody's patience."""
    pods = [server.create_pod(name, gpus, name, size) for _ in range(size)]
    for uid in pods:
        version = server.pods[uid]["metadata"]["resourceVersion"]
        server.patch_pod({"metadata": {"uid": uid, "resourceVersion": version}, "spec": {"priority": priority}})
    return pods


def held(server: ApiServer) -> dict[str, tuple[Holding, ...]]:
    """What the ledger holds, by gang."""
    assert server.ledger is not None
    listed = [server.reservations[each.uid] for each in server.ledger.spec.entries if each.phase is HELD]
    assert len({each.spec.gang for each in listed}) == len(listed)
    return {each.spec.gang: each.spec.held for each in listed}


def states(server: ApiServer) -> dict[str, ReservationState | None]:
    """Of all reservations, by gang."""
    return {each.spec.gang: each.status.state for each in server.reservations.values()}


def planned(server: ApiServer, name: str) -> set[str | None]:
    """Where the members of a gang are to go."""
    found = [each for each in server.reservations.values() if each.spec.gang == name]
    return {seat.node for each in found for seat in each.spec.seats}


def finish(server: ApiServer, *uids: str) -> None:
    """Those pods have done their work and are gone."""
    for uid in uids:
        server.delete_pod(uid)


def test_room_is_held_for_a_gang_that_has_waited_long_enough() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)

    Desk(server).run()

    assert held(server) == {"big": (Holding("n0", 2), Holding("n1", 2))}
    (hold,) = server.reservations.values()
    assert hold.status == ReservationStatus(
        ReservationState.HELD,
        "does not fit yet; what becomes free on n0 and 1 more is held: when their pods end nobody can say",
        members=2,
        nodes=2,
        gpus=4,
    )


def test_nothing_is_held_for_one_that_has_not() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)

    Desk(server, pace=QueueTiming(patience_s=1e9)).run()

    assert (held(server), states(server)) == ({}, {})


def test_nothing_is_held_for_one_that_is_too_large_for_the_cluster() -> None:
    server, _ = busy(n0=1)
    gang(server, "huge", 3, 2)
    desk = Desk(server)
    desk.run()
    desk.run()

    assert (held(server), states(server)) == ({}, {})


def test_only_as_much_of_a_node_is_held_as_the_gang_will_take() -> None:
    server, pods = busy(n0=2, n1=2)
    gang(server, "big", 3, 1)
    desk = Desk(server)
    desk.run()
    assert held(server) == {"big": (Holding("n0", 2), Holding("n1", 1))}

    gang(server, "small", 1, 1)
    finish(server, pods["n1"])
    desk.run()

    assert planned(server, "small") == {"n1"}
    assert desk.term.view.cache.table.states["n1"].free_devices("nvidia.com/gpu") == 0
    assert list(held(server)) == ["big"]


def test_smaller_gangs_go_around_what_is_held() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 1, 2)
    desk = Desk(server)
    desk.run()
    assert held(server) == {"big": (Holding("n0", 2),)}

    gang(server, "small", 1, 1)
    desk.run()
    assert (planned(server, "small"), list(held(server))) == (set(), ["big"])
    finish(server, pods["n0"])
    desk.run()

    assert (planned(server, "big"), planned(server, "small")) == ({"n0"}, set())


def test_a_hold_and_the_places_that_follow_it_are_exchanged_in_one_write() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    desk = Desk(server)
    desk.run()
    (uid,) = server.reservations
    before = len(desk.ledgers)
    finish(server, *pods.values())
    desk.run()

    first, *_ = desk.ledgers[before:]
    assert [(each.phase, each.uid == uid) for each in first] == [(COMMITTED, False)]
    assert uid not in server.reservations
    assert planned(server, "big") == {"n0", "n1"}


def test_capacity_elsewhere_is_taken_and_the_hold_ends() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 1, 2)
    desk = Desk(server)
    desk.run()
    assert held(server) == {"big": (Holding("n0", 2),)}

    finish(server, pods["n1"])
    desk.run()

    assert (planned(server, "big"), held(server)) == ({"n1"}, {})


def test_when_its_members_go_the_hold_ends() -> None:
    server, _ = busy(n0=1, n1=2)
    members = gang(server, "big", 2, 2)
    desk = Desk(server)
    desk.run()

    finish(server, *members)
    desk.run()

    assert (held(server), server.reservations) == ({}, {})


def test_a_member_that_is_made_again_finds_its_hold() -> None:
    server, _ = busy(n0=1, n1=2)
    members = gang(server, "big", 2, 2)
    desk = Desk(server)
    desk.run()
    before = held(server)

    finish(server, members[0])
    desk.run()
    assert held(server) == before
    desk.now += AWAY_S
    desk.run()
    assert held(server) == {}


def test_a_hold_moves_when_its_node_is_lost() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 1, 2)
    desk = Desk(server)
    desk.run()
    before = len(desk.ledgers)

    desk.term.apply_batch(Batch(NodeUpdate, (), ("n0",)))
    desk.run()

    assert held(server) == {"big": (Holding("n1", 2),)}
    assert [[each.phase for each in entries] for entries in desk.ledgers[before:]] == [[HELD]]
    assert list(states(server).values()) == [ReservationState.HELD]


def test_a_hold_that_can_be_nowhere_any_more_ends() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    desk = Desk(server)
    desk.run()

    desk.term.apply_batch(Batch(NodeUpdate, (), ("n0",)))
    desk.run()

    assert held(server) == {}


def test_each_priority_has_a_hold_of_its_own_and_the_higher_goes_first() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "low", 1, 2)
    desk = Desk(server)
    desk.run()
    assert held(server) == {"low": (Holding("n0", 2),)}

    gang(server, "high", 1, 2, priority=9)
    gang(server, "second", 1, 2, priority=9)
    desk.run()
    desk.now += SOON_S
    desk.run()
    assert held(server) == {"high": (Holding("n0", 2),), "low": (Holding("n1", 2),)}

    finish(server, pods["n0"])
    desk.run()
    assert planned(server, "high") == {"n0"}
    assert held(server) == {"second": (Holding("n0", 2),), "low": (Holding("n1", 2),)}


def test_a_small_gang_of_a_higher_priority_takes_no_heed_of_a_hold() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    desk = Desk(server)
    desk.run()

    gang(server, "urgent", 1, 1, priority=9)
    desk.run()

    assert planned(server, "urgent") == {"n0"}
    assert list(held(server)) == ["big"]


def test_a_successor_goes_on_with_what_is_held() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    Desk(server).run()
    before = dict(server.reservations)

    successor = Desk(server, "two")
    successor.run()

    assert {uid: each.spec for uid, each in server.reservations.items()} == {
        uid: each.spec for uid, each in before.items()
    }
    assert list(held(server)) == ["big"]


def test_the_estimate_follows_the_deadlines_of_the_pods_that_are_there() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    desk = Desk(server)
    desk.run()
    ends = {pods["n0"]: 1_800_000_000.0, pods["n1"]: 1_800_003_600.0}
    desk.term.view.deadlines.apply_pod_deadlines(Batch(PodDeadline, tuple(PodDeadline(*each) for each in ends.items())))
    desk.now += ESTIMATE_S
    desk.run()

    (hold,) = server.reservations.values()
    assert hold.status.estimate == "2027-01-15T09:00:00Z"
    assert hold.status.reason == (
        "does not fit yet; what becomes free on n0 and 1 more is held: their pods end by 2027-01-15T09:00:00Z"
    )
    before = len(desk.writes)
    desk.run()
    assert desk.writes[before:] == []


def test_what_became_of_a_gang_is_worked_out_once_for_all_that_happened_since_the_last_round() -> None:
    server = ApiServer({"n0": 2, "n1": 2})
    desk = Desk(server)
    desk.run()

    gang(server, "big", 4, 1)
    desk.hear()
    assert desk.term.backlog.queue.ordered() == ()
    desk.term.run_round()
    assert [each.gang.name.name for each in desk.term.backlog.queue.ordered()] == ["big"]


def test_people_are_told_of_a_hold_once() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    desk = Desk(server)
    desk.run()

    assert [each.status.state for each in desk.writes if isinstance(each, WriteStatus)] == [ReservationState.HELD]
    assert [each.namespace for each in server.reservations.values()] == [SPACE]


MIXED = CommitTerms(settle_s=0.0)


def says(server: ApiServer, *blocked: str) -> None:
    """The extender has taken in all that there will be, and vouches for all but those."""
    server.apply("extender", ExtenderAck(generation=1_000_000, blocked=blocked))


def proposal(server: ApiServer) -> str:
    """The UID of what is proposed."""
    assert server.ledger is not None
    (found,) = [each.uid for each in server.ledger.spec.entries if each.phase is PROPOSED]
    return found


def test_what_is_held_stays_so_until_the_places_are_committed() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    desk = Desk(server, terms=MIXED)
    desk.run()
    assert held(server) == {"big": (Holding("n0", 2), Holding("n1", 2))}
    before = len(desk.ledgers)

    finish(server, *pods.values())
    desk.run()
    says(server)
    desk.run()

    assert [[each.phase for each in entries] for entries in desk.ledgers[before:]] == [[HELD, PROPOSED], [COMMITTED]]
    assert planned(server, "big") == {"n0", "n1"}


def test_a_proposal_that_is_in_the_way_of_others_falls_back_to_what_is_held() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    desk = Desk(server, terms=MIXED)
    desk.run()
    before = len(desk.ledgers)

    finish(server, *pods.values())
    desk.run()
    says(server, proposal(server))
    desk.now += BLOCKED_S
    desk.run()

    first, second, *_ = [[each.phase for each in entries] for entries in desk.ledgers[before:]]
    assert [first, second] == [[HELD, PROPOSED], [HELD]]
    assert held(server) == {"big": (Holding("n0", 2), Holding("n1", 2))}
    says(server)
    desk.now += TRY_S
    desk.run()
    assert (planned(server, "big"), held(server)) == ({"n0", "n1"}, {})


def test_a_smaller_gang_goes_around_what_is_held_while_a_proposal_waits() -> None:
    server, pods = busy(n0=2, n1=1)
    gang(server, "big", 1, 2)
    desk = Desk(server, terms=MIXED)
    desk.run()
    assert held(server) == {"big": (Holding("n1", 2),)}

    finish(server, pods["n0"])
    desk.run()
    gang(server, "small", 1, 1)
    desk.run()

    assert (planned(server, "big"), planned(server, "small")) == ({"n0"}, set())
    says(server)
    desk.run()
    assert planned(server, "small") == {"n1"}


def single(server: ApiServer, name: str, gpus: int, priority: int = 0) -> str:
    """A pod of its own that waits for the planner."""
    uid = server.create_pod(name, gpus)
    server.pods[uid]["spec"] |= {"schedulingGates": [{"name": keys.GATE}], "priority": priority}
    return uid


def seated(server: ApiServer) -> dict[str, str | None]:
    """Where pods are to go, by their UIDs."""
    return {seat.uid: seat.node for each in server.reservations.values() for seat in each.spec.seats}


def test_room_is_held_for_a_single_pod_too_and_exchanged_for_its_place_in_one_write() -> None:
    server, pods = busy(n0=1, n1=2)
    large = single(server, "large", 2)
    desk = Desk(server)
    desk.run()
    assert held(server) == {f"pod.{large}": (Holding("n0", 2),)}
    (hold,) = server.reservations.values()
    assert hold.name.startswith(f"large-{large}-")
    before = len(desk.ledgers)

    small = single(server, "small", 1)
    finish(server, pods["n0"])
    desk.run()

    assert [each.phase for each in desk.ledgers[before]] == [COMMITTED]
    assert seated(server) == {large: "n0"}
    finish(server, pods["n1"])
    desk.run()
    assert seated(server) == {large: "n0", small: "n1"}


def test_a_single_pod_that_is_released_holds_nothing_any_more() -> None:
    server, _ = busy(n0=1, n1=2)
    uid = single(server, "large", 2)
    desk = Desk(server)
    desk.run()
    assert list(held(server)) == [f"pod.{uid}"]

    (member,) = desk.term.view.gang_members.live_members()
    server.patch_pod(ungate_patch(member))
    desk.run()

    assert held(server) == {}


def test_one_for_which_there_is_no_room_whoever_ends_leaves_its_turn_to_the_next() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "a-huge", 3, 2)
    gang(server, "b-big", 2, 2)
    desk = Desk(server)

    desk.run()

    assert list(held(server)) == ["b-big"]


def test_room_is_sought_less_often_the_more_often_that_was_in_vain() -> None:
    server, _ = busy(n0=1)
    gang(server, "huge", 3, 2)
    desk, asked = Desk(server), list[float]()
    seek = desk.start_hold_search

    def hold(task: HoldTask) -> None:
        asked.append(desk.now)
        seek(task)

    desk.start_hold_search = hold  # type: ignore[method-assign]
    for _ in range(60):
        desk.now += 8
        desk.run()

    between = [round(later - sooner) for sooner, later in pairwise(asked)]
    assert [RETRY_S * 2**times <= each < RETRY_S * 2**times + 12 for times, each in enumerate(between)] == [True] * 4


def test_others_are_planned_while_room_is_sought() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    desk, jobs = Desk(server), list[HoldTask]()
    desk.start_hold_search = jobs.append  # type: ignore[method-assign,assignment]
    desk.run()
    gang(server, "small", 1, 1)
    desk.run()
    assert (planned(server, "small"), len(jobs)) == ({"n0"}, 1)

    finish(server, *pods.values(), *(seat.uid for each in server.reservations.values() for seat in each.spec.seats))
    desk.run()
    assert planned(server, "big") == {"n0", "n1"}
    desk.term.apply_hold_result(search_hold(jobs[0]))
    desk.run()

    assert (held(server), list(states(server))) == ({}, ["big"])
