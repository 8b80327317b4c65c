"""A term of leadership when writes fail."""

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
from scheduler_core.planner.status import planner_status
from scheduler_core.policy.limits import GangLimits, NamespaceLimits
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.commit.apiserver import ApiServer, pinned
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner


def gang(server: ApiServer, name: str, size: int = 2, gpus: int = 1) -> list[str]:
    """Create a gang; return the UIDs of its members."""
    return [server.create_pod(name, gpus, name, size) for _ in range(size)]


def planned(server: ApiServer) -> list[str]:
    """Return the gangs with a reservation."""
    return sorted(each.spec.gang for each in server.reservations.values())


def reservations_of(planner: FakePlanner, name: str) -> int:
    """Return how many reservations of this gang were created."""
    return sum(isinstance(each, CreateReservation) and each.spec.gang == name for each in planner.writes)


def planner_refused(name: str, outcome: WriteOutcome) -> FakePlanner:
    """Return a planner whose API server refuses the reservations of gang ``name``; two gangs wait."""
    server = ApiServer()
    gang(server, "a")
    gang(server, "b")
    planner = FakePlanner(server)

    def refuses(what: Action) -> WriteOutcome | None:
        return outcome if isinstance(what, CreateReservation) and what.spec.gang == name else None

    planner.refuses = refuses
    return planner


@pytest.mark.parametrize(
    "outcome", [WriteOutcome.REFUSED, WriteOutcome.CONFLICT, WriteOutcome.GONE], ids=lambda each: each.value
)
def test_a_gang_with_a_refused_reservation_backs_off_and_others_pass(outcome: WriteOutcome) -> None:
    planner = planner_refused("a", outcome)

    planner.run()
    assert (planned(planner.server), reservations_of(planner, "a")) == (["b"], 1)
    assert [(each.reason, each.message) for each in planner.events if each.reason == "GangUnplaced"] == [
        ("GangUnplaced", "gang a: the API server refuses its reservation: it is refused")
    ]
    planner.refuses = lambda _: None
    planner.now += 10
    planner.run()
    assert (planned(planner.server), reservations_of(planner, "a")) == (["a", "b"], 2)


def test_a_namespace_with_many_unbound_gangs_starts_no_more_of_them() -> None:
    server = ApiServer({"n1": 8})
    members = {name: gang(server, name, size=1)[0] for name in "abcd"}
    planner = FakePlanner(server)
    planner.policies = BUILT_IN._replace(limits=GangLimits(default=NamespaceLimits(starting_gangs=2)))

    planner.run()
    assert planned(server) == ["a", "b"]
    status = {each.gang.name.name: each for each in planner_status(planner.term, True, None, (), planner.now).gangs}
    assert (status["c"].limit, status["c"].reason) == (
        "startingGangs",
        "not planned: 2 gangs of its namespace have places and are not bound yet: the limit is 2 (gangs.startingGangs)",
    )

    server.bind(members["a"], "n1")
    planner.run()
    assert planned(server) == ["a", "b", "c"]


def test_a_gang_that_changes_while_it_is_planned_is_planned_again_at_once() -> None:
    server = ApiServer({"n0": 8})
    planner = FakePlanner(server)
    planner.run()
    huge = server.create_pod("g-0", 64, "g", 2)
    server.create_pod("g-1", 1, "g", 2)
    planner.run_round()  # a plan begins

    server.delete_pod(huge)
    server.create_pod("g-0", 1, "g", 2)
    for _ in range(20):
        planner.run_once()

    assert planned(server) == ["g"]


def single(server: ApiServer, name: str) -> str:
    """Create a single pod that is planned; return its UID."""
    uid = server.create_pod(name, 1, name, 1)
    server.pods[uid]["metadata"]["annotations"] = {keys.POD_PLANNED.key: "true"}
    return uid


def test_single_pods_with_a_refused_reservation_back_off() -> None:
    server = ApiServer()
    uids = {single(server, "one"), single(server, "two")}
    planner = FakePlanner(server)
    planner.refuses = lambda what: WriteOutcome.REFUSED if isinstance(what, CreateReservation) else None

    planner.run()

    waiting = planner.term.backlog.queue.ordered()
    assert {(each.gang.ready[0].uid, each.rollbacks) for each in waiting} == {(uid, 1) for uid in uids}


