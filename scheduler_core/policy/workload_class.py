"""The workload class of a pod, by which profiles and rules of a policy file match. Pure."""

from __future__ import annotations

from enum import Enum

from scheduler_core.request.pod_request import PodProfile
from scheduler_core.request.workload_type import WorkloadType


class WorkloadClass(Enum):
    """The workload class of a pod, as policy files name it."""

    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"
    SCAVENGER = "scavenger"
    DEFAULT = "default"  # none of the others


def workload_class_of(profile: PodProfile) -> WorkloadClass:
    """Return the workload class of the pod."""
    if profile.scavenger:
        return WorkloadClass.SCAVENGER
    workload = profile.constraints.workload
    return WorkloadClass.DEFAULT if workload is None else _CLASS_OF_WORKLOAD[workload]


_CLASS_OF_WORKLOAD = {
    WorkloadType.TRAINING: WorkloadClass.TRAINING,
    WorkloadType.INFERENCE: WorkloadClass.INFERENCE,
    WorkloadType.BATCH: WorkloadClass.BATCH,
}
