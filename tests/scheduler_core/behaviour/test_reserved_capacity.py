"""Reserved capacity is closed to other pods and open to the members of its gang."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.crd.reservations import EntryPhase
from gputopo.labels.reasons import Reason
from scheduler_core.cache.events import Batch, LedgerUpdate, NodeUpdate, PodUpdate, ReservationUpdate
from scheduler_core.cache.node_record import hold_uid
from scheduler_core.extender.decision_record import encode_decision, parse_decision, replay_differences
from scheduler_core.request.pod import Pod
from tests.machines import MACHINES
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, plan

H100, PAIRS = MACHINES["hgx_h100"](), MACHINES["a100_bridged"]()
RESERVED = Reason.RESERVED.value


def a_gang(*, phase: EntryPhase = COMMITTED) -> FakeScheduler:
    """Four members of four GPUs, two on each of two nodes; a third node is free."""
    stage = FakeScheduler.synced_with_reservations(
        {"a": H100, "b": H100, "c": H100}, *(pod_update(f"m{at}", 4) for at in range(4))
    )
    gang = plan("g", {"m0": ("a", 4), "m1": ("a", 4), "m2": ("b", 4), "m3": ("b", 4)})
    stage.write_ledger((gang, phase))
    return stage


@pytest.mark.parametrize("phase", [PROPOSED, COMMITTED])
def test_other_pods_go_to_other_nodes(phase: EntryPhase) -> None:
    assert a_gang(phase=phase).filter(unbound_pod("x", 1)).nodes == ("c",)


def test_reservation_is_the_reason_if_nothing_else_rejects() -> None:
    stage = a_gang()
    stage.watch_pods(pod_update("y", 1, on="c"))
    found = stage.filter(unbound_pod("x", 8))

    assert dict(found.rejected) == {"a": RESERVED, "b": RESERVED, "c": Reason.TOO_FEW_GPUS.value}
    assert found.may_fit_soon  # the members will be bound soon, perhaps without an event that kube-scheduler sees


def test_other_reasons_come_before_the_reservation() -> None:
    stage = a_gang()

    found = stage.filter(unbound_pod("x", 4, min_vram="900Gi"))

    assert dict(found.rejected) == dict.fromkeys("abc", Reason.VRAM.value)


def test_capacity_hold_is_unresolvable() -> None:
    """A hold may last for hours: kube-scheduler retries at the next event, not every ten seconds."""
    stage = FakeScheduler.synced_with_reservations({"a": H100})
    stage.write_ledger((plan("r", held={"a": 8}), HELD))

    found = stage.filter(unbound_pod("x", 1))

    assert (dict(found.rejected), found.may_fit_soon) == ({"a": RESERVED}, False)


@pytest.mark.parametrize(
    ("resource", "wishes"),
    [
        pytest.param("nvidia.com/mig-1g.10gb", {}, id="MIG devices"),
        pytest.param("nvidia.com/gpu.shared", {}, id="shares of GPUs"),
        pytest.param("nvidia.com/gpu.shared", {"vram": "10Gi"}, id="shares of a size"),
    ],
)
def test_capacity_hold_of_shares_and_mig_devices(resource: str, wishes: dict[str, str]) -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100})
    stage.set_allocatable("a", {resource: 8})
    stage.write_ledger((plan("r", held={"a": 6}, resource=resource), HELD))

    assert dict(stage.filter(unbound_pod("x", 3, resource=resource, **wishes)).rejected) == {"a": RESERVED}
    assert stage.filter(unbound_pod("y", 2, resource=resource, **wishes)).nodes == ("a",)


@pytest.mark.parametrize(
    ("gpus", "wishes", "reason", "soon"),
    [
        pytest.param(4, {}, RESERVED, True, id="it may have room beside what is kept there"),
        pytest.param(8, {}, RESERVED, True, id="it would have room without"),
        pytest.param(4, {"min_vram": "900Gi"}, Reason.VRAM.value, False, id="it would not suit anyway"),
    ],
)
def test_in_flight_pods_close_a_node_with_a_reservation(
    gpus: int, wishes: dict[str, str], reason: str, soon: bool
) -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, pod_update("m0", 4))
    stage.write_ledger((plan("g", {"m0": ("a", 4)}), COMMITTED))
    stage.extender.settling = True

    found = stage.filter(unbound_pod("x", gpus, **wishes))

    assert (found.nodes, dict(found.rejected), found.may_fit_soon) == ((), {"a": reason}, soon)


def test_capacity_hold_is_unresolvable_with_in_flight_pods_too() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100, "b": MACHINES["rtx4090"]()}, pod_update("m0", 1))
    stage.write_ledger((plan("r", held={"a": 8}), HELD), (plan("g", {"m0": ("b", 1)}), PROPOSED))
    stage.extender.settling = True

    found = stage.filter(unbound_pod("x", 1, min_vram="60Gi"))

    assert (dict(found.rejected), found.may_fit_soon) == ({"a": RESERVED, "b": Reason.VRAM.value}, False)


def test_member_fits_on_its_place() -> None:
    stage = a_gang()

    for name, node in (("m0", "a"), ("m1", "a"), ("m2", "b"), ("m3", "b")):
        assert stage.filter(unbound_pod(name, 4, island="required"), node).nodes == (node,)
    assert stage.cache.snapshot.states["a"].free_devices("nvidia.com/gpu") == 0


def test_member_does_not_get_the_place_of_another_member() -> None:
    stage = a_gang()
    stage.filter(unbound_pod("m0", 4), "a")

    assert dict(stage.filter(unbound_pod("m0", 4), "b").rejected) == {"b": RESERVED}


def test_member_is_ranked_as_if_its_place_were_free() -> None:
    stage = a_gang()
    alone = dict(stage.extender.prioritize(unbound_pod("x", 4), {"a", "b", "c"}))
    own = dict(stage.extender.prioritize(unbound_pod("m0", 4), {"a", "b", "c"}))
    stage.filter(unbound_pod("m0", 4), "a")

    assert (alone["a"], alone["b"]) == (0, 0)
    assert own["a"] > 0
    assert (own["b"], own["c"]) == (0, alone["c"])
    assert dict(stage.extender.prioritize(unbound_pod("m0", 4), {"a", "b", "c"})) == own


def test_place_is_kept_beside_a_hold() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": PAIRS}, pod_update("m0", 2))
    stage.write_ledger((plan("r", held={"a": 4}), HELD), (plan("g", {"m0": ("a", 2)}), COMMITTED))

    assert stage.cache.snapshot.records["a"].reserved == (hold_uid("a"), "uid-m0")
    assert stage.filter(unbound_pod("m0", 2, island="required")).nodes == ("a",)


def test_in_flight_pods_leave_enough_for_a_reservation() -> None:
    """Each of two pods fits beside the member; kube-scheduler, which sees no reservation, might place both."""
    stage = FakeScheduler.synced_with_reservations(
        {"a": PAIRS, "b": PAIRS}, pod_update("m0", 3), pod_update("y", 3, on="b")
    )
    stage.write_ledger((plan("g", {"m0": ("a", 3)}), COMMITTED))

    assert set(stage.filter(unbound_pod("x1", 1)).nodes) == {"a", "b"}
    found = stage.filter(unbound_pod("x2", 1))
    assert found.nodes == ("b",)
    assert stage.filter(unbound_pod("x3", 1), "a").may_fit_soon


def test_reserved_capacity_follows_the_state_of_its_pod() -> None:
    stage = a_gang()
    stage.watch_pods(pod_update("m0", 4, island="required"))
    assert stage.cache.snapshot.records["a"].pods[0].profile.requires_shape

    stage.watch_pods(pod_update("m0", 4, on="c"))
    assert stage.cache.snapshot.records["a"].reserved == ("uid-m1",)
    assert stage.filter(unbound_pod("x", 4), "a").nodes == ("a",)

    stage.watch_pods(gone=["uid-m1"])
    assert stage.cache.snapshot.records["a"].reserved == ("uid-m1",)
    assert (
        stage.cache.snapshot.records["a"].pods[0].profile.constraints
        == pod_update("m1", 4).occupant.profile.constraints
    )


def test_planner_can_evaluate_without_a_reservation() -> None:
    stage = a_gang()
    cluster_cache = stage.cache

    without = cluster_cache.snapshot_without({"uid-g"})

    assert [without.states[name].free_devices("nvidia.com/gpu") for name in "abc"] == [8, 8, 8]
    assert [cluster_cache.snapshot.states[name].free_devices("nvidia.com/gpu") for name in "abc"] == [0, 0, 8]
    assert cluster_cache.snapshot_without({"uid-unknown"}) is cluster_cache.snapshot


def test_no_decision_before_reservations_and_ledgers_are_listed() -> None:
    stage = FakeScheduler({"a": H100}, reservations=True)
    stage.watch_nodes(complete=True)
    stage.watch_pods(complete=True)
    stage.watch_reports({}, complete=True)

    assert stage.cache.missing_kinds == ("placementreservations", "placementledgers")
    stage.cache.apply_batch(Batch(ReservationUpdate, (), is_full_list=True), stage.now)
    assert not stage.cache.synced
    stage.cache.apply_batch(Batch(LedgerUpdate, (), is_full_list=True), stage.now)
    assert stage.cache.synced


def test_node_may_appear_after_its_reservation() -> None:
    stage = a_gang()
    stage.cache.apply_batch(Batch(NodeUpdate, (), ("a",)), stage.now)
    assert sorted(stage.cache.snapshot_without({"uid-g"}).states) == ["b", "c"]

    stage.watch_nodes("a")

    assert stage.cache.snapshot.records["a"].reserved == ("uid-m0", "uid-m1")


def test_member_without_its_node_is_rejected_like_any_pod() -> None:
    stage = a_gang()
    stage.cache.apply_batch(Batch(NodeUpdate, (), ("a",)), stage.now)

    assert dict(stage.filter(unbound_pod("m0", 4), "a").rejected) == {"a": Reason.UNKNOWN_NODE.value}


def test_decision_with_reservations_is_replayed() -> None:
    stage = a_gang()
    for name, gpus in (("x", 8), ("m0", 4), ("y", 1)):
        stage.filter(unbound_pod(name, gpus), "a", "b")

    for each in stage.records:
        assert list(replay_differences(parse_decision(encode_decision(each)))) == []
    assert [bool(each.answer.nodes) for each in stage.records] == [False, True, False]


def test_ungated_pod_keeps_its_place_whatever_happens_to_its_plan() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, pod_update("m0", 4), pod_update("m1", 4))
    gang = plan("g", {"m0": ("a", 4), "m1": ("a", 4)})
    stage.write_ledger((gang, COMMITTED))
    stage.watch_pods(pod_update("m0", 4, claim=("g", "a")))

    stage.cache.apply_batch(Batch(ReservationUpdate, (), (gang.key,)), stage.now)
    assert dict(stage.filter(unbound_pod("x", 1)).rejected) == {"a": Reason.TOO_FEW_GPUS.value}
    stage.now += 31
    stage.cache.advance_time(stage.now)  # m1 may have been ungated without the watch showing it
    assert stage.state_of("a").free_devices("nvidia.com/gpu") == 4
    stage.watch_pods(gone=["uid-m0"])
    assert stage.state_of("a").free_devices("nvidia.com/gpu") == 8


def a_hold(held: int = 8, priority: int = 0) -> FakeScheduler:
    """A capacity hold on the first of two nodes. Of the second node, six GPUs are in use."""
    stage = FakeScheduler.synced_with_reservations({"a": H100, "b": H100}, pod_update("y", 6, on="b"))
    stage.write_ledger((plan("r", held={"a": held}, priority=priority), HELD))
    return stage


def with_priority(asked: Pod, priority: int) -> Pod:
    return msgspec.structs.replace(asked, spec=msgspec.structs.replace(asked.spec, priority=priority))


@pytest.mark.parametrize(
    ("of_hold", "of_pod", "nodes"),
    [
        pytest.param(-1000, 100_000, ("a",), id="a higher priority"),
        pytest.param(-1000, 0, ("a",), id="the default priority is higher than a negative one"),
        pytest.param(5, 5, (), id="an equal priority"),
        pytest.param(5, 4, (), id="a lower priority"),
    ],
)
def test_capacity_hold_yields_to_pods_of_a_higher_priority(of_hold: int, of_pod: int, nodes: tuple[str, ...]) -> None:
    stage = a_hold(priority=of_hold)

    for wishes in ({}, {"island": "required"}):
        assert stage.filter(with_priority(unbound_pod("x", 4, **wishes), of_pod)).nodes == nodes
    assert (dict(stage.extender.prioritize(with_priority(unbound_pod("x", 4), of_pod), {"a"}))["a"] > 0) == bool(nodes)


def test_the_name_of_a_priority_class_gives_no_priority() -> None:
    """The API server's admission sets the number; a tenant may write any name into a pod that it has not admitted."""
    asked = unbound_pod("x", 4)
    spec = msgspec.structs.replace(asked.spec, priority_class_name="system-cluster-critical")

    assert a_hold().filter(msgspec.structs.replace(asked, spec=spec)).nodes == ()


