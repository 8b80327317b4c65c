"""Which pod gets which policy, and what the owner requires of it beyond what it asks. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gputopo.model import Interconnect
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import (
    DEFAULT_PARSING,
    InvalidRequest,
    ParsingPolicy,
    PodProfile,
    PodRequest,
    Strength,
    parse_request,
)
from scheduler_core.request.workload_type import WorkloadType


class WorkloadClass(Enum):
    """What a pod is, for whoever writes a policy."""

    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"
    SCAVENGER = "scavenger"
    DEFAULT = "default"  # none of these


class ProfileMatch(NamedTuple):
    """For which pods a profile is. What is empty matches all; all that is not must match."""

    schedulers: frozenset[str] = frozenset()  # spec.schedulerName
    namespaces: frozenset[str] = frozenset()
    workload_classes: frozenset[WorkloadClass] = frozenset()

    def matches_pod(self, request: PodRequest) -> bool:
        """Whether that pod is one of them."""
        return (
            (not self.schedulers or request.scheduler in self.schedulers)
            and (not self.namespaces or request.namespace in self.namespaces)
            and (not self.workload_classes or workload_class_of(request.profile) in self.workload_classes)
        )


class PolicyProfile(NamedTuple):
    """One profile of a policy file."""

    policy: Policy = Policy()
    match: ProfileMatch = ProfileMatch()
    interconnect: Interconnect | None = None  # required between the GPUs of pods with several: at least this
    isolation: Strength | None = None  # REQUIRED of all, or what holds where a pod says nothing


class Policies(NamedTuple):
    """A whole policy file. The first profile that matches counts; the last one matches all."""

    profiles: tuple[PolicyProfile, ...] = (PolicyProfile(),)
    parsing: ParsingPolicy = DEFAULT_PARSING

    @property
    def node_policy(self) -> Policy:
        """What holds for nodes whichever pod is asked about: when they are stale."""
        return self.profiles[-1].policy

    def parse_pod(self, pod: Pod) -> PodRequest | InvalidRequest:
        """What the pod asks for, and what its profile requires of it."""
        request = parse_request(pod, self.parsing)
        return request if isinstance(request, InvalidRequest) else _with_required(request, self.profile_for(request))

    def profile_for(self, request: PodRequest) -> PolicyProfile:
        """The profile for that pod."""
        return next(each for each in self.profiles if each.match.matches_pod(request))


BUILT_IN = Policies()


def workload_class_of(profile: PodProfile) -> WorkloadClass:
    """What the pod is."""
    if profile.scavenger:
        return WorkloadClass.SCAVENGER
    workload = profile.constraints.workload
    return WorkloadClass.DEFAULT if workload is None else _CLASS_OF_WORKLOAD[workload]


def _with_required(request: PodRequest, placement: PolicyProfile) -> PodRequest:
    profile = request.profile
    wishes = profile.constraints
    if placement.interconnect is not None and profile.gpus > 1 and wishes.interconnect is not Interconnect.NVSWITCH:
        wishes = wishes._replace(interconnect=placement.interconnect)
    if placement.isolation is Strength.REQUIRED or wishes.isolation is None:
        wishes = wishes._replace(isolation=placement.isolation)
    return request._replace(profile=profile._replace(constraints=wishes))


_CLASS_OF_WORKLOAD = {
    WorkloadType.TRAINING: WorkloadClass.TRAINING,
    WorkloadType.INFERENCE: WorkloadClass.INFERENCE,
    WorkloadType.BATCH: WorkloadClass.BATCH,
}
