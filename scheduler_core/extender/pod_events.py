"""Events that the extender writes on pods. Pure; ``runtime/event_writer`` sends them."""

from __future__ import annotations

from gputopo.labels.reasons import Reason
from scheduler_core.evaluation.prediction_check import PredictionCheck
from scheduler_core.runtime.event_writer import EventDraft

_BROKEN = {  # by the reasons in ``required.SHAPE``
    Reason.ISLAND: "are not in one NVLink island",
    Reason.INTERCONNECT: "are not joined by the interconnect that it requires",
    Reason.BANDWIDTH: "have less NVLink bandwidth than it requires",
    Reason.NUMA: "are not on one NUMA node",
}


def violated_shape_event(found: PredictionCheck) -> EventDraft:
    """Of a pod whose required shape the GPUs it got do not have. It is left alone: to end it is its owner's."""
    assert found.violated is not None  # else nobody is told
    pod = found.pod
    message = (
        f"the GPUs that the kubelet of {found.node} gave this pod {_BROKEN[found.violated]}. It keeps running; to have "
        "it placed anew, delete it. Why this may happen: docs/troubleshooting.md"
    )
    return EventDraft("Pod", pod.namespace, pod.name, pod.uid, "GpuShapeBroken", message, warning=True)