def test_each_unplaced_single_pod_gets_an_event_with_its_reason() -> None:
    server = ApiServer({"n0": 0})
    uids = [single(server, "one"), single(server, "two")]
    planner = FakePlanner(server)

    planner.run()

    assert {(each.uid, each.message) for each in planner.events} == {
        (uid, f"no member fits at once; {server.pods[uid]['metadata']['name']}: {Reason.TOO_FEW_GPUS.value}")
        for uid in uids
    }


def states(server: ApiServer) -> list[ReservationState | None]:
    """Return the states of all reservations."""
    return [each.status.state for each in server.reservations.values()]


def test_a_gang_that_was_bound_while_the_watch_was_silent_is_not_rolled_back() -> None:
    server = ApiServer()
    uids = gang(server, "a", 3)
    planner = FakePlanner(server)
    planner.run()
    (plan,) = server.reservations.values()
    nodes = {seat.uid: seat.node or "" for seat in plan.spec.seats}
    server.bind(uids[0], nodes[uids[0]])
    planner.run()

    planner.is_deaf = True
    for uid in uids[1:]:
        server.bind(uid, nodes[uid])
    planner.now += 31
    planner.run()
    assert (states(server), set(server.pods)) == ([ReservationState.COMMITTED], set(uids))
    planner.is_deaf = False
    planner.now += 2
    planner.run()
    assert (states(server), set(server.pods)) == ([ReservationState.BOUND], set(uids))
    assert not any(isinstance(each, DeletePod) for each in planner.writes)


def ungated(server: ApiServer, uids: list[str]) -> list[bool]:
    """Return for each of these pods whether it has no gate any more."""
    return [not server.pods[uid]["spec"]["schedulingGates"] for uid in uids]


def test_while_the_watch_is_silent_nothing_is_planned_and_committed_plans_continue() -> None:
    server = ApiServer()
    first = gang(server, "a")
    planner = FakePlanner(server)
    planner.refuses = lambda what: WriteOutcome.CONFLICT if isinstance(what, UngateAndPin) else None
    planner.run()
    assert (states(server), ungated(server, first)) == ([ReservationState.COMMITTED], [False, False])

    planner.watches = (WatchStatus("nodes", True, 121.0, 0, 0, None, None),)
    planner.refuses = lambda _: None
    second = gang(server, "b")
    planner.now += 2
    planner.run()
    assert (planned(server), ungated(server, first), ungated(server, second)) == (["a"], [True, True], [False, False])

    planner.watches = ()
    for _ in range(int(RECOVERY_S) + 1):
        planner.run()
    assert (planned(server), ungated(server, second)) == (["a", "b"], [True, True])


def test_a_planner_whose_watches_do_not_show_its_writes_is_stale() -> None:
    server = ApiServer()
    gang(server, "a", 1)
    planner = FakePlanner(server)
    planner.refuses = lambda what: WriteOutcome.CONFLICT if isinstance(what, UngateAndPin) else None
    planner.run()
    planner.refuses = lambda _: None

    planner.is_deaf = True
    planner.now += 2
    planner.run()  # the pod is ungated
    assert planner.term.freshness.stale_reason is None
    planner.now += MAX_WRITE_LAG_S
    planner.run()
    assert planner.term.freshness.stale_reason == "no watch has shown what gputopo wrote 33 s ago"


def test_a_late_gang_is_rolled_back() -> None:
    server = ApiServer()
    uids = gang(server, "a", 2)
    planner = FakePlanner(server)
    planner.run()

    planner.now += 31
    planner.run()

    assert [each.member.uid for each in planner.writes if isinstance(each, DeletePod)] == uids


HOUR = pytest.mark.parametrize("step", [3600.0, -3600.0], ids=["an hour ahead", "an hour back"])


@HOUR
def test_setting_the_wall_clock_rolls_back_no_gang(step: float) -> None:
    server = ApiServer()
    gang(server, "a")
    planner = FakePlanner(server)
    planner.run()

    planner.clock_error_s = step
    planner.run()
    assert states(server) == [ReservationState.COMMITTED]
    planner.now += 31
    planner.run()
    assert (states(server), planner.term.backlog.queue.mark_rolled_back(GangName("team", "a"), 0.0)) == ([], 20.0)


