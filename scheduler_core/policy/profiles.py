"""Which pod gets which policy, and what the owner requires of it beyond what it asks. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gputopo.model import Interconnect
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import AS_BUILT, PodRequest, Profile, Reading, Refused, Wish, read_request
from scheduler_core.request.workload_type import Workload


class Personality(Enum):
    """What a pod is, for whoever writes a policy."""

    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"
    SCAVENGER = "scavenger"
    DEFAULT = "default"  # none of these


class Match(NamedTuple):
    """For which pods a profile is. What is empty matches all; all that is not must match."""

    schedulers: frozenset[str] = frozenset()  # spec.schedulerName
    namespaces: frozenset[str] = frozenset()
    personalities: frozenset[Personality] = frozenset()

    def covers(self, request: PodRequest) -> bool:
        """Whether that pod is one of them."""
        return (
            (not self.schedulers or request.scheduler in self.schedulers)
            and (not self.namespaces or request.namespace in self.namespaces)
            and (not self.personalities or personality_of(request.profile) in self.personalities)
        )


class Placement(NamedTuple):
    """One profile of a policy file."""

    policy: Policy = Policy()
    match: Match = Match()
    interconnect: Interconnect | None = None  # required between the GPUs of pods with several: at least this
    isolation: Wish | None = None  # REQUIRED of all, or what holds where a pod says nothing


class Policies(NamedTuple):
    """A whole policy file. The first profile that matches counts; the last one matches all."""

    placements: tuple[Placement, ...] = (Placement(),)
    reading: Reading = AS_BUILT

    @property
    def common(self) -> Policy:
        """What holds for nodes whichever pod is asked about: when they are stale."""
        return self.placements[-1].policy

    def read(self, pod: Pod) -> PodRequest | Refused:
        """What the pod asks for, and what its profile requires of it."""
        request = read_request(pod, self.reading)
        return request if isinstance(request, Refused) else _required(request, self.placement(request))

    def placement(self, request: PodRequest) -> Placement:
        """The profile for that pod."""
        return next(each for each in self.placements if each.match.covers(request))


BUILT_IN = Policies()


def personality_of(profile: Profile) -> Personality:
    """What the pod is."""
    if profile.scavenger:
        return Personality.SCAVENGER
    workload = profile.wishes.workload
    return Personality.DEFAULT if workload is None else _OF_WORKLOAD[workload]


def _required(request: PodRequest, placement: Placement) -> PodRequest:
    profile = request.profile
    wishes = profile.wishes
    if placement.interconnect is not None and profile.gpus > 1 and wishes.interconnect is not Interconnect.NVSWITCH:
        wishes = wishes._replace(interconnect=placement.interconnect)
    if placement.isolation is Wish.REQUIRED or wishes.isolation is None:
        wishes = wishes._replace(isolation=placement.isolation)
    return request._replace(profile=profile._replace(wishes=wishes))


_OF_WORKLOAD = {
    Workload.TRAINING: Personality.TRAINING,
    Workload.INFERENCE: Personality.INFERENCE,
    Workload.BATCH: Personality.BATCH,
}
