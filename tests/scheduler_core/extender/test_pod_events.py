"""The Events that the extender writes about pods."""

from __future__ import annotations

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.evaluation.prediction_check import PredictionCheck
from scheduler_core.evaluation.shape_rules import SHAPE_REASONS
from scheduler_core.extender.pod_events import violated_shape_event
from scheduler_core.request.pod_request import PodProfile
from scheduler_core.runtime.event_writer import EventDraft


def broken(reason: Reason) -> PredictionCheck:
    return PredictionCheck(Occupant("uid-train", "team", "train", PodProfile()), "gpu-7", None, 3, None, reason)


def test_every_violated_shape_has_a_text() -> None:
    assert len({violated_shape_event(broken(reason)).message for reason in SHAPE_REASONS}) == len(SHAPE_REASONS)


def test_an_event_names_the_violation_and_the_action() -> None:
    assert violated_shape_event(broken(Reason.NUMA)) == EventDraft(
        "Pod",
        "team",
        "train",
        "uid-train",
        "GpuShapeBroken",
        "the GPUs that the kubelet of gpu-7 allocated to this pod are not on one NUMA node. The pod keeps running; "
        "delete it to place it again. For causes see docs/troubleshooting.md",
        warning=True,
    )