def test_held_capacity_is_used_only_if_no_other_capacity_suits() -> None:
    stage = a_hold()

    assert stage.filter(with_priority(unbound_pod("x", 2), 1)).nodes == ("b",)


def test_capacity_hold_keeps_what_a_pod_of_a_higher_priority_leaves() -> None:
    stage = a_hold(held=6)
    assert stage.filter(with_priority(unbound_pod("x", 4), 1)).nodes == ("a",)

    stage.watch_pods(pod_update("x", 4, on="a"))

    assert stage.filter(unbound_pod("z", 3)).nodes == ()
    assert stage.cache.snapshot.records["a"].reserved == (hold_uid("a"),)
    assert stage.filter(with_priority(unbound_pod("z", 4), 1)).nodes == ("a",)


def test_places_of_gangs_do_not_yield_to_priority() -> None:
    stage = a_gang()

    assert stage.filter(with_priority(unbound_pod("x", 8), 1_000_000), "a", "b").nodes == ()


def test_pod_of_a_higher_priority_stays_off_nodes_with_places_while_in_flight_pods_are_unknown() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, pod_update("m0", 4))
    stage.write_ledger((plan("r", held={"a": 4}), HELD), (plan("g", {"m0": ("a", 4)}), COMMITTED))
    stage.extender.settling = True
    assert stage.filter(with_priority(unbound_pod("x", 4), 1)).nodes == ()

    stage.extender.settling = False
    assert stage.filter(with_priority(unbound_pod("x", 4), 1)).nodes == ("a",)


