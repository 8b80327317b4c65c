"""What people are told by Events on pods and reservations. Pure; ``announcing`` writes them."""

from __future__ import annotations

from typing import NamedTuple

from gputopo.labels.reasons import Reason
from scheduler_core.evaluation.prediction_check import Settled

_BROKEN = {  # by the reasons in ``required.SHAPE``
    Reason.ISLAND: "are not in one NVLink island",
    Reason.INTERCONNECT: "are not joined by the interconnect that it requires",
    Reason.BANDWIDTH: "have less NVLink bandwidth than it requires",
    Reason.NUMA: "are not on one NUMA node",
}


class Tell(NamedTuple):
    """An Event."""

    kind: str  # "Pod", "PlacementReservation"
    namespace: str
    name: str
    uid: str
    reason: str  # one word, for machines
    message: str
    warning: bool = False


def of_broken(found: Settled) -> Tell:
    """Of a pod whose required shape the GPUs it got do not have. It is left alone: to end it is its owner's."""
    assert found.broken is not None  # else nobody is told
    pod = found.pod
    message = (
        f"the GPUs that the kubelet of {found.node} gave this pod {_BROKEN[found.broken]}. It keeps running; to have "
        "it placed anew, delete it. Why this may happen: docs/troubleshooting.md"
    )
    return Tell("Pod", pod.namespace, pod.name, pod.uid, "GpuShapeBroken", message, warning=True)
