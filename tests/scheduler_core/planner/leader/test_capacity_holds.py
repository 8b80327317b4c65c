"""Capacity holds for gangs that do not fit, from the term to the ledger."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from gputopo.crd.reservations import (
    EntryPhase,
    ExtenderAck,
    HeldCapacity,
    ReservationSpec,
    ReservationState,
    ReservationStatus,
)
from gputopo.labels import keys
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import Batch, NodeUpdate
from scheduler_core.cache.pod_loads import PodLoad
from scheduler_core.planner.commit.actions import CreateReservation, WriteStatus
from scheduler_core.planner.commit.ledger import entry_of, with_entries, without_entries
from scheduler_core.planner.commit.pod_patches import ungate_patch
from scheduler_core.planner.commit.reconcile import BLOCKED_S
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.pod_deadlines import PodDeadline
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.leader.capacity_holds import AWAY_S, ESTIMATE_S, RETRY_S, SOON_S
from scheduler_core.planner.leader.hold_search import HoldResult, HoldTask, search_hold
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.view import TRY_S
from scheduler_core.planner.status import QueuedGangStatus, planner_status
from scheduler_core.policy.limits import GangLimits, GpuLimit, NamespaceLimits
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.node_load import NodeLoad
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer
from tests.scheduler_core.planner.leader.fake_planner import START, FakePlanner

HELD, PROPOSED, COMMITTED = EntryPhase


def busy(**gpus: int) -> tuple[ApiServer, dict[str, str]]:
    """Return nodes n0 and n1 of two GPUs each, with so many held by ungated pods; and these pods by node."""
    server = ApiServer({"n0": 2, "n1": 2})
    pods = {node: server.create_pod(f"on-{node}", number) for node, number in gpus.items() if number}
    for node, uid in pods.items():
        server.bind(uid, node)
    return server, pods


def gang(server: ApiServer, name: str, size: int, gpus: int, priority: int = 0) -> list[str]:
    """Create a gang that has waited longer than any patience."""
    pods = [server.create_pod(name, gpus, name, size) for _ in range(size)]
    for uid in pods:
        version = server.pods[uid]["metadata"]["resourceVersion"]
        server.patch_pod({"metadata": {"uid": uid, "resourceVersion": version}, "spec": {"priority": priority}})
    return pods


def held(server: ApiServer) -> dict[str, tuple[HeldCapacity, ...]]:
    """Return the held devices in the ledger, by gang."""
    assert server.ledger is not None
    listed = [server.reservations[each.uid] for each in server.ledger.spec.entries if each.phase is HELD]
    assert len({each.spec.gang for each in listed}) == len(listed)
    return {each.spec.gang: each.spec.held for each in listed}


def states(server: ApiServer) -> dict[str, ReservationState | None]:
    """Return the states of all reservations, by gang."""
    return {each.spec.gang: each.status.state for each in server.reservations.values()}


def planned(server: ApiServer, name: str) -> set[str | None]:
    """Return the planned nodes of a gang."""
    found = [each for each in server.reservations.values() if each.spec.gang == name]
    return {seat.node for each in found for seat in each.spec.seats}


def finish(server: ApiServer, *uids: str) -> None:
    """Delete these finished pods."""
    for uid in uids:
        server.delete_pod(uid)


def test_a_gang_that_has_waited_long_enough_gets_a_hold() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)

    FakePlanner(server).run()

    assert held(server) == {"big": (HeldCapacity("n0", 2), HeldCapacity("n1", 2))}
    (hold,) = server.reservations.values()
    assert hold.status == ReservationStatus(
        ReservationState.HELD,
        "does not fit yet; capacity that becomes free on n0 and 1 more is reserved: the end of their pods is unknown",
        members=2,
        nodes=2,
        gpus=4,
    )


def test_a_hold_leaves_a_node_that_pods_without_gpus_fill() -> None:
    """Else its GPUs would be held for ever in vain. At most once in a while: such pods may come and go all the time."""
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 1, 2)
    planner = FakePlanner(server)
    planner.run()
    assert held(server) == {"big": (HeldCapacity("n0", 2),)}
    facts = msgspec.structs.replace(planner.term.view.cache.snapshot.records["n0"].machine, max_pods=110)
    node = NodeUpdate("n0", facts, planner.term.view.rules["n0"])
    planner.term.apply_batch(Batch(NodeUpdate, (node,)))
    planner.run()
    loads = tuple(PodLoad(f"u{at}", "n0", NodeLoad(pods=1)) for at in range(110))

    planner.term.apply_batch(Batch(PlannerPod, loads))
    planner.run()
    assert held(server) == {"big": (HeldCapacity("n0", 2),)}
    planner.now += RETRY_S
    planner.run()

    assert held(server) == {"big": (HeldCapacity("n1", 2),)}


def test_a_gang_that_has_not_waited_long_enough_gets_no_hold() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)

    FakePlanner(server, pace=QueueTiming(patience_s=1e9)).run()

    assert (held(server), states(server)) == ({}, {})


def test_a_gang_too_large_for_the_cluster_gets_no_hold() -> None:
    server, _ = busy(n0=1)
    gang(server, "huge", 3, 2)
    planner = FakePlanner(server)
    planner.run()
    planner.run()

    assert (held(server), states(server)) == ({}, {})


def test_only_the_gpus_that_the_gang_needs_are_held() -> None:
    server, pods = busy(n0=2, n1=2)
    gang(server, "big", 3, 1)
    planner = FakePlanner(server)
    planner.run()
    assert held(server) == {"big": (HeldCapacity("n0", 2), HeldCapacity("n1", 1))}

    gang(server, "small", 1, 1)
    finish(server, pods["n1"])
    planner.run()

    assert planned(server, "small") == {"n1"}
    assert planner.term.view.cache.snapshot.states["n1"].free_devices("nvidia.com/gpu") == 0
    assert list(held(server)) == ["big"]


def test_smaller_gangs_are_placed_around_a_hold() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 1, 2)
    planner = FakePlanner(server)
    planner.run()
    assert held(server) == {"big": (HeldCapacity("n0", 2),)}

    gang(server, "small", 1, 1)
    planner.run()
    assert (planned(server, "small"), list(held(server))) == (set(), ["big"])
    finish(server, pods["n0"])
    planner.run()

    assert (planned(server, "big"), planned(server, "small")) == ({"n0"}, set())


def test_the_ledger_replaces_a_hold_by_places_in_one_write() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()
    (uid,) = server.reservations
    before = len(planner.ledgers)
    finish(server, *pods.values())
    planner.run()

    first, *_ = planner.ledgers[before:]
    assert [(each.phase, each.uid == uid) for each in first] == [(COMMITTED, False)]
    assert uid not in server.reservations
    assert planned(server, "big") == {"n0", "n1"}


def test_a_gang_uses_capacity_elsewhere_and_its_hold_ends() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 1, 2)
    planner = FakePlanner(server)
    planner.run()
    assert held(server) == {"big": (HeldCapacity("n0", 2),)}

    finish(server, pods["n1"])
    planner.run()

    assert (planned(server, "big"), held(server)) == ({"n1"}, {})


def test_a_hold_ends_with_its_gang() -> None:
    server, _ = busy(n0=1, n1=2)
    members = gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()

    finish(server, *members)
    planner.run()

    assert (held(server), server.reservations) == ({}, {})


def test_a_recreated_member_finds_its_hold() -> None:
    server, _ = busy(n0=1, n1=2)
    members = gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()
    before = held(server)

    finish(server, members[0])
    planner.run()
    assert held(server) == before
    planner.now += AWAY_S
    planner.run()
    assert held(server) == {}


def test_a_hold_moves_when_its_node_is_lost() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 1, 2)
    planner = FakePlanner(server)
    planner.run()
    before = len(planner.ledgers)

    planner.term.apply_batch(Batch(NodeUpdate, (), ("n0",)))
    planner.run()

    assert held(server) == {"big": (HeldCapacity("n1", 2),)}
    assert [[each.phase for each in entries] for entries in planner.ledgers[before:]] == [[HELD]]
    assert list(states(server).values()) == [ReservationState.HELD]


def test_a_hold_that_fits_nowhere_any_more_ends() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()

    planner.term.apply_batch(Batch(NodeUpdate, (), ("n0",)))
    planner.run()

    assert held(server) == {}


def test_each_priority_has_its_own_hold_and_the_higher_goes_first() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "low", 1, 2)
    planner = FakePlanner(server)
    planner.run()
    assert held(server) == {"low": (HeldCapacity("n0", 2),)}

    gang(server, "high", 1, 2, priority=9)
    gang(server, "second", 1, 2, priority=9)
    planner.run()
    planner.now += SOON_S
    planner.run()
    assert held(server) == {"high": (HeldCapacity("n0", 2),), "low": (HeldCapacity("n1", 2),)}

    finish(server, pods["n0"])
    planner.run()
    assert planned(server, "high") == {"n0"}
    assert held(server) == {"second": (HeldCapacity("n0", 2),), "low": (HeldCapacity("n1", 2),)}


def test_a_small_gang_of_a_higher_priority_ignores_a_hold() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()

    gang(server, "urgent", 1, 1, priority=9)
    planner.run()

    assert planned(server, "urgent") == {"n0"}
    assert list(held(server)) == ["big"]


def test_a_new_leader_continues_a_hold() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    FakePlanner(server).run()
    before = dict(server.reservations)

    successor = FakePlanner(server, "two")
    successor.run()

    assert {uid: each.spec for uid, each in server.reservations.items()} == {
        uid: each.spec for uid, each in before.items()
    }
    assert list(held(server)) == ["big"]


def test_the_estimate_follows_the_deadlines_of_present_pods() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()
    ends = {pods["n0"]: 1_800_000_000.0, pods["n1"]: 1_800_003_600.0}
    planner.term.view.deadlines.apply_pod_deadlines(
        Batch(PodDeadline, tuple(PodDeadline(*each) for each in ends.items()))
    )
    planner.now += ESTIMATE_S
    planner.run()

    (hold,) = server.reservations.values()
    assert hold.status.estimate == "2027-01-15T09:00:00Z"
    assert hold.status.reason == (
        "does not fit yet; capacity that becomes free on n0 and 1 more is reserved: "
        "their pods end by 2027-01-15T09:00:00Z"
    )
    before = len(planner.writes)
    planner.run()
    assert planner.writes[before:] == []


def test_a_changed_gang_is_computed_once_per_round() -> None:
    server = ApiServer({"n0": 2, "n1": 2})
    planner = FakePlanner(server)
    planner.run()

    gang(server, "big", 4, 1)
    planner.apply_events()
    assert planner.term.backlog.queue.ordered() == ()
    planner.term.run_round()
    assert [each.gang.name.name for each in planner.term.backlog.queue.ordered()] == ["big"]


def test_a_hold_gets_one_event() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()

    assert [each.status.state for each in planner.writes if isinstance(each, WriteStatus)] == [ReservationState.HELD]
    assert [each.namespace for each in server.reservations.values()] == [SPACE]


MIXED = CommitTerms(settle_s=0.0)


def acknowledge(server: ApiServer, *blocked: str) -> None:
    """The extender acknowledges all reservations except these."""
    server.apply("extender", ExtenderAck(generation=1_000_000, blocked=blocked))


def proposal(server: ApiServer) -> str:
    """Return the UID of the proposed reservation."""
    assert server.ledger is not None
    (found,) = [each.uid for each in server.ledger.spec.entries if each.phase is PROPOSED]
    return found


def test_a_hold_stays_until_the_places_are_committed() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server, terms=MIXED)
    planner.run()
    assert held(server) == {"big": (HeldCapacity("n0", 2), HeldCapacity("n1", 2))}
    before = len(planner.ledgers)

    finish(server, *pods.values())
    planner.run()
    acknowledge(server)
    planner.run()

    assert [[each.phase for each in entries] for entries in planner.ledgers[before:]] == [[HELD, PROPOSED], [COMMITTED]]
    assert planned(server, "big") == {"n0", "n1"}


def test_a_rejected_proposal_falls_back_to_its_hold() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server, terms=MIXED)
    planner.run()
    before = len(planner.ledgers)

    finish(server, *pods.values())
    planner.run()
    acknowledge(server, proposal(server))
    planner.now += BLOCKED_S
    planner.run()

    first, second, *_ = [[each.phase for each in entries] for entries in planner.ledgers[before:]]
    assert [first, second] == [[HELD, PROPOSED], [HELD]]
    assert held(server) == {"big": (HeldCapacity("n0", 2), HeldCapacity("n1", 2))}
    acknowledge(server)
    planner.now += TRY_S
    planner.run()
    assert (planned(server, "big"), held(server)) == ({"n0", "n1"}, {})


def test_smaller_gangs_are_placed_around_a_hold_while_a_proposal_waits() -> None:
    server, pods = busy(n0=2, n1=1)
    gang(server, "big", 1, 2)
    planner = FakePlanner(server, terms=MIXED)
    planner.run()
    assert held(server) == {"big": (HeldCapacity("n1", 2),)}

    finish(server, pods["n0"])
    planner.run()
    gang(server, "small", 1, 1)
    planner.run()

    assert (planned(server, "big"), planned(server, "small")) == ({"n0"}, set())
    acknowledge(server)
    planner.run()
    assert planned(server, "small") == {"n1"}


def single(server: ApiServer, name: str, gpus: int, priority: int = 0) -> str:
    """Create a single pod that waits for the planner."""
    uid = server.create_pod(name, gpus)
    server.pods[uid]["spec"] |= {"schedulingGates": [{"name": keys.GATE}], "priority": priority}
    return uid


def planned_nodes(server: ApiServer) -> dict[str, str | None]:
    """Return the planned nodes by pod UID."""
    return {seat.uid: seat.node for each in server.reservations.values() for seat in each.spec.seats}


def test_the_ledger_replaces_the_hold_of_a_single_pod_in_one_write() -> None:
    server, pods = busy(n0=1, n1=2)
    large = single(server, "large", 2)
    planner = FakePlanner(server)
    planner.run()
    assert held(server) == {f"pod.{large}": (HeldCapacity("n0", 2),)}
    (hold,) = server.reservations.values()
    assert hold.name.startswith(f"large-{large}-")
    before = len(planner.ledgers)

    small = single(server, "small", 1)
    finish(server, pods["n0"])
    planner.run()

    assert [each.phase for each in planner.ledgers[before]] == [COMMITTED]
    assert planned_nodes(server) == {large: "n0"}
    finish(server, pods["n1"])
    planner.run()
    assert planned_nodes(server) == {large: "n0", small: "n1"}


def test_the_hold_of_a_released_single_pod_ends() -> None:
    server, _ = busy(n0=1, n1=2)
    uid = single(server, "large", 2)
    planner = FakePlanner(server)
    planner.run()
    assert list(held(server)) == [f"pod.{uid}"]

    member = planner.term.view.gang_members.get_member(uid)
    assert member is not None
    server.patch_pod(ungate_patch(member))
    planner.run()

    assert held(server) == {}


def test_a_gang_that_never_fits_leaves_the_hold_to_the_next() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "a-huge", 3, 2)
    gang(server, "b-big", 2, 2)
    planner = FakePlanner(server)

    planner.run()

    assert list(held(server)) == ["b-big"]


def test_failed_searches_back_off() -> None:
    server, _ = busy(n0=1)
    gang(server, "huge", 3, 2)
    planner, asked = FakePlanner(server), list[float]()
    seek = planner.start_hold_search

    def hold(task: HoldTask) -> None:
        asked.append(planner.now)
        seek(task)

    planner.start_hold_search = hold  # type: ignore[method-assign]
    for _ in range(60):
        planner.now += 8
        planner.run()

    between = [round(later - sooner) for sooner, later in pairwise(asked)]
    assert [RETRY_S * 2**times <= each < RETRY_S * 2**times + 12 for times, each in enumerate(between)] == [True] * 4


def test_other_gangs_are_planned_during_a_hold_search() -> None:
    server, pods = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner, jobs = FakePlanner(server), list[HoldTask]()
    planner.start_hold_search = jobs.append  # type: ignore[method-assign,assignment]
    planner.run()
    gang(server, "small", 1, 1)
    planner.run()
    assert (planned(server, "small"), len(jobs)) == ({"n0"}, 1)

    finish(server, *pods.values(), *(seat.uid for each in server.reservations.values() for seat in each.spec.seats))
    planner.run()
    assert planned(server, "big") == {"n0", "n1"}
    planner.term.apply_hold_result(search_hold(jobs[0]))
    planner.run()

    assert (held(server), list(states(server))) == ({}, ["big"])


def test_a_hold_has_the_priority_of_its_gang_and_ends_when_that_changes() -> None:
    """Extenders enforce the priority that the reservation states."""
    server, _ = busy(n0=1, n1=2)
    pods = gang(server, "big", 2, 2, priority=-1000)
    planner = FakePlanner(server)
    planner.run()
    (hold,) = server.reservations.values()
    assert (hold.spec.priority, hold.spec.held_since) == (-1000, format_timestamp(planner.now - 1.0))

    for uid in pods:
        version = server.pods[uid]["metadata"]["resourceVersion"]
        server.patch_pod({"metadata": {"uid": uid, "resourceVersion": version}, "spec": {"priority": -2000}})
    planner.run()
    planner.run()

    (after,) = server.reservations.values()
    assert after.key != hold.key
    assert (after.spec.priority, list(held(server))) == (-2000, ["big"])


def limited(planner: FakePlanner, **limits: Any) -> None:
    """Give all namespaces these limits."""
    planner.policies = BUILT_IN._replace(limits=GangLimits(default=NamespaceLimits(**limits)))


def status_of(planner: FakePlanner, name: str) -> QueuedGangStatus:
    """Return what `gputopo gangs` prints of a gang."""
    found = planner_status(planner.term, True, None, (), planner.now - START)
    return next(each for each in found.gangs if each.gang.name.name == name)


def test_a_hold_ends_at_its_age_and_another_follows_only_after_a_pause() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()
    age_s = planner.policies.limits.max_hold_age_s
    planner.now += age_s - 60.0
    planner.run()
    assert list(held(server)) == ["big"]

    planner.now += 60.0
    planner.run()
    gang(server, "next", 2, 2)
    planner.run()

    assert held(server) == {}
    for name in ("big", "next"):
        found = status_of(planner, name)
        assert found.limit == "maxHoldAge"
        assert "holds no capacity: a capacity hold of its namespace and priority ended at its age limit" in found.reason
    planner.now += age_s
    planner.run()
    assert list(held(server)) == ["big"]
    assert status_of(planner, "big").limit is None


def test_a_pause_is_for_one_priority() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()
    planner.now += planner.policies.limits.max_hold_age_s
    planner.run()

    gang(server, "urgent", 2, 2, priority=5)
    planner.run()

    assert list(held(server)) == ["urgent"]


def test_the_age_of_a_hold_counts_from_the_first_hold_of_the_gang() -> None:
    """Another leader, or a move of the hold, does not start it again."""
    server, _ = busy(n0=2, n1=2)
    gang(server, "big", 1, 2)
    planner = FakePlanner(server)
    planner.run()
    (first,) = server.reservations.values()
    (at,) = first.spec.held
    planner.now += 3600.0
    planner.term.apply_batch(Batch(NodeUpdate, (), (at.node,)))
    planner.run()
    planner.run()
    (moved,) = server.reservations.values()
    assert [each.node for each in moved.spec.held] != [at.node]
    assert moved.spec.held_since == first.spec.held_since

    successor = FakePlanner(server, "two")
    successor.now = START + 3600.0
    successor.run()
    assert list(held(server)) == ["big"]
    successor.now = START + successor.policies.limits.max_hold_age_s + 60.0
    successor.run()

    assert held(server) == {}


def test_a_hold_of_an_earlier_version_is_replaced() -> None:
    """The hold states neither the priority of its gang nor its age."""
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()
    (hold,) = server.reservations.values()
    server.delete_reservation(hold.key)
    assert server.ledger is not None
    old = server.create_reservation("old", ReservationSpec("big", held=hold.spec.held))
    spec = with_entries(without_entries(server.ledger.spec, {hold.key}), [entry_of(old, HELD)])
    server.write_ledger(server.ledger, spec)

    planner.run()
    planner.now += SOON_S
    planner.run()

    (hold,) = server.reservations.values()
    assert (list(held(server)), hold.spec.held_since is None) == (["big"], False)


def test_a_gang_beyond_the_limit_of_held_gpus_leaves_the_hold_to_the_next() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    gang(server, "small", 1, 2)
    server.bind(server.create_pod("other", 1), "n0")
    planner = FakePlanner(server)
    limited(planner, held_gpus=GpuLimit(3))

    planner.run()

    assert {name: sum(each.gpus for each in of) for name, of in held(server).items()} == {"small": 2}
    planner.now += RETRY_S
    limited(planner, held_gpus=GpuLimit(4))
    planner.run()
    assert list(held(server)) == ["small"]  # one hold per priority
    limited(planner, held_gpus=GpuLimit(1))
    planner.now += ESTIMATE_S
    planner.run()
    assert held(server) == {}
    found = status_of(planner, "big")
    assert found.limit == "heldGpus"
    assert found.reason == (
        "0 of 2 members fit at once; holds no capacity: "
        "it needs 4 GPUs: the limit of its namespace is 1 (gangs.heldGpus)"
    )


def test_all_gpus_of_the_held_nodes_count_towards_the_limit() -> None:
    """A hold has all GPUs of a node if the choice of GPUs matters: more than the gang requests."""
    server, _ = busy(n0=2, n1=2)
    gang(server, "big", 1, 1)
    planner = FakePlanner(server, pace=QueueTiming(patience_s=1e9))
    planner.run()
    big = planner.term.view.gang_members.get_gang(GangName(SPACE, "big"))
    assert big is not None
    found = HoldResult(big, CreateReservation(SPACE, "big-1", ReservationSpec("big", held=(HeldCapacity("n0", 2),))))

    for gpus, created in ((2, found.create), (1, None)):
        limited(planner, held_gpus=GpuLimit(gpus))
        assert planner.term.holds.apply_result(found, planner.now - START) == created
    assert planner.term.holds.limits.reached[big.name].reason == (
        "it needs 2 GPUs: the limit of its namespace is 1 (gangs.heldGpus)"
    )


def test_a_gang_beyond_the_limits_of_the_queue_loses_its_hold() -> None:
    server, _ = busy(n0=1, n1=2)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()
    assert list(held(server)) == ["big"]

    limited(planner, gated_pods=1)
    planner.run()

    assert held(server) == {}
    found = status_of(planner, "big")
    assert (found.limit, found.reason) == (
        "gatedPods", "not planned: it has 2 gated pods: the limit of its namespace is 1 (gangs.gatedPods)"
    )  # fmt: skip


def test_a_hold_names_the_pods_of_a_higher_priority_that_use_its_capacity() -> None:
    server, _ = busy(n0=1, n1=1)
    gang(server, "big", 2, 2)
    planner = FakePlanner(server)
    planner.run()

    for name, priority in (("urgent", 100_000), ("usual", 0)):
        server.bind(server.create_pod(name, 1, priority=priority), "n0" if priority else "n1")
    planner.now += ESTIMATE_S
    planner.run()

    (hold,) = server.reservations.values()
    urgent = next(uid for uid, each in server.pods.items() if each["spec"]["priority"])
    assert str(hold.status.reason).endswith(f"; pods of a higher priority on these nodes: {SPACE}/urgent-{urgent}")
    (found,) = planner_status(planner.term, True, None, (), planner.now - START).holds
    assert (found.namespace, found.gpus, found.users) == (SPACE, 4, 1)
    finish(server, urgent)
    planner.now += ESTIMATE_S
    planner.run()
    (hold,) = server.reservations.values()
    assert "higher priority" not in str(hold.status.reason)


def test_a_hold_is_kept_when_members_are_recreated_beside_a_launcher_of_another_priority() -> None:
    server, _ = busy(n0=1, n1=2)
    server.create_pod("big", 0, "big", 3)
    workers = [server.create_pod("big", 2, "big", 3, priority=5) for _ in range(2)]
    planner = FakePlanner(server)
    planner.run()
    assert list(held(server)) == ["big"]

    finish(server, *workers)  # the launcher remains: until the workers are there again, its priority counts
    planner.run()
    assert list(held(server)) == ["big"]
    for _ in workers:
        server.create_pod("big", 2, "big", 3, priority=5)
    planner.run()

    (hold,) = server.reservations.values()
    assert (list(held(server)), hold.spec.priority) == (["big"], 5)


def test_a_hold_moves_within_the_limit_of_held_gpus() -> None:
    """Until the ledger replaces it, the old hold exists beside the new one."""
    server, _ = busy(n0=2, n1=2)
    gang(server, "big", 1, 2)
    planner = FakePlanner(server)
    limited(planner, held_gpus=GpuLimit(2))
    planner.run()
    ((first,),) = held(server).values()

    planner.term.apply_batch(Batch(NodeUpdate, (), (first.node,)))
    planner.run()
    planner.run()

    ((moved,),) = held(server).values()
    assert moved.node != first.node
    assert status_of(planner, "big").limit is None
