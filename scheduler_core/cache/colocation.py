"""The other pods on a node that matter for a pod: training or inference, and pods of the same owner. Pure.

Training uses a machine fully for days, inference needs low latency: on one node they compete for PCIe, host memory and
power. ``Colocation`` is a property of the node; ``OwnerPods`` of the node and one pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.request.pod_request import PodProfile, Strength
from scheduler_core.request.workload_type import WorkloadType


class Colocation(NamedTuple):
    """The kinds of pods that run on a node, and those that must not."""

    training: bool = False
    inference: bool = False
    no_training: bool = False  # an inference pod on it requires isolation
    no_inference: bool = False  # a pod that is not inference requires it


class OwnerPods(NamedTuple):
    """The other pods on a node of the owner of the pod being placed."""

    pods: int
    gpus: int  # the set that they may hold


class Proximity(Enum):
    """The narrowest domain that a node shares with a sibling of the pod being placed."""

    NODE = "node"
    CLIQUE = "clique"  # of multi-node NVLink
    RACK = "rack"


Domain = tuple[Proximity, str]  # a clique or a rack, by its name


def colocation_of(pods: Iterable[Occupant]) -> Colocation:
    """Return the colocation of a node with these pods."""
    training = inference = no_training = no_inference = False
    for pod in pods:
        constraints = pod.profile.constraints
        serving = constraints.workload is WorkloadType.INFERENCE
        inference |= serving
        training |= constraints.workload is WorkloadType.TRAINING
        if constraints.isolation is Strength.REQUIRED:
            no_training |= serving
            no_inference |= not serving
    return Colocation(training, inference, no_training, no_inference)


def conflicts_with(profile: PodProfile, colocation: Colocation) -> bool:
    """Return whether the node runs pods from which the pod should be isolated."""
    return colocation.training if profile.constraints.workload is WorkloadType.INFERENCE else colocation.inference


def refused_by(profile: PodProfile, colocation: Colocation) -> bool:
    """Return whether a pod on the node requires isolation from such pods."""
    workload = profile.constraints.workload
    if workload is WorkloadType.INFERENCE:
        return colocation.no_inference
    return colocation.no_training and workload is WorkloadType.TRAINING