@HOUR
def test_setting_the_wall_clock_does_not_change_a_back_off(step: float) -> None:
    server = ApiServer()
    gang(server, "a")
    planner = FakePlanner(server)
    planner.run()
    planner.now += 31
    planner.run()

    planner.clock_error_s = step
    gang(server, "a")
    planner.run()
    assert planned(server) == []
    planner.now += 10
    planner.run()
    assert planned(server) == ["a"]


@HOUR
def test_a_wrong_wall_clock_releases_no_gang_early(step: float) -> None:
    server = ApiServer({"n0": 2})
    planner = FakePlanner(server, release_after_s=60.0)
    planner.clock_error_s = step
    uids = gang(server, "a", 3)
    planner.run()
    assert ungated(server, uids) == [False] * 3

    planner.now += 60
    planner.run()
    assert ungated(server, uids) == [True] * 3


def test_avoided_nodes_are_kept_when_pods_are_recreated() -> None:
    server = ApiServer()
    gang(server, "a", 2)
    planner = FakePlanner(server)
    planner.run()
    (first,) = server.reservations.values()
    planner.now += 31
    planner.run()
    assert (server.pods, server.reservations) == ({}, {})

    gang(server, "a", 2)
    planner.now += 11
    planner.run()

    (second,) = server.reservations.values()
    assert not {seat.node for seat in first.spec.seats} & {seat.node for seat in second.spec.seats}


def test_unanswered_writes_in_one_namespace_do_not_stop_others() -> None:
    planner = planner_refused("a", WriteOutcome.UNANSWERED)

    planner.run()
    assert (planned(planner.server), reservations_of(planner, "a")) == (["b"], 1)
    planner.refuses = lambda _: None
    planner.now += 10
    planner.run()
    assert planned(planner.server) == ["a", "b"]


def test_a_member_with_an_unanswered_patch_is_ungated_later_than_its_siblings() -> None:
    server = ApiServer()
    first, second = gang(server, "a", 2)
    planner = FakePlanner(server)
    planner.refuses = lambda what: (
        WriteOutcome.UNANSWERED if isinstance(what, UngateAndPin) and what.member.uid == first else None
    )
    planner.run()
    assert [bool(server.pods[uid]["spec"]["schedulingGates"]) for uid in (first, second)] == [True, False]
    planner.refuses = lambda _: None
    planner.now += 2
    planner.run()
    assert server.pods[first]["spec"]["schedulingGates"] == []


def test_an_unanswered_ledger_write_pauses_all_writes_longer_each_time() -> None:
    server = ApiServer()
    planner = FakePlanner(server)
    planner.run()
    gang(server, "a", 2)
    asked: list[float] = []

    def refuses(what: Action) -> WriteOutcome | None:
        if what.key[0] != "ledger" or len(asked) == 4:
            return None
        asked.append(planner.now)
        return WriteOutcome.UNANSWERED

    planner.refuses = refuses
    planner.run()

    assert [at - asked[0] for at in asked] == [0, 1, 2, 3]
    planner.now += 2
    planner.run()
    assert states(server) == [ReservationState.COMMITTED]


def test_a_write_that_was_not_sent_without_the_lease_deposes_no_planner() -> None:
    server = ApiServer()
    gang(server, "a")
    planner = FakePlanner(server)
    lost = iter([WriteOutcome.DEPOSED])
    planner.refuses = lambda what: next(lost, None) if isinstance(what, WriteLedger) else None

    planner.run()
    planner.now += 2
    planner.run()

    assert (planner.term.is_deposed, states(server)) == (False, [ReservationState.COMMITTED])


