"""Who else is on a node, as far as it decides about a pod: training or inference, and pods of the same owner. Pure.

Training runs flat out for days, inference answers people: on one node each spoils the other's PCIe, host memory and
power. ``Company`` is of the node; ``Kin`` of the node as one pod sees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.request.pod_request import Profile, Wish
from scheduler_core.request.workload_type import Workload


class Company(NamedTuple):
    """What runs on a node, and what must not."""

    training: bool = False
    inference: bool = False
    no_training: bool = False  # an inference pod on it requires isolation
    no_inference: bool = False  # a pod on it that is not inference does


class Kin(NamedTuple):
    """Pods of the asking pod's owner on a node."""

    pods: int
    gpus: int  # set of GPUs that they may hold


def company(pods: Iterable[Occupant]) -> Company:
    """What those pods make of a node."""
    training = inference = no_training = no_inference = False
    for pod in pods:
        wishes = pod.profile.wishes
        serving = wishes.workload is Workload.INFERENCE
        inference |= serving
        training |= wishes.workload is Workload.TRAINING
        if wishes.isolation is Wish.REQUIRED:
            no_training |= serving
            no_inference |= not serving
    return Company(training, inference, no_training, no_inference)


def takes_sides(profile: Profile) -> bool:
    """Whether company matters to the pod: it is training or inference, or says that it does."""
    wishes = profile.wishes
    if wishes.isolation is Wish.IGNORE:
        return False
    return wishes.isolation is not None or wishes.workload in (Workload.TRAINING, Workload.INFERENCE)


def wants_spread(profile: Profile) -> bool:
    """Whether pods of its owner should be apart from it: replicas, unless they say otherwise."""
    spread = profile.wishes.spread
    return spread is Wish.PREFERRED or (spread is None and profile.wishes.workload is Workload.INFERENCE)


def disturbed(profile: Profile, there: Company) -> bool:
    """Whether what the pod wants to be apart from is there."""
    return there.training if profile.wishes.workload is Workload.INFERENCE else there.inference


def unwelcome(profile: Profile, there: Company) -> bool:
    """Whether a pod on the node requires to be apart from such pods."""
    workload = profile.wishes.workload
    if workload is Workload.INFERENCE:
        return there.no_inference
    return there.no_training and workload is Workload.TRAINING
