"""The profiles of a policy file: the policy of each pod, and the constraints that the policy adds to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gputopo.model import Interconnect
from gputopo.render.wording import format_gib
from scheduler_core.policy.limits import DEFAULT_BACKFILL, DEFAULT_LIMITS, BackfillPolicy, GangLimits
from scheduler_core.policy.policy import READS_NO_MORE_OF_PODS, PodReads, Policy
from scheduler_core.policy.preemption import DEFAULT_PREEMPTION, PreemptionPolicy
from scheduler_core.policy.workload_class import WorkloadClass, workload_class_of
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import (
    DEFAULT_PARSING,
    InvalidRequest,
    ParsingPolicy,
    PodExtras,
    PodRequest,
    Strength,
    parse_request,
)


class ProfileMatch(NamedTuple):
    """The pods that a profile is for. An empty criterion matches all pods; the others must all match."""

    schedulers: frozenset[str] = frozenset()  # spec.schedulerName
    namespaces: frozenset[str] = frozenset()
    workload_classes: frozenset[WorkloadClass] = frozenset()

    def matches_pod(self, request: PodRequest) -> bool:
        """Return True if the profile is for this pod."""
        return (
            (not self.schedulers or request.scheduler in self.schedulers)
            and (not self.namespaces or request.namespace in self.namespaces)
            and (not self.workload_classes or workload_class_of(request.profile) in self.workload_classes)
        )


class PolicyProfile(NamedTuple):
    """A profile of a policy file."""

    policy: Policy = Policy()
    match: ProfileMatch = ProfileMatch()
    interconnect: Interconnect | None = None  # at least required between the GPUs of a pod
    isolation: Strength | None = None  # REQUIRED: of all pods; else the default for pods that do not set it
    min_vram_mib: int | None = None  # at least required of each GPU of a pod


class Policies(NamedTuple):
    """A whole policy file. The first profile that matches a pod is used; the last profile matches all pods."""

    profiles: tuple[PolicyProfile, ...] = (PolicyProfile(),)
    parsing: ParsingPolicy = DEFAULT_PARSING
    limits: GangLimits = DEFAULT_LIMITS
    pod_reads: PodReads = READS_NO_MORE_OF_PODS  # by extensions of any profile
    preemption: PreemptionPolicy = DEFAULT_PREEMPTION
    backfill: BackfillPolicy = DEFAULT_BACKFILL

    @property
    def node_policy(self) -> Policy:
        """The policy for decisions about nodes that do not depend on a pod: when a node is stale."""
        return self.profiles[-1].policy

    def parse_pod(self, pod: Pod) -> PodRequest | InvalidRequest:
        """Parse what the pod requests, and add the constraints of its profile."""
        request = parse_request(pod, self.parsing)
        if isinstance(request, InvalidRequest):
            return request
        if (extras := self.extras_of(pod)) is not None:
            request = request._replace(profile=request.profile._replace(extras=extras))
        return _with_required(request, self.profile_for(request))

    def extras_of(self, pod: Pod) -> PodExtras | None:
        """Return what extensions of the profiles read of a pod; None: nothing."""
        reads = self.pod_reads
        if reads == READS_NO_MORE_OF_PODS:
            return None
        return PodExtras(
            _selected(pod.metadata.labels or {}, None if reads.everything else reads.labels),
            _selected(pod.metadata.annotations or {}, None if reads.everything else reads.annotations),
        )

    def profile_for(self, request: PodRequest) -> PolicyProfile:
        """Return the profile of the pod."""
        return next(each for each in self.profiles if each.match.matches_pod(request))

    def policy_for(self, request: PodRequest) -> Policy:
        """Return the policy of the pod: that of its profile."""
        return self.profile_for(request).policy


BUILT_IN = Policies()


def _selected(texts: Mapping[str, str], keys: Iterable[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the keys that are there, with their values; None: all keys."""
    return tuple(sorted((key, texts[key]) for key in (texts if keys is None else keys) if key in texts))


def _with_required(request: PodRequest, policy_profile: PolicyProfile) -> PodRequest:
    """Return the request with the constraints of its profile, and a note for each that the pod does not make itself."""
    profile, name = request.profile, policy_profile.policy.name
    constraints = profile.constraints
    notes = []
    if (
        policy_profile.interconnect is not None
        and profile.gpus > 1
        and constraints.interconnect is not Interconnect.NVSWITCH
    ):
        if constraints.interconnect is not policy_profile.interconnect:
            notes.append(f"requiredTopologies of the profile {name}: {policy_profile.interconnect.value} or better")
        constraints = constraints._replace(interconnect=policy_profile.interconnect)
    floor = policy_profile.min_vram_mib
    if floor is not None and floor > (constraints.min_vram_mib or 0):
        constraints = constraints._replace(min_vram_mib=floor)
        notes.append(f"minVram of the profile {name}: {format_gib(floor)} on each GPU")
    if policy_profile.isolation is Strength.REQUIRED or constraints.isolation is None:
        if policy_profile.isolation not in (constraints.isolation, None):
            notes.append(f"isolation of the profile {name}: {policy_profile.isolation.value}")
        constraints = constraints._replace(isolation=policy_profile.isolation)
    return request._replace(profile=profile._replace(constraints=constraints), detection=(*request.detection, *notes))