def test_a_gang_with_refused_patches_gives_up_its_capacity() -> None:
    server = ApiServer({"n0": 2})
    uids = gang(server, "a", 2)
    planner = FakePlanner(server)

    def refuses(what: Action) -> WriteOutcome | None:
        return WriteOutcome.REFUSED if isinstance(what, UngateAndPin | TouchPod) and what.member.uid in uids else None

    planner.refuses = refuses
    planner.run()
    (plan,) = server.reservations.values()
    assert [each.message for each in planner.events if each.reason == "GangNotUngated"] == [
        f"reservation {plan.name}: the API server refuses to remove the gate: it is refused"
    ] * 2
    gang(server, "b", 2)
    planner.now += 31
    planner.run()
    assert planned(server) == []
    planner.now += 31  # an ungated pod may have been bound a moment ago
    planner.run()

    assert planned(server) == ["b"]


def test_avoided_nodes_are_used_if_there_are_no_others() -> None:
    server = ApiServer({"n0": 2})
    gang(server, "a", 2)
    planner = FakePlanner(server)
    planner.run()
    planner.now += 31
    planner.run()
    assert server.pods == {}

    gang(server, "a", 2)
    planner.now += 11
    planner.run()

    assert planned(server) == ["a"]


def end(server: ApiServer, uid: str) -> None:
    """Start the deletion of a pod."""
    version = server.pods[uid]["metadata"]["resourceVersion"]
    ends = {"uid": uid, "resourceVersion": version, "deletionTimestamp": "2026-11-21T22:30:00Z"}
    server.patch_pod({"metadata": ends})


def test_the_wait_of_a_rolled_back_gang_is_counted_if_pods_are_left() -> None:
    server = ApiServer()
    uids = gang(server, "a", 2)
    gang(server, "b", 2)
    planner = FakePlanner(server)
    planner.run()
    for uid in uids:
        end(server, uid)
    planner.now += 31
    planner.run()

    rolled_back = [each for each in planner.events if each.reason == "RolledBack"]
    assert len(rolled_back) == 2
    ((outcome, name, seconds),) = planner.waits
    assert (outcome, name) == ("rolled back", "b")
    assert 22 * 3600 < seconds < 23 * 3600  # created at midnight; it is half past ten in the evening


def test_each_release_of_a_gang_is_counted_once() -> None:
    server = ApiServer({"n0": 2})
    uids = gang(server, "a", 3)
    planner = FakePlanner(server, release_after_s=60.0)
    planner.run()
    assert planner.waits == []
    planner.now += 60
    planner.run()
    assert [not each["spec"]["schedulingGates"] for each in server.pods.values()] == [True] * 3
    assert [(outcome, name) for outcome, name, _ in planner.waits] == [("released", "a")]

    for uid in uids:
        server.delete_pod(uid)
    gang(server, "a", 3)
    planner.run()
    planner.now += 60
    planner.run()

    assert [(outcome, name) for outcome, name, _ in planner.waits] == [("released", "a")] * 2


def bind(server: ApiServer, uid: str) -> None:
    """Bind a pod to its pinned node."""
    node = pinned(server.pods[uid])
    assert node is not None
    server.bind(uid, node)


def placed(server: ApiServer) -> list[str]:
    """Return the gangs with reserved places, without holds."""
    return sorted(each.spec.gang for each in server.reservations.values() if each.spec.seats)


def gated(server: ApiServer) -> list[bool]:
    """Return for each pod whether it is gated, in order."""
    return [bool(each["spec"]["schedulingGates"]) for each in server.pods.values()]


def test_a_deleted_plan_of_a_half_bound_gang_is_restored_and_rolled_back_in_time() -> None:
    server = ApiServer()
    uids = gang(server, "a", 2)
    planner = FakePlanner(server)
    planner.run()
    (plan,) = server.reservations.values()
    bind(server, uids[0])
    server.delete_reservation(plan.key)
    planner.run()

    (again,) = server.reservations.values()
    assert (again.name, again.status.state) == (plan.name, ReservationState.COMMITTED)
    planner.now += 31
    planner.run()
    assert (server.pods, server.reservations) == ({}, {})


def test_a_deleted_plan_ends_once_all_members_are_bound() -> None:
    server = ApiServer()
    uids = gang(server, "a", 2)
    planner = FakePlanner(server)
    planner.run()
    (plan,) = server.reservations
    bind(server, uids[0])
    server.delete_reservation(plan)
    planner.run()

    bind(server, uids[1])
    planner.run()

    assert (states(server), list(server.pods)) == ([ReservationState.BOUND], uids)