def test_decision_that_ignores_a_hold_is_replayed() -> None:
    stage = a_hold()
    for name, priority in (("x", 1), ("z", 0)):
        stage.filter(with_priority(unbound_pod(name, 8), priority))

    for each in stage.records:
        assert list(replay_differences(parse_decision(encode_decision(each)))) == []
    assert [each.answer.nodes for each in stage.records] == [("a",), ()]


@given(
    held=st.lists(st.tuples(st.integers(1, 8), st.integers(-1, 2)), min_size=1, max_size=4),
    used=st.lists(st.integers(0, 8), min_size=4, max_size=4),
    asked=st.lists(st.tuples(st.integers(1, 8), st.integers(-1, 3), st.booleans()), min_size=1, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_a_pod_gets_a_node_exactly_if_it_would_without_the_holds_of_lower_priorities(
    held: list[tuple[int, int]], used: list[int], asked: list[tuple[int, int, bool]]
) -> None:
    """One hold on each node, of any priority; pods come one after the other, and those with a node stay."""

    def stage_with(holds: dict[str, tuple[int, int]], pods: list[PodUpdate]) -> FakeScheduler:
        stage = FakeScheduler.synced_with_reservations(dict.fromkeys("abcd", H100), *pods)
        stage.write_ledger(
            *((plan(f"r-{name}", held={name: gpus}, priority=low), HELD) for name, (gpus, low) in holds.items())
        )
        return stage

    holds = dict(zip("abcd", held, strict=False))
    pods = [pod_update(f"on-{name}", gpus, on=name) for name, gpus in zip("abcd", used, strict=True) if gpus]
    stage = stage_with(holds, pods)
    for at, (gpus, priority, whole) in enumerate(asked):
        pod = with_priority(unbound_pod(f"x{at}", gpus, **({"island": "required"} if whole else {})), priority)
        others = stage_with({name: each for name, each in holds.items() if each[1] >= priority}, pods)

        nodes = stage.filter(pod).nodes

        assert bool(nodes) == bool(others.filter(pod).nodes)
        if nodes:
            pods.append(pod_update(f"x{at}", gpus, on=nodes[0]))
            stage.watch_pods(pods[-1])
