"""Claims of pods to be pinned by a planner: a claim counts only where it is proved."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.crd.reservations import EntryPhase, ReservationState, ReservationStatus
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.cache.assumed_pods import WITH_VOLUMES_S
from scheduler_core.cache.events import Batch, LedgerUpdate, ReservationUpdate
from tests.machines import MACHINES
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod
from tests.scheduler_core.planner.packing.plans import COMMITTED, PROPOSED, ledger, plan

NODES = {"a": MACHINES["hgx_h100"](), "b": MACHINES["hgx_h100"]()}
UNGATED = pod_update("m0", 8, claim=("g", "a"))
PLAN = plan("g", {"m0": ("a", 8)})
FAILED = PLAN._replace(status=ReservationStatus(ReservationState.FAILED))


def free(stage: FakeScheduler) -> dict[str, int]:
    """Return the GPUs of each node that other pods may get."""
    return {name: stage.state_of(name).free_devices("nvidia.com/gpu") for name in NODES}


ALL, NONE_OF_A = {"a": 8, "b": 8}, {"a": 0, "b": 8}


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        pytest.param((), ALL, id="there is no such reservation"),
        pytest.param((PLAN,), NONE_OF_A, id="the ledger does not list it yet, or any more"),
        pytest.param((FAILED,), ALL, id="it failed: the pod was not bound in time"),
        pytest.param((FAILED, PLAN._replace(key="2")), NONE_OF_A, id="it failed, and was created again"),
        pytest.param((plan("g", {"m0": ("b", 8)}),), ALL, id="it lists the pod for another node"),
        pytest.param((plan("g", {"m1": ("a", 8)}),), ALL, id="it lists another pod for that node"),
        pytest.param((plan("h", {"m0": ("a", 8)}),), ALL, id="one of another name lists it, and does not count"),
        pytest.param((PLAN._replace(namespace="gputopo"),), NONE_OF_A, id="a batch of single pods lists it"),
    ],
)
def test_a_claim_counts_where_a_reservation_lists_that_pod_for_that_node(
    kept: tuple[ReservationUpdate, ...], expected: dict[str, int]
) -> None:
    stage = FakeScheduler.synced_with_reservations(NODES, UNGATED, kept=kept)

    assert free(stage) == expected
    later = FakeScheduler.synced_with_reservations(NODES, kept=kept)
    later.watch_pods(UNGATED)
    assert free(later) == expected


def test_a_forged_claim_reserves_nothing() -> None:
    stage = FakeScheduler.synced_with_reservations(
        NODES, *(pod_update(f"f{at}", 8, claim=("g", node)) for at, node in enumerate(NODES))
    )

    assert set(stage.filter(unbound_pod("x", 8)).nodes) == {"a", "b"}


def test_a_proved_claim_counts_until_the_pod_ends_whatever_happens_to_the_reservation() -> None:
    stage = FakeScheduler.synced_with_reservations(NODES, UNGATED, kept=[PLAN])

    stage.cache.apply_batch(Batch(ReservationUpdate, (), (PLAN.key,)), stage.now)
    stage.now += 10 * ASSUMED_POD_LIFETIME_S
    stage.watch_pods(pod_update("m0", 8, claim=("g", "a"), admitted=True))  # another field changed
    assert free(stage) == NONE_OF_A
    assert stage.cache.ungated_to("uid-m0") == "a"

    stage.watch_pods(gone=["uid-m0"])
    assert free(stage) == ALL
    stage.watch_pods(UNGATED)
    assert free(stage) == ALL


def test_a_proved_claim_ends_when_the_pod_is_bound() -> None:
    stage = FakeScheduler.synced_with_reservations(NODES, UNGATED, kept=[PLAN])

    stage.watch_pods(pod_update("m0", 8, on="a"))

    assert free(stage) == NONE_OF_A
    assert stage.cache.ungated_to("uid-m0") is None


@pytest.mark.parametrize(("late_s", "expected"), [(5.0, NONE_OF_A), (ASSUMED_POD_LIFETIME_S + 5.0, ALL)])
def test_a_claim_may_be_shown_a_little_later_than_the_end_of_its_reservation(
    late_s: float, expected: dict[str, int]
) -> None:
    stage = FakeScheduler.synced_with_reservations(NODES, pod_update("m0", 8))
    stage.write_ledger((PLAN, COMMITTED))
    stage.cache.apply_batch(Batch(ReservationUpdate, (), (PLAN.key,)), stage.now)

    stage.now += late_s
    stage.cache.advance_time(stage.now)
    stage.watch_pods(UNGATED)
    stage.now += 10 * ASSUMED_POD_LIFETIME_S
    stage.cache.advance_time(stage.now)

    assert free(stage) == expected


def test_a_claim_ends_with_the_failure_of_its_reservation_when_no_binding_can_be_under_way() -> None:
    stage = FakeScheduler.synced_with_reservations(NODES, UNGATED)
    stage.write_ledger((PLAN, COMMITTED))

    stage.cache.apply_batch(Batch(LedgerUpdate, (ledger(generation=2),)), stage.now)
    stage.cache.apply_batch(Batch(ReservationUpdate, (FAILED,)), stage.now)
    assert free(stage) == NONE_OF_A
    assert stage.cache.ungated_to("uid-m0") is None
    stage.now += ASSUMED_POD_LIFETIME_S
    stage.cache.advance_time(stage.now)
    assert free(stage) == ALL

    assert stage.filter(unbound_pod("x", 8)).nodes
    stage.watch_pods(pod_update("m0", 8, on="a"))
    assert free(stage)["a"] == 0


@pytest.mark.parametrize("first", ["ledger", "status"])
def test_an_admission_outlasts_the_failure_of_the_reservation(first: str) -> None:
    """The pod passed Filter with its volumes, which kube-scheduler binds for up to ten minutes."""
    stage = FakeScheduler.synced_with_reservations(NODES, UNGATED)
    stage.write_ledger((PLAN, COMMITTED))
    stage.cache.assume_pod(UNGATED.occupant, frozenset({"a"}), WITH_VOLUMES_S)

    batches: list[Batch[Any]] = [Batch(LedgerUpdate, (ledger(generation=2),)), Batch(ReservationUpdate, (FAILED,))]
    for each in batches if first == "ledger" else reversed(batches):
        stage.cache.apply_batch(each, stage.now)
    stage.now += WITH_VOLUMES_S - 1.0
    stage.cache.advance_time(stage.now)
    assert free(stage) == NONE_OF_A
    stage.now += 1.0
    stage.cache.advance_time(stage.now)
    assert free(stage) == ALL


@pytest.mark.parametrize(("phase", "expected"), [(PROPOSED, NONE_OF_A), (COMMITTED, NONE_OF_A)])
def test_a_removed_ledger_entry_leaves_the_ungated_pods(phase: EntryPhase, expected: dict[str, int]) -> None:
    """A reservation with ungated members may be only proposed: the ledger had lost it."""
    stage = FakeScheduler.synced_with_reservations(NODES, UNGATED)
    stage.write_ledger((PLAN, phase))

    stage.cache.apply_batch(Batch(LedgerUpdate, (ledger(generation=2),)), stage.now)
    stage.cache.apply_batch(Batch(ReservationUpdate, (), (PLAN.key,)), stage.now)
    stage.now += 10 * ASSUMED_POD_LIFETIME_S
    stage.cache.advance_time(stage.now)

    assert free(stage) == expected


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        pytest.param((), NONE_OF_A, id="its reservation was deleted by hand"),
        pytest.param((plan("g", {"m1": ("b", 8)}),), ALL, id="it is there, and does not list the pod"),
        pytest.param((plan("g", {"m1": ("b", 8)})._replace(namespace="x"),), NONE_OF_A, id="another namespace has one"),
    ],
)
def test_where_only_planners_write_the_annotation_a_claim_counts_without_its_reservation(
    kept: tuple[ReservationUpdate, ...], expected: dict[str, int]
) -> None:
    assert free(FakeScheduler.synced_with_reservations(NODES, UNGATED, kept=kept, guarded=True)) == expected
    later = FakeScheduler.synced_with_reservations(NODES, kept=kept, guarded=True)
    later.watch_pods(UNGATED)
    assert free(later) == expected
