"""The index of reservations: which reservations count, on which nodes, and for how long."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.crd.reservations import EntryPhase, PlannedMember, ReservationSpec, spec_hash
from scheduler_core.cache.events import Batch, LedgerUpdate, PodUpdate, ReservationUpdate
from scheduler_core.cache.node_record import NodeRecord, hold_uid
from scheduler_core.cache.reservations import ReservationIndex
from tests.machines import MACHINES
from tests.scheduler_core.builders import occupant, record
from tests.scheduler_core.fake_scheduler import pod_update
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, entry, ledger, plan

H100 = MACHINES["hgx_h100"]()
GANG = plan("g", {"m0": ("a", 4), "m1": ("a", 4), "m2": ("b", 8)})
ROOM = plan("r", held={"a": 3, "b": 8})


def listed(*pods: PodUpdate) -> ReservationIndex:
    return ReservationIndex({pod.key: pod for pod in pods})


def shown(reserved: ReservationIndex, *reservations: ReservationUpdate) -> set[str]:
    return reserved.apply_reservations(Batch(ReservationUpdate, reservations))


def written(reserved: ReservationIndex, *ledgers: LedgerUpdate) -> set[str]:
    return reserved.apply_ledgers(Batch(LedgerUpdate, ledgers))


def node(name: str = "a", *taken: tuple[str, int]) -> NodeRecord:
    return record(name, H100, held={}, pods=[occupant(pod, gpus) for pod, gpus in taken])


def kept(reserved: ReservationIndex, name: str = "a", *taken: tuple[str, int]) -> dict[str, int]:
    """Return the reserved GPUs of a node by UID."""
    found = reserved.with_reservations(node(name, *taken))
    return {pod.uid: pod.profile.gpus for pod in found.pods if pod.uid in found.reserved}


@pytest.mark.parametrize("phase", [PROPOSED, COMMITTED])
def test_a_reservation_counts_once_it_exists_and_is_listed(phase: EntryPhase) -> None:
    reserved, listing = listed(), ledger(entry(GANG, phase))

    assert shown(reserved, GANG) == set()
    assert kept(reserved) == {}
    assert written(reserved, listing) == {"a", "b"}
    assert kept(reserved) == {"uid-m0": 4, "uid-m1": 4}
    assert [each.entry for each in reserved.active.values()] == [entry(GANG, phase)]
    assert dict(reserved.active).keys() == {"uid-g"}


def test_the_order_of_reservation_and_ledger_does_not_matter() -> None:
    reserved = listed()

    assert written(reserved, ledger(entry(GANG))) == set()
    assert list(reserved.unmatched_entries) == [entry(GANG)]
    assert shown(reserved, GANG) == {"a", "b"}
    assert list(reserved.unmatched_entries) == []
    assert (dict(reserved.reservations), dict(reserved.ledgers)) == ({"uid-g": GANG}, {"gpus": ledger(entry(GANG))})


def test_a_reservation_with_another_hash_does_not_count() -> None:
    reserved = listed()
    written(reserved, ledger(entry(plan("g", {"m0": ("a", 1)}))))

    assert shown(reserved, GANG) == set()
    assert list(reserved.unmatched_entries) != []


def test_a_committed_reservation_reserves_what_was_proposed() -> None:
    reserved = listed()
    shown(reserved, GANG)
    written(reserved, ledger(entry(GANG, PROPOSED)))

    assert written(reserved, ledger(entry(GANG, COMMITTED), generation=2)) == set()
    assert reserved.active["uid-g"].entry.phase is COMMITTED
    assert kept(reserved) == {"uid-m0": 4, "uid-m1": 4}


def test_a_reservation_that_is_no_longer_listed_does_not_count() -> None:
    reserved = listed()
    shown(reserved, GANG)
    written(reserved, ledger(entry(GANG)))

    assert written(reserved, ledger(generation=2)) == {"a", "b"}
    assert kept(reserved) == {}
    assert dict(reserved.active) == {}
    assert reserved.nodes_for("uid-m0") == ()


def test_a_deleted_reservation_does_not_count() -> None:
    reserved = listed()
    shown(reserved, GANG)
    written(reserved, ledger(entry(GANG)))

    assert reserved.apply_reservations(Batch(ReservationUpdate, (), ("uid-g",))) == {"a", "b"}
    assert kept(reserved) == {}


def test_a_full_list_replaces_all_reservations() -> None:
    reserved = listed()
    shown(reserved, GANG)
    written(reserved, ledger(entry(GANG)))

    assert reserved.apply_ledgers(Batch(LedgerUpdate, (), is_full_list=True)) == {"a", "b"}
    assert dict(reserved.ledgers) == {}


def test_a_changed_status_changes_nothing() -> None:
    reserved = listed()
    shown(reserved, GANG)
    written(reserved, ledger(entry(GANG)))

    assert shown(reserved, GANG._replace(version="7")) == set()
    assert reserved.active["uid-g"].reservation.version == "7"


def test_a_known_pod_is_reserved_with_its_own_profile() -> None:
    known = pod_update("m0", 4, island="required")
    reserved = listed(known)
    shown(reserved, GANG)
    written(reserved, ledger(entry(GANG)))

    found = reserved.with_reservations(node())

    assert found.pods[0] == known.occupant
    assert found.pods[1] == occupant("m1", 4)


def test_a_pod_that_is_assumed_there_is_not_counted_twice() -> None:
    reserved = listed()
    shown(reserved, GANG)
    written(reserved, ledger(entry(GANG)))

    found = reserved.with_reservations(node("a", ("m0", 4)))

    assert [pod.uid for pod in found.pods] == ["uid-m0", "uid-m1"]
    assert found.reserved == ("uid-m0", "uid-m1")


def test_a_seat_is_used_up_once_its_pod_is_bound() -> None:
    reserved = listed()
    shown(reserved, GANG)
    written(reserved, ledger(entry(GANG)))

    assert list(reserved.nodes_for("uid-m0")) == ["a"]
    assert list(reserved.mark_bound("uid-m0")) == ["a"]
    assert reserved.nodes_for("uid-m0") == ()
    assert kept(reserved) == {"uid-m1": 4}
    assert reserved.mark_bound("uid-stranger") == ()


def test_a_bound_pod_needs_no_seat() -> None:
    reserved = listed(pod_update("m0", 4, on="a"))
    shown(reserved, GANG)
    written(reserved, ledger(entry(GANG)))

    assert kept(reserved) == {"uid-m1": 4}


def test_two_reservations_for_one_pod_keep_both_seats() -> None:
    """Planners do not do this; if it happens, nothing is given away."""
    reserved, other = listed(), plan("other", {"m0": ("b", 4)})
    shown(reserved, GANG, other)
    written(reserved, ledger(entry(GANG), entry(other)))

    assert sorted(reserved.nodes_for("uid-m0")) == ["a", "b"]
    written(reserved, ledger(entry(GANG), generation=2))
    assert list(reserved.nodes_for("uid-m0")) == ["a"]


def test_members_without_a_node_or_without_gpus_take_nothing() -> None:
    spec = ReservationSpec("g", (PlannedMember("u1", "launcher"), PlannedMember("u2", "cpu", "a")))
    launcher = ReservationUpdate("uid-l", "team", "l", spec, spec_hash(spec))
    reserved = listed()
    shown(reserved, launcher)

    assert written(reserved, ledger(entry(launcher))) == set()
    assert kept(reserved) == {}


@pytest.mark.parametrize(
    ("taken", "held"),
    [
        pytest.param((), 3, id="of what is free"),
        pytest.param((("x", 6),), 2, id="no more than is free"),
        pytest.param((("x", 8),), 0, id="nothing of what others have"),
    ],
)
def test_a_hold_takes_the_free_devices(taken: tuple[tuple[str, int], ...], held: int) -> None:
    reserved = listed()
    shown(reserved, ROOM)

    assert written(reserved, ledger(entry(ROOM, HELD))) == {"a", "b"}
    assert kept(reserved, "a", *taken) == ({hold_uid("a"): held} if held else {})


def test_a_hold_takes_devices_of_each_resource() -> None:
    small, large = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
    rooms = [plan("r", held={"a": 3}, resource=small), plan("s", held={"a": 9}, resource=large, gang="other")]
    sliced = record("a", H100, held={}, allocatable={small: 4, large: 2}, pods=[occupant("x", 2, resource=small)])
    reserved = listed()
    shown(reserved, *rooms)
    written(reserved, ledger(*(entry(each, HELD) for each in rooms)))

    (room,) = (pod for pod in reserved.with_reservations(sliced).pods if pod.uid == hold_uid("a"))
    assert room.profile.device_request.totals == ((small, 2), (large, 2))


def test_a_hold_takes_what_seats_leave() -> None:
    reserved, small = listed(), plan("s", {"m0": ("a", 6)})
    shown(reserved, ROOM, small)
    written(reserved, ledger(entry(ROOM, HELD), entry(small)))

    assert kept(reserved) == {"uid-m0": 6, hold_uid("a"): 2}


def test_a_hold_becomes_seats() -> None:
    both = plan("g", {"m0": ("a", 4)}, held={"a": 8})
    reserved = listed()
    shown(reserved, both)
    written(reserved, ledger(entry(both, HELD)))

    assert kept(reserved) == {hold_uid("a"): 8}
    assert written(reserved, ledger(entry(both, PROPOSED), generation=2)) == {"a"}
    assert kept(reserved) == {"uid-m0": 4}


def test_a_reservation_can_be_excluded() -> None:
    reserved, other = listed(), plan("other", {"x": ("a", 1)})
    shown(reserved, GANG, other)
    written(reserved, ledger(entry(GANG), entry(other)))

    assert reserved.with_reservations(node(), excluded={"uid-g"}).reserved == ("uid-x",)
    assert reserved.with_reservations(node(), excluded={"uid-g", "uid-other"}) == node()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_the_index_depends_only_on_the_current_objects(seed: int) -> None:
    """After any order of events the index equals one made from the current objects, except for pods that ended."""
    random, pods = Random(seed), dict[str, PodUpdate]()
    reserved = ReservationIndex(pods)
    plans = {f"p{at}": [_plan(random, f"p{at}") for _ in range(2)] for at in range(4)}
    there: dict[str, ReservationUpdate] = {}
    ledgers: dict[str, LedgerUpdate] = {}
    touched = set[str]()
    before = {name: reserved.with_reservations(node(name)) for name in "abc"}
    for step in range(30):
        if random.random() < 0.5:
            name = random.choice(list(plans))
            if name in there and random.random() < 0.4:
                del there[name]
                touched = reserved.apply_reservations(Batch(ReservationUpdate, (), (f"uid-{name}",)))
            else:
                there[name] = random.choice(plans[name])
                touched = shown(reserved, there[name])
        else:
            listing = [entry(random.choice(plans[name]), random.choice((HELD, PROPOSED, COMMITTED))) for name in plans]
            chosen = [each for each in listing if random.random() < 0.6]
            ledgers["gpus"] = ledger(*chosen, generation=step)
            touched = written(reserved, ledgers["gpus"])
        after = {name: reserved.with_reservations(node(name)) for name in "abc"}
        assert {name for name in after if after[name] != before[name]} <= touched
        before = after

    anew = ReservationIndex(pods)
    written(anew, *ledgers.values())
    shown(anew, *there.values())
    assert {name: anew.with_reservations(node(name)) for name in "abc"} == before
    assert anew.active == reserved.active


def _plan(random: Random, name: str) -> ReservationUpdate:
    seats = {f"{name}-{at}": (random.choice("abc"), random.randint(1, 4)) for at in range(random.randint(0, 3))}
    return plan(name, seats, held={node: random.randint(0, 8) for node in "abc" if random.random() < 0.5})
