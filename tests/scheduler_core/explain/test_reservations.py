"""For whom GPUs are kept that a pod is refused, in words and as values."""

from __future__ import annotations

import pytest

from gputopo.crd.reservations import EntryPhase, ReservationStatus
from scheduler_core.explain import explain, explanation_text, with_reservations
from scheduler_core.explain.model import Explanation, ReservedGpus
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, request
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, plan

H100 = MACHINES["hgx_h100"]()
BY_NOON, AT_ONE = ReservationStatus(deadline="2026-11-18T12:00:00Z"), ReservationStatus(estimate="2026-11-18T13:00:00Z")


def explained(stage: FakeScheduler, gpus: int = 8, name: str = "new") -> Explanation:
    asked, table = request(gpus, name), stage.cache.snapshot_for_pod(f"uid-{name}")
    found = explain(asked, table, None, Policy(), NOW)
    return with_reservations(found, table, stage.cache.reservations.active.values(), asked.uid)


def lines(explanation: Explanation) -> list[str]:
    story = explanation_text(explanation, 200).splitlines()
    start = story.index("Reserved there:")
    return story[start + 1 : story.index("", start) if "" in story[start:] else None]


def test_reservations_with_their_gpus_nodes_and_times() -> None:
    stage = FakeScheduler.synced_with_reservations(
        {"a": H100, "b": H100, "c": H100}, pod_update("m0", 4), pod_update("x", 6, on="b")
    )
    stage.write_ledger(
        (plan("llm-1", {"m0": ("a", 4), "m1": ("a", 1)}, status=BY_NOON), COMMITTED),
        (plan("big-2", held={"a": 8, "b": 8}, gang="big", status=AT_ONE), HELD),
        (plan("batch-3", {"solo": ("c", 1)}, gang=""), PROPOSED),
    )

    found = explained(stage)

    assert found.kept == (
        ReservedGpus(gang=None, reservation="team/batch-3", phase="Proposed", until=None, gpus=1, nodes=("c",)),
        ReservedGpus(
            gang="team/big", reservation="team/big-2", phase="Held", until="2026-11-18T13:00:00Z", gpus=3, nodes=("a",)
        ),
        ReservedGpus(
            gang="team/llm",
            reservation="team/llm-1",
            phase="Committed",
            until="2026-11-18T12:00:00Z",
            gpus=5,
            nodes=("a",),
        ),
    )
    assert lines(found) == [
        "- 1 GPU for pods without a gang, until its members are bound: c (team/batch-3)",
        "- 3 GPUs for the gang team/big, until it fits, expected at 2026-11-18T13:00:00Z: a (team/big-2)",
        "- 5 GPUs for the gang team/llm, until 2026-11-18T12:00:00Z at the latest: a (team/llm-1)",
    ]


def test_a_hold_without_an_estimate() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100})
    stage.write_ledger((plan("big-2", held={"a": 8}, gang="big"), HELD))

    assert lines(explained(stage)) == ["- 8 GPUs for the gang team/big, until it fits: a (team/big-2)"]


def test_a_hold_of_a_single_pod_and_of_mig_devices() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100})
    stage.set_allocatable("a", {"nvidia.com/mig-1g.10gb": 7})
    stage.write_ledger((plan("large-2", held={"a": 4}, resource="nvidia.com/mig-1g.10gb", gang="pod.uid-large"), HELD))
    asked = request(7, resource="nvidia.com/mig-1g.10gb")

    found = explain(asked, stage.cache.snapshot, None, Policy(), NOW)
    found = with_reservations(found, stage.cache.snapshot, stage.cache.reservations.active.values(), asked.uid)

    assert lines(found) == ["- 4 GPUs for a single pod, until it fits: a (team/large-2)"]


def test_reservations_on_nodes_that_do_not_fit_anyway_are_left_out() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, pod_update("x", 1, on="a"), pod_update("m0", 4))
    stage.write_ledger((plan("g", {"m0": ("a", 4)}), COMMITTED))

    assert explained(stage).kept == ()


def test_the_reservation_of_its_own_place_is_a_note() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, pod_update("new", 8))
    stage.write_ledger((plan("g", {"new": ("a", 8)}), COMMITTED))

    found = explained(stage)

    assert found.suited == ("a",)
    assert "its place on a is reserved by team/g (Committed)" in found.notes


@pytest.mark.parametrize("phase", [COMMITTED, HELD])
def test_a_reserved_place_is_not_a_pod_that_could_end(phase: EntryPhase) -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, pod_update("m0", 8))
    stage.write_ledger((plan("g", {"m0": ("a", 8)}, held={"a": 8}), phase))

    assert [each for each in explained(stage).nearest if each.pods] == []