def test_after_a_deleted_ledger_another_planner_continues_its_plans() -> None:
    server = ApiServer({"n0": 2})
    uids = gang(server, "a", 2)
    first = FakePlanner(server)
    first.refuses = lambda what: (
        WriteOutcome.CONFLICT if isinstance(what, UngateAndPin) and what.member.uid == uids[1] else None
    )
    first.run()
    assert gated(server) == [False, True]
    server.delete_ledger()
    first.run()
    assert first.term.is_deposed

    gang(server, "b", 2)
    second = FakePlanner(server, "two")
    second.run()
    assert (placed(server), gated(server)) == (["a"], [False, False, True, True])
    for uid in uids:
        bind(server, uid)
    second.run()
    assert states(server)[0] is ReservationState.BOUND


def test_the_place_of_an_ungated_pod_stays_reserved_without_its_plan() -> None:
    server = ApiServer({"n0": 2})
    gang(server, "a", 2)
    planner = FakePlanner(server)
    planner.run()
    (plan,) = server.reservations
    planner.refuses = lambda what: WriteOutcome.REFUSED if isinstance(what, CreateReservation | DeletePod) else None
    server.delete_reservation(plan)
    gang(server, "b", 2)

    for _ in range(3):
        planner.now += 31
        planner.run()

    assert (placed(server), gated(server)) == ([], [False, False, True, True])


def test_a_gang_with_refused_deletions_fails_and_starts_again_later() -> None:
    server = ApiServer({"n0": 4})
    uids = gang(server, "a", 4)
    planner = FakePlanner(server)

    def refuses(what: Action) -> WriteOutcome | None:
        ungated = isinstance(what, UngateAndPin) and what.member.uid in uids[2:]
        return WriteOutcome.REFUSED if isinstance(what, DeletePod) or ungated else None

    planner.refuses = refuses
    planner.run()
    others = gang(server, "b", 2)
    for _ in range(5):
        if placed(server) == ["a", "b"]:  # the places of the two that stay gated
            break
        planner.now += 31
        planner.run()
    for uid in others:
        bind(server, uid)

    reason = (
        f"a-{uids[0]} and 3 more not bound within 30 s; "
        f"the API server refuses ungating of a-{uids[2]} and 1 more: it is refused; "
        f"the API server refuses deletion of a-{uids[0]} and 1 more: it is refused. "
        "The planner retries: allow the deletion, or delete the pods"
    )
    assert [each.message for each in planner.events if each.reason == "Failed"] == [reason]
    planner.refuses = lambda _: None
    planner.now += 31
    planner.run()
    assert set(server.pods) == {*uids[2:], *others}
    assert placed(server) == ["b"]


@pytest.mark.parametrize(
    "outcome", [WriteOutcome.REFUSED, WriteOutcome.UNANSWERED], ids=["refused", "its admission does not answer"]
)
def test_pods_that_cannot_be_touched_do_not_hold_capacity_forever(outcome: WriteOutcome) -> None:
    server = ApiServer({"n0": 2})
    gang(server, "a", 2)
    planner = FakePlanner(server)
    planner.refuses = lambda what: outcome if isinstance(what, UngateAndPin | TouchPod) else None
    planner.run()
    gang(server, "b", 2)

    tries = 0
    while placed(server) != ["b"] and tries < 6:
        planner.now += 31
        planner.run()
        tries += 1

    assert (placed(server), gated(server)) == (["b"], [True] * 4)


def planner_rolling_back(server: ApiServer, gangs: str) -> FakePlanner:
    """Return a planner of gangs with one bound member each, whose API server becomes unavailable."""
    members = [gang(server, name) for name in gangs]
    planner = FakePlanner(server)
    planner.run()
    for first, _ in members:
        bind(server, first)
    planner.run()
    away = False

    def refuses(what: Action) -> WriteOutcome | None:
        nonlocal away
        away = away or isinstance(what, DeletePod | StripFinalizer)
        return WriteOutcome.UNANSWERED if away else None

    planner.refuses = refuses
    planner.now += 31
    return planner


