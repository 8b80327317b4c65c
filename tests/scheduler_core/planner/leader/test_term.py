"""A term of leadership when writes are not done, or come to nothing."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.crd.reservations import ReservationState
from gputopo.labels import keys
from gputopo.labels.reasons import Reason
from scheduler_core.cache.events import WatchStatus
from scheduler_core.planner.commit.actions import (
    Action,
    CreateReservation,
    DeletePod,
    StripFinalizer,
    TouchPod,
    UngateAndPin,
    WriteLedger,
)
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.freshness import MAX_WRITE_LAG_S, RECOVERY_S
from scheduler_core.planner.leader.writer import WriteOutcome
from tests.scheduler_core.planner.commit.apiserver import ApiServer, pinned
from tests.scheduler_core.planner.leader.fake_planner import Desk


def gang(server: ApiServer, name: str, size: int = 2, gpus: int = 1) -> list[str]:
    """UIDs of its members."""
    return [server.create_pod(name, gpus, name, size) for _ in range(size)]


def planned(server: ApiServer) -> list[str]:
    """Gangs that have a reservation."""
    return sorted(each.spec.gang for each in server.reservations.values())


def reservations_of(desk: Desk, name: str) -> int:
    """How often one was asked for."""
    return sum(isinstance(each, CreateReservation) and each.spec.gang == name for each in desk.writes)


def refusing(name: str, outcome: WriteOutcome) -> Desk:
    """A planner whose API server takes no reservation of that gang; another is behind it."""
    server = ApiServer()
    gang(server, "a")
    gang(server, "b")
    desk = Desk(server)

    def refuses(what: Action) -> WriteOutcome | None:
        return outcome if isinstance(what, CreateReservation) and what.spec.gang == name else None

    desk.refuses = refuses
    return desk


@pytest.mark.parametrize(
    "outcome", [WriteOutcome.REFUSED, WriteOutcome.CONFLICT, WriteOutcome.GONE], ids=lambda each: each.value
)
def test_a_gang_whose_reservation_is_refused_lets_the_next_pass_and_is_tried_again_later(outcome: WriteOutcome) -> None:
    desk = refusing("a", outcome)

    desk.run()
    assert (planned(desk.server), reservations_of(desk, "a")) == (["b"], 1)
    assert [(each.reason, each.message) for each in desk.told if each.reason == "GangUnplaced"] == [
        ("GangUnplaced", "gang a: the API server does not take its reservation: it is refused")
    ]
    desk.refuses = lambda _: None
    desk.now += 10
    desk.run()
    assert (planned(desk.server), reservations_of(desk, "a")) == (["a", "b"], 2)


def single(server: ApiServer, name: str) -> str:
    """The UID of a pod that is to be planned by itself."""
    uid = server.create_pod(name, 1, name, 1)
    server.pods[uid]["metadata"]["annotations"] = {keys.POD_PLANNED.key: "true"}
    return uid


def test_single_pods_whose_reservation_is_refused_wait_as_well() -> None:
    server = ApiServer()
    uids = {single(server, "one"), single(server, "two")}
    desk = Desk(server)
    desk.refuses = lambda what: WriteOutcome.REFUSED if isinstance(what, CreateReservation) else None

    desk.run()

    waiting = desk.term.backlog.queue.ordered()
    assert {(each.gang.ready[0].uid, each.rollbacks) for each in waiting} == {(uid, 1) for uid in uids}


def test_of_single_pods_that_fit_nowhere_each_is_told_what_it_lacks() -> None:
    server = ApiServer({"n0": 0})
    uids = [single(server, "one"), single(server, "two")]
    desk = Desk(server)

    desk.run()

    assert {(each.uid, each.message) for each in desk.told} == {
        (uid, f"no member fits at once; {server.pods[uid]['metadata']['name']}: {Reason.TOO_FEW_GPUS.value}")
        for uid in uids
    }


def states(server: ApiServer) -> list[ReservationState | None]:
    """Of all reservations."""
    return [each.status.state for each in server.reservations.values()]


def test_a_gang_that_was_bound_while_the_watches_were_silent_is_not_taken_back() -> None:
    server = ApiServer()
    uids = gang(server, "a", 3)
    desk = Desk(server)
    desk.run()
    (plan,) = server.reservations.values()
    nodes = {seat.uid: seat.node or "" for seat in plan.spec.seats}
    server.bind(uids[0], nodes[uids[0]])
    desk.run()

    desk.deaf = True
    for uid in uids[1:]:
        server.bind(uid, nodes[uid])
    desk.now += 31
    desk.run()
    assert (states(server), set(server.pods)) == ([ReservationState.COMMITTED], set(uids))
    desk.deaf = False
    desk.now += 2
    desk.run()
    assert (states(server), set(server.pods)) == ([ReservationState.BOUND], set(uids))
    assert not any(isinstance(each, DeletePod) for each in desk.writes)


def let_go(server: ApiServer, uids: list[str]) -> list[bool]:
    """Which of those pods have no gate any more."""
    return [not server.pods[uid]["spec"]["schedulingGates"] for uid in uids]


def test_while_the_watches_are_silent_nothing_is_planned_and_what_is_committed_goes_on() -> None:
    server = ApiServer()
    first = gang(server, "a")
    desk = Desk(server)
    desk.refuses = lambda what: WriteOutcome.CONFLICT if isinstance(what, UngateAndPin) else None
    desk.run()
    assert (states(server), let_go(server, first)) == ([ReservationState.COMMITTED], [False, False])

    desk.watches = (WatchStatus("nodes", True, 121.0, 0, 0, None, None),)
    desk.refuses = lambda _: None
    second = gang(server, "b")
    desk.now += 2
    desk.run()
    assert (planned(server), let_go(server, first), let_go(server, second)) == (["a"], [True, True], [False, False])

    desk.watches = ()
    for _ in range(int(RECOVERY_S) + 1):
        desk.run()
    assert (planned(server), let_go(server, second)) == (["a", "b"], [True, True])


def test_a_planner_that_does_not_see_what_it_wrote_plans_nothing() -> None:
    server = ApiServer()
    gang(server, "a", 1)
    desk = Desk(server)
    desk.refuses = lambda what: WriteOutcome.CONFLICT if isinstance(what, UngateAndPin) else None
    desk.run()
    desk.refuses = lambda _: None

    desk.deaf = True
    desk.now += 2
    desk.run()  # it is let go
    assert desk.term.freshness.stale_reason is None
    desk.now += MAX_WRITE_LAG_S
    desk.run()
    assert desk.term.freshness.stale_reason == "no watch has shown what gputopo wrote 33 s ago"


def test_a_gang_that_is_late_is_taken_back() -> None:
    server = ApiServer()
    uids = gang(server, "a", 2)
    desk = Desk(server)
    desk.run()

    desk.now += 31
    desk.run()

    assert [each.member.uid for each in desk.writes if isinstance(each, DeletePod)] == uids


HOUR = pytest.mark.parametrize("step", [3600.0, -3600.0], ids=["an hour ahead", "an hour back"])


@HOUR
def test_a_wall_clock_that_is_set_takes_nobody_back(step: float) -> None:
    server = ApiServer()
    gang(server, "a")
    desk = Desk(server)
    desk.run()

    desk.wrong_s = step
    desk.run()
    assert states(server) == [ReservationState.COMMITTED]
    desk.now += 31
    desk.run()
    assert (states(server), desk.term.backlog.queue.mark_rolled_back(GangName("team", "a"), 0.0)) == ([], 20.0)


@HOUR
def test_a_wall_clock_that_is_set_makes_no_back_off_longer_or_shorter(step: float) -> None:
    server = ApiServer()
    gang(server, "a")
    desk = Desk(server)
    desk.run()
    desk.now += 31
    desk.run()

    desk.wrong_s = step
    gang(server, "a")
    desk.run()
    assert planned(server) == []
    desk.now += 10
    desk.run()
    assert planned(server) == ["a"]


@HOUR
def test_by_a_wall_clock_that_is_wrong_nobody_is_released_before_its_time(step: float) -> None:
    server = ApiServer({"n0": 2})
    desk = Desk(server, release_after_s=60.0)
    desk.wrong_s = step
    uids = gang(server, "a", 3)
    desk.run()
    assert let_go(server, uids) == [False] * 3

    desk.now += 60
    desk.run()
    assert let_go(server, uids) == [True] * 3


def test_nodes_that_were_reached_in_vain_are_avoided_though_all_its_pods_were_made_again() -> None:
    server = ApiServer()
    gang(server, "a", 2)
    desk = Desk(server)
    desk.run()
    (first,) = server.reservations.values()
    desk.now += 31
    desk.run()
    assert (server.pods, server.reservations) == ({}, {})

    gang(server, "a", 2)
    desk.now += 11
    desk.run()

    (second,) = server.reservations.values()
    assert not {seat.node for seat in first.spec.seats} & {seat.node for seat in second.spec.seats}


def test_where_one_namespace_is_not_answered_others_go_on() -> None:
    desk = refusing("a", WriteOutcome.UNANSWERED)

    desk.run()
    assert (planned(desk.server), reservations_of(desk, "a")) == (["b"], 1)
    desk.refuses = lambda _: None
    desk.now += 10
    desk.run()
    assert planned(desk.server) == ["a", "b"]


def test_a_member_whose_patch_is_not_answered_is_let_go_later_and_its_siblings_now() -> None:
    server = ApiServer()
    first, second = gang(server, "a", 2)
    desk = Desk(server)
    desk.refuses = lambda what: (
        WriteOutcome.UNANSWERED if isinstance(what, UngateAndPin) and what.member.uid == first else None
    )
    desk.run()
    assert [bool(server.pods[uid]["spec"]["schedulingGates"]) for uid in (first, second)] == [True, False]
    desk.refuses = lambda _: None
    desk.now += 2
    desk.run()
    assert server.pods[first]["spec"]["schedulingGates"] == []


def test_where_the_ledger_is_not_answered_nothing_is_asked_for_a_while_and_then_for_longer() -> None:
    server = ApiServer()
    desk = Desk(server)
    desk.run()
    gang(server, "a", 2)
    asked: list[float] = []

    def refuses(what: Action) -> WriteOutcome | None:
        if what.key[0] != "ledger" or len(asked) == 4:
            return None
        asked.append(desk.now)
        return WriteOutcome.UNANSWERED

    desk.refuses = refuses
    desk.run()

    assert [at - asked[0] for at in asked] == [0, 1, 2, 3]
    desk.now += 2
    desk.run()
    assert states(server) == [ReservationState.COMMITTED]


def test_a_ledger_that_was_not_written_as_the_lease_was_lost_for_a_moment_is_not_taken_for_gone() -> None:
    server = ApiServer()
    gang(server, "a")
    desk = Desk(server)
    lost = iter([WriteOutcome.DEPOSED])
    desk.refuses = lambda what: next(lost, None) if isinstance(what, WriteLedger) else None

    desk.run()
    desk.now += 2
    desk.run()

    assert (desk.term.is_deposed, states(server)) == (False, [ReservationState.COMMITTED])


def test_a_gang_whose_pods_may_not_be_patched_gives_up_its_room_and_lets_others_pass() -> None:
    server = ApiServer({"n0": 2})
    uids = gang(server, "a", 2)
    desk = Desk(server)

    def refuses(what: Action) -> WriteOutcome | None:
        return WriteOutcome.REFUSED if isinstance(what, UngateAndPin | TouchPod) and what.member.uid in uids else None

    desk.refuses = refuses
    desk.run()
    (plan,) = server.reservations.values()
    assert [each.message for each in desk.told if each.reason == "GangNotLetGo"] == [
        f"reservation {plan.name}: the API server does not let it go: it is refused"
    ] * 2
    gang(server, "b", 2)
    desk.now += 31
    desk.run()
    assert planned(server) == []
    desk.now += 31  # what was struck may have been bound a moment ago
    desk.run()

    assert planned(server) == ["b"]


def test_where_there_are_no_other_nodes_those_reached_in_vain_are_tried_again() -> None:
    server = ApiServer({"n0": 2})
    gang(server, "a", 2)
    desk = Desk(server)
    desk.run()
    desk.now += 31
    desk.run()
    assert server.pods == {}

    gang(server, "a", 2)
    desk.now += 11
    desk.run()

    assert planned(server) == ["a"]


def end(server: ApiServer, uid: str) -> None:
    """Its deletion has begun."""
    version = server.pods[uid]["metadata"]["resourceVersion"]
    ends = {"uid": uid, "resourceVersion": version, "deletionTimestamp": "2026-11-21T22:30:00Z"}
    server.patch_pod({"metadata": ends})


def test_how_long_a_gang_waited_that_is_taken_back_is_told_where_a_pod_of_it_is_left() -> None:
    server = ApiServer()
    uids = gang(server, "a", 2)
    gang(server, "b", 2)
    desk = Desk(server)
    desk.run()
    for uid in uids:
        end(server, uid)
    desk.now += 31
    desk.run()

    taken_back = [each for each in desk.told if each.reason == "TakenBack"]
    assert len(taken_back) == 2
    ((outcome, name, seconds),) = desk.waits
    assert (outcome, name) == ("rolled back", "b")
    assert 22 * 3600 < seconds < 23 * 3600  # made at midnight, and it is half past ten in the evening


def test_a_gang_that_is_released_is_counted_once_each_time() -> None:
    server = ApiServer({"n0": 2})
    uids = gang(server, "a", 3)
    desk = Desk(server, release_after_s=60.0)
    desk.run()
    assert desk.waits == []
    desk.now += 60
    desk.run()
    assert [not each["spec"]["schedulingGates"] for each in server.pods.values()] == [True] * 3
    assert [(outcome, name) for outcome, name, _ in desk.waits] == [("released", "a")]

    for uid in uids:
        server.delete_pod(uid)
    gang(server, "a", 3)
    desk.run()
    desk.now += 60
    desk.run()

    assert [(outcome, name) for outcome, name, _ in desk.waits] == [("released", "a")] * 2


def bind(server: ApiServer, uid: str) -> None:
    """To the node that it was let go to."""
    node = pinned(server.pods[uid])
    assert node is not None
    server.bind(uid, node)


def placed(server: ApiServer) -> list[str]:
    """Gangs for which places are kept, not only room."""
    return sorted(each.spec.gang for each in server.reservations.values() if each.spec.seats)


def gated(server: ApiServer) -> list[bool]:
    """Of each pod, in order."""
    return [bool(each["spec"]["schedulingGates"]) for each in server.pods.values()]


def test_a_plan_that_somebody_deletes_while_its_gang_is_half_bound_is_written_again_and_taken_back_in_time() -> None:
    server = ApiServer()
    uids = gang(server, "a", 2)
    desk = Desk(server)
    desk.run()
    (plan,) = server.reservations.values()
    bind(server, uids[0])
    server.delete_reservation(plan.key)
    desk.run()

    (again,) = server.reservations.values()
    assert (again.name, again.status.state) == (plan.name, ReservationState.COMMITTED)
    desk.now += 31
    desk.run()
    assert (server.pods, server.reservations) == ({}, {})


def test_a_plan_that_somebody_deletes_is_over_once_all_its_members_are_bound() -> None:
    server = ApiServer()
    uids = gang(server, "a", 2)
    desk = Desk(server)
    desk.run()
    (plan,) = server.reservations
    bind(server, uids[0])
    server.delete_reservation(plan)
    desk.run()

    bind(server, uids[1])
    desk.run()

    assert (states(server), list(server.pods)) == ([ReservationState.BOUND], uids)


def test_when_the_ledger_is_deleted_another_planner_goes_on_with_what_it_listed() -> None:
    server = ApiServer({"n0": 2})
    uids = gang(server, "a", 2)
    first = Desk(server)
    first.refuses = lambda what: (
        WriteOutcome.CONFLICT if isinstance(what, UngateAndPin) and what.member.uid == uids[1] else None
    )
    first.run()
    assert gated(server) == [False, True]
    server.delete_ledger()
    first.run()
    assert first.term.is_deposed

    gang(server, "b", 2)
    second = Desk(server, "two")
    second.run()
    assert (placed(server), gated(server)) == (["a"], [False, False, True, True])
    for uid in uids:
        bind(server, uid)
    second.run()
    assert states(server)[0] is ReservationState.BOUND


def test_the_place_of_a_pod_that_was_let_go_is_nobody_elses_whatever_becomes_of_its_plan() -> None:
    server = ApiServer({"n0": 2})
    gang(server, "a", 2)
    desk = Desk(server)
    desk.run()
    (plan,) = server.reservations
    desk.refuses = lambda what: WriteOutcome.REFUSED if isinstance(what, CreateReservation | DeletePod) else None
    server.delete_reservation(plan)
    gang(server, "b", 2)

    for _ in range(3):
        desk.now += 31
        desk.run()

    assert (placed(server), gated(server)) == ([], [False, False, True, True])


def test_a_gang_whose_deletion_is_refused_gives_up_what_nobody_can_take_and_comes_again_once_it_is_not() -> None:
    server = ApiServer({"n0": 4})
    uids = gang(server, "a", 4)
    desk = Desk(server)

    def refuses(what: Action) -> WriteOutcome | None:
        let_go = isinstance(what, UngateAndPin) and what.member.uid in uids[2:]
        return WriteOutcome.REFUSED if isinstance(what, DeletePod) or let_go else None

    desk.refuses = refuses
    desk.run()
    others = gang(server, "b", 2)
    for _ in range(5):
        if placed(server) == ["a", "b"]:  # the places of the two that stay gated
            break
        desk.now += 31
        desk.run()
    for uid in others:
        bind(server, uid)

    words = (
        f"a-{uids[0]} and 3 more not bound within 30 s; "
        f"the API server does not let a-{uids[2]} and 1 more go: it is refused; "
        f"the API server does not let a-{uids[0]} and 1 more be deleted: it is refused. "
        "It is tried again: allow the planner that, or delete them"
    )
    assert [each.message for each in desk.told if each.reason == "Failed"] == [words]
    desk.refuses = lambda _: None
    desk.now += 31
    desk.run()
    assert set(server.pods) == {*uids[2:], *others}
    assert placed(server) == ["b"]


@pytest.mark.parametrize(
    "outcome", [WriteOutcome.REFUSED, WriteOutcome.UNANSWERED], ids=["refused", "its admission does not answer"]
)
def test_pods_that_may_not_be_touched_hold_no_room_for_ever(outcome: WriteOutcome) -> None:
    server = ApiServer({"n0": 2})
    gang(server, "a", 2)
    desk = Desk(server)
    desk.refuses = lambda what: outcome if isinstance(what, UngateAndPin | TouchPod) else None
    desk.run()
    gang(server, "b", 2)

    tries = 0
    while placed(server) != ["b"] and tries < 6:
        desk.now += 31
        desk.run()
        tries += 1

    assert (placed(server), gated(server)) == (["b"], [True] * 4)


def in_the_midst_of_a_rollback(server: ApiServer, gangs: str) -> Desk:
    """Of each of them one member was bound, and the API server goes away."""
    members = [gang(server, name) for name in gangs]
    desk = Desk(server)
    desk.run()
    for first, _ in members:
        bind(server, first)
    desk.run()
    away = False

    def refuses(what: Action) -> WriteOutcome | None:
        nonlocal away
        away = away or isinstance(what, DeletePod | StripFinalizer)
        return WriteOutcome.UNANSWERED if away else None

    desk.refuses = refuses
    desk.now += 31
    return desk


@pytest.mark.parametrize("gangs", ["a", "ab"], ids=["one gang", "two gangs"])
def test_an_api_server_that_is_away_in_the_midst_of_a_rollback_makes_no_gang_fail(gangs: str) -> None:
    server = ApiServer()
    desk = in_the_midst_of_a_rollback(server, gangs)
    for _ in range(60):
        desk.run()
        desk.now += 2
    assert states(server) == [ReservationState.ROLLING_BACK] * len(gangs)

    desk.refuses, before = lambda _: None, len(desk.writes)
    desk.now += 10
    desk.run()

    assert isinstance(desk.writes[before], DeletePod)
    assert "Failed" not in {each.reason for each in desk.told}
    assert told(desk) == [("rolled back", name) for name in gangs]
    assert server.pods == {}


def told(desk: Desk) -> list[tuple[str, str]]:
    """How the waits of gangs ended."""
    return [(outcome, name) for outcome, name, _ in desk.waits]


def test_an_attempt_is_counted_once_by_how_it_ended() -> None:
    server = ApiServer()
    gang(server, "a", 1)
    gang(server, "b", 1)
    bare = gang(server, "c", 1)
    del server.pods[bare[0]]["metadata"]["ownerReferences"]
    desk = Desk(server)
    desk.run()
    (first,) = (each for each in server.reservations.values() if each.spec.gang == "a")
    server.bind(first.spec.seats[0].uid, first.spec.seats[0].node or "")
    desk.run()
    assert told(desk) == [("bound", "a")]

    desk.now += 31
    desk.run()
    assert told(desk) == [("bound", "a"), ("failed", "c"), ("rolled back", "b")]
    for each in list(server.reservations.values()):  # somebody writes it, and it is put right
        server.write_status(each, msgspec.structs.replace(each.status, bound=0, reason="written by hand"))
    desk.now += 31
    desk.run()
    assert len(desk.waits) == 3


def test_single_pods_of_one_batch_are_told_of_one_by_one() -> None:
    server = ApiServer()
    uids = [single(server, "one"), single(server, "two")]
    desk = Desk(server)
    desk.run()
    (batch,) = server.reservations.values()
    server.bind(uids[0], next(seat.node or "" for seat in batch.spec.seats if seat.uid == uids[0]))

    desk.now += 31
    desk.run()

    assert sorted(told(desk)) == [("bound", f"pod.{uids[0]}"), ("rolled back", f"pod.{uids[1]}")]


def test_a_plan_that_is_written_again_and_bound_before_it_is_listed_keeps_nobody_waiting() -> None:
    server = ApiServer()
    uids = gang(server, "a", 2)
    desk = Desk(server)
    desk.run()
    (plan,) = server.reservations
    bind(server, uids[0])
    desk.run()
    server.delete_reservation(plan)

    def bound_meanwhile(what: Action) -> None:
        if isinstance(what, CreateReservation):
            bind(server, uids[1])

    desk.refuses = bound_meanwhile
    desk.run()
    desk.refuses = lambda _: None
    gang(server, "b", 1)
    desk.run()

    assert placed(server) == ["a", "b"]


def test_a_single_pod_whose_reservation_is_refused_is_released_in_the_end() -> None:
    server = ApiServer()
    single(server, "one")
    desk = Desk(server, gate_timeout_s=60.0)
    desk.refuses = lambda what: WriteOutcome.REFUSED if isinstance(what, CreateReservation) else None
    desk.run()
    assert gated(server) == [True]

    desk.now += 60.0
    desk.run()

    assert gated(server) == [False]
    assert told(desk) == [("released", f"pod.{next(iter(server.pods))}")]


def test_a_single_pod_that_comes_to_a_blind_planner_is_released_in_the_end() -> None:
    server = ApiServer()
    desk = Desk(server, gate_timeout_s=60.0)
    desk.run()
    desk.watches = (WatchStatus("nodes", True, 121.0, 0, 0, None, None),)
    desk.run()
    single(server, "one")
    gang(server, "a", 1)
    desk.run()
    assert gated(server) == [True, True]

    desk.now += 60.0
    desk.run()

    assert gated(server) == [False, True]
