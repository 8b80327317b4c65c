"""What pods are told of by the extender."""

from __future__ import annotations

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.evaluation.prediction_check import Settled
from scheduler_core.evaluation.shape_rules import SHAPE
from scheduler_core.extender.pod_events import of_broken
from scheduler_core.request.pod_request import Profile
from scheduler_core.runtime.event_writer import Tell


def broken(reason: Reason) -> Settled:
    return Settled(Occupant("uid-train", "team", "train", Profile()), "gpu-7", None, 3, None, reason)


def test_whatever_shape_is_broken_there_are_words_for_it() -> None:
    assert len({of_broken(broken(reason)).message for reason in SHAPE}) == len(SHAPE)


def test_a_pod_is_told_what_is_wrong_and_what_to_do() -> None:
    assert of_broken(broken(Reason.NUMA)) == Tell(
        "Pod",
        "team",
        "train",
        "uid-train",
        "GpuShapeBroken",
        "the GPUs that the kubelet of gpu-7 gave this pod are not on one NUMA node. It keeps running; to have it "
        "placed anew, delete it. Why this may happen: docs/troubleshooting.md",
        warning=True,
    )
