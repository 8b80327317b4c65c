"""A pod as the planner observes it, and the gang that it asks for. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from scheduler_core.cache.kube_scheduler_filters import SchedulingRules
from scheduler_core.request.full_pod import PodAffinityTerm
from scheduler_core.request.node_load import ONE_POD, NodeLoad
from scheduler_core.request.pod import RequiredTerms
from scheduler_core.request.pod_request import InvalidRequest, PodRequest


class GangName(NamedTuple):
    """Identity of a gang."""

    namespace: str
    name: str

    @property
    def title(self) -> str:
        """``NAMESPACE/NAME``."""
        return f"{self.namespace}/{self.name}"


class GangRequest(NamedTuple):
    """The gang that a pod asks for, by our annotations or by a convention."""

    gang: GangName
    size: int | None = None  # final number of members; None: the pod does not declare it
    minimum: int | None = None  # that it can start with; None: its size
    rank: int | None = None  # from its controller's index; only the order counts, there may be gaps
    timeout_s: float | None = None  # from ungating until all are bound; None: the default
    required: str | None = None  # a level ("clique", "rack", ...) or a node label's key
    preferred: str | None = None
    convention: str = ""  # the convention, for people: "annotations", "JobSet", ...
    attempt: int = 0  # recreation of the gang; members of earlier ones are ending
    ends_on_failure: bool = False  # its running members are deleted when one fails
    creator_uid: str | None = None  # UID of the object that creates all members, else of the pod's controller


class ExpectedRun(NamedTuple):
    """How long a pod says by its annotations that it runs. A claim: nothing enforces it. None: not set."""

    duration_s: float | None
    completion: float | None  # seconds since 1970
    grace_s: float  # terminationGracePeriodSeconds


class Member(NamedTuple):
    """A pod of a gang, or a pod that is planned on its own. Its key is its UID. Built with keywords."""

    uid: str
    namespace: str
    name: str
    version: str  # resource version: precondition of the patch that ungates it; "" once a kubelet has admitted it
    gang_request: GangRequest
    request: PodRequest | InvalidRequest
    created: float  # seconds since 1970
    priority: int = 0
    gates: tuple[str, ...] = ()  # names of its scheduling gates
    node: str | None = None  # spec.nodeName
    phase: str = "Pending"
    started: bool = False  # a kubelet has admitted it
    is_terminating: bool = False  # metadata.deletionTimestamp
    reservation: str | None = None  # name, as annotated when it was ungated
    owner_kind: str | None = None  # of its controller: "batch/Job"; None: a bare pod
    rules: SchedulingRules | None = None  # nodeSelector, required node affinity and tolerations
    terms: RequiredTerms | None = None  # required node affinity; the pin is added to each term
    finalizers: tuple[str, ...] = ()
    labels: Mapping[str, str] | None = {}  # None: more than ``MAX_LABELS``
    anti_affinity: tuple[PodAffinityTerm, ...] = ()  # required anti-affinity by host
    bind_error: str | None = None  # kube-scheduler's message after it was ungated, while it cannot be bound
    pinned_terms: str | None = None  # node that its pin claims; ``PlannerView`` checks the claim
    markers: tuple[str, ...] = ()  # annotations that delay the creation of other members, while it is gated
    claims: tuple[str, ...] = ()  # names of its volume claims, while it is gated
    blocked: str | None = None  # why it fits no node for now, whatever the nodes: a volume claim is not bound
    # activeDeadlineSeconds and terminationGracePeriodSeconds of the pod: it runs no longer.
    bounded_s: tuple[float, float] | None = None  # None: it may run for any time
    expected: ExpectedRun | None = None  # while it is gated; None: it does not say it
    load: NodeLoad = ONE_POD  # CPU, memory and ephemeral storage that it requests
    unplanned: tuple[str, ...] = ()  # rules, of a pod that asks for GPUs, which only kube-scheduler can follow

    @property
    def devices(self) -> tuple[tuple[str, int], ...]:
        """Devices of each resource that the pod asks for."""
        return () if isinstance(self.request, InvalidRequest) else self.request.profile.device_request.totals

    @property
    def asks_for_gpus(self) -> bool:
        """True if the pod asks for devices. An invalid request may ask for some."""
        return isinstance(self.request, InvalidRequest) or any(number for _, number in self.devices)
