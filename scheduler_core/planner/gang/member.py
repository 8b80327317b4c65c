"""A pod as the planner sees it. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from scheduler_core.cache.kube_scheduler_filters import SchedulingRules
from scheduler_core.request.full_pod import PodAffinityTerm
from scheduler_core.request.pod import RequiredTerms
from scheduler_core.request.pod_request import InvalidRequest, PodRequest


class GangName(NamedTuple):
    """Which gang it is."""

    namespace: str
    name: str


class GangRequest(NamedTuple):
    """What a pod says of its gang, by our annotations or by a convention of others."""

    gang: GangName
    size: int | None = None  # members, as many as there will be; None: this pod does not say
    minimum: int | None = None  # that it can start with; None: its size
    rank: int | None = None  # from its controller's index; only the order counts, there may be gaps
    timeout_s: float | None = None  # from letting go to all bound; None: the usual
    required: str | None = None  # a level ("clique", "rack", ...) or a node label's key
    preferred: str | None = None
    by: str = ""  # by what it is known as a member, for people: "annotations", "JobSet", ...
    attempt: int = 0  # which making of the gang it is of; those of earlier ones are on their way out
    maker: str | None = None  # UID of what makes its siblings too, or else of its own controller


class Member(NamedTuple):
    """A pod that belongs to a gang, or is to be planned on its own. Its key is its UID."""

    uid: str
    namespace: str
    name: str
    version: str  # resource version, the precondition of the patch that lets it go; "" once a kubelet has it
    gang_request: GangRequest
    request: PodRequest | InvalidRequest
    created: float  # seconds since 1970
    priority: int = 0
    gates: tuple[str, ...] = ()  # names of its scheduling gates
    node: str | None = None  # spec.nodeName
    phase: str = "Pending"
    started: bool = False  # the kubelet took note of it
    is_terminating: bool = False  # metadata.deletionTimestamp
    reservation: str | None = None  # as annotated when it was let go
    owner_kind: str | None = None  # "batch/Job": its controller's; None: a bare pod
    rules: SchedulingRules | None = None  # nodeSelector, affinity and tolerations
    terms: RequiredTerms | None = None  # required node affinity as it is now: the pin narrows each term
    finalizers: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    anti_affinity: tuple[PodAffinityTerm, ...] = ()  # pods that it does not share its node with
    bind_error: str | None = None  # what kube-scheduler says why it cannot bind it, once it was let go
    pinned_terms: str | None = (
        None  # the node to which it says that it was ungated; ``ungated`` says whether that counts
    )

    @property
    def devices(self) -> tuple[tuple[str, int], ...]:
        """How many it takes of each resource."""
        return () if isinstance(self.request, InvalidRequest) else self.request.profile.device_request.totals

    @property
    def asks_for_gpus(self) -> bool:
        """Whether it takes any device. A request that cannot be understood may ask for some."""
        return isinstance(self.request, InvalidRequest) or any(number for _, number in self.devices)
