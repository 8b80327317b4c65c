"""Who else is on a node, as far as it decides about a pod: training or inference, and pods of the same owner. Pure.

Training runs flat out for days, inference answers people: on one node each spoils the other's PCIe, host memory and
power. ``Company`` is of the node; ``Kin`` of the node as one pod sees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.request.pod_request import PodProfile, Strength
from scheduler_core.request.workload_type import WorkloadType


class Colocation(NamedTuple):
    """What runs on a node, and what must not."""

    training: bool = False
    inference: bool = False
    no_training: bool = False  # an inference pod on it requires isolation
    no_inference: bool = False  # a pod on it that is not inference does


class OwnerPods(NamedTuple):
    """Pods of the asking pod's owner on a node."""

    pods: int
    gpus: int  # set of GPUs that they may hold


def colocation_of(pods: Iterable[Occupant]) -> Colocation:
    """What those pods make of a node."""
    training = inference = no_training = no_inference = False
    for pod in pods:
        wishes = pod.profile.constraints
        serving = wishes.workload is WorkloadType.INFERENCE
        inference |= serving
        training |= wishes.workload is WorkloadType.TRAINING
        if wishes.isolation is Strength.REQUIRED:
            no_training |= serving
            no_inference |= not serving
    return Colocation(training, inference, no_training, no_inference)


def conflicts_with(profile: PodProfile, colocation: Colocation) -> bool:
    """Whether what the pod wants to be apart from is there."""
    return colocation.training if profile.constraints.workload is WorkloadType.INFERENCE else colocation.inference


def refused_by(profile: PodProfile, colocation: Colocation) -> bool:
    """Whether a pod on the node requires to be apart from such pods."""
    workload = profile.constraints.workload
    if workload is WorkloadType.INFERENCE:
        return colocation.no_inference
    return colocation.no_training and workload is WorkloadType.TRAINING