@pytest.mark.parametrize("gangs", ["a", "ab"], ids=["one gang", "two gangs"])
def test_an_unavailable_api_server_during_a_rollback_fails_no_gang(gangs: str) -> None:
    server = ApiServer()
    planner = planner_rolling_back(server, gangs)
    for _ in range(60):
        planner.run()
        planner.now += 2
    assert states(server) == [ReservationState.ROLLING_BACK] * len(gangs)

    planner.refuses, before = lambda _: None, len(planner.writes)
    planner.now += 10
    planner.run()

    assert isinstance(planner.writes[before], DeletePod)
    assert "Failed" not in {each.reason for each in planner.events}
    assert wait_outcomes(planner) == [("rolled back", name) for name in gangs]
    assert server.pods == {}


def wait_outcomes(planner: FakePlanner) -> list[tuple[str, str]]:
    """Return the outcomes of the gangs' waits."""
    return [(outcome, name) for outcome, name, _ in planner.waits]


def test_each_attempt_is_counted_once_by_its_outcome() -> None:
    server = ApiServer()
    gang(server, "a", 1)
    gang(server, "b", 1)
    bare = gang(server, "c", 1)
    del server.pods[bare[0]]["metadata"]["ownerReferences"]
    planner = FakePlanner(server)
    planner.run()
    (first,) = (each for each in server.reservations.values() if each.spec.gang == "a")
    server.bind(first.spec.seats[0].uid, first.spec.seats[0].node or "")
    planner.run()
    assert wait_outcomes(planner) == [("bound", "a")]

    planner.now += 31
    planner.run()
    assert wait_outcomes(planner) == [("bound", "a"), ("failed", "c"), ("rolled back", "b")]
    for each in list(server.reservations.values()):  # a user changes it, and the planner corrects it
        server.write_status(each, msgspec.structs.replace(each.status, bound=0, reason="written by hand"))
    planner.now += 31
    planner.run()
    assert len(planner.waits) == 3


def test_single_pods_of_a_batch_are_counted_one_by_one() -> None:
    server = ApiServer()
    uids = [single(server, "one"), single(server, "two")]
    planner = FakePlanner(server)
    planner.run()
    (batch,) = server.reservations.values()
    server.bind(uids[0], next(seat.node or "" for seat in batch.spec.seats if seat.uid == uids[0]))

    planner.now += 31
    planner.run()

    assert sorted(wait_outcomes(planner)) == [("bound", f"pod.{uids[0]}"), ("rolled back", f"pod.{uids[1]}")]


def test_a_restored_plan_that_is_bound_before_it_is_listed_blocks_no_gang() -> None:
    server = ApiServer()
    uids = gang(server, "a", 2)
    planner = FakePlanner(server)
    planner.run()
    (plan,) = server.reservations
    bind(server, uids[0])
    planner.run()
    server.delete_reservation(plan)

    def bound_meanwhile(what: Action) -> None:
        if isinstance(what, CreateReservation):
            bind(server, uids[1])

    planner.refuses = bound_meanwhile
    planner.run()
    planner.refuses = lambda _: None
    gang(server, "b", 1)
    planner.run()

    assert placed(server) == ["a", "b"]


def test_a_single_pod_with_a_refused_reservation_is_released() -> None:
    server = ApiServer()
    single(server, "one")
    planner = FakePlanner(server, gate_timeout_s=60.0)
    planner.refuses = lambda what: WriteOutcome.REFUSED if isinstance(what, CreateReservation) else None
    planner.run()
    assert gated(server) == [True]

    planner.now += 60.0
    planner.run()

    assert gated(server) == [False]
    assert wait_outcomes(planner) == [("released", f"pod.{next(iter(server.pods))}")]


def test_a_stale_planner_releases_single_pods() -> None:
    server = ApiServer()
    planner = FakePlanner(server, gate_timeout_s=60.0)
    planner.run()
    planner.watches = (WatchStatus("nodes", True, 121.0, 0, 0, None, None),)
    planner.run()
    single(server, "one")
    gang(server, "a", 1)
    planner.run()
    assert gated(server) == [True, True]

    planner.now += 60.0
    planner.run()

    assert gated(server) == [False, True]
