"""Events of the extender on pods. Pure; ``runtime/event_writer`` sends them."""

from __future__ import annotations

from gputopo.labels.reasons import Reason
from scheduler_core.evaluation.prediction_check import PredictionCheck
from scheduler_core.runtime.event_writer import EventDraft

_SHAPE_BROKEN = "GpuShapeBroken"
EVENT_REASONS = (_SHAPE_BROKEN,)
_VIOLATIONS = {
    Reason.ISLAND: "are not in one NVLink island",
    Reason.INTERCONNECT: "do not have the required interconnect",
    Reason.BANDWIDTH: "have less NVLink bandwidth than required",
    Reason.NUMA: "are not on one NUMA node",
    Reason.PCIE_DISTANCE: "are farther apart on PCIe than required",
    Reason.NIC: "have no network card on their NUMA node",
}


def violated_shape_event(found: PredictionCheck) -> EventDraft:
    """Return the Event for a pod whose GPUs violate its required shape. gputopo does not delete the pod."""
    assert found.violated is not None
    pod = found.pod
    message = (
        f"the GPUs that the kubelet of {found.node} allocated to this pod {_VIOLATIONS[found.violated]}. The pod keeps "
        "running; delete it to place it again. For causes see docs/troubleshooting.md"
    )
    return EventDraft("Pod", pod.namespace, pod.name, pod.uid, _SHAPE_BROKEN, message, warning=True)
