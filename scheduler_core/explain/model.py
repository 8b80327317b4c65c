"""The explanation of a pod, as values. GPUs are named by their index on the node; unknown is None. Pure."""

from __future__ import annotations

import msgspec

OBSTACLE = "device-plugin"


class RequirementItem(msgspec.Struct, frozen=True, rename="camel"):
    """A device or a constraint that a pod requests."""

    key: str  # the resource, annotation or label
    value: str
    words: str
    required: bool  # a node without it is rejected


class GpuSet(msgspec.Struct, frozen=True, rename="camel"):
    """A set of GPUs on a node."""

    gpus: tuple[int, ...]
    islands: tuple[int, ...] | None  # how many of them are in each island that has any, most first
    numa: tuple[int, ...] | None  # ids of their NUMA nodes
    ring: str | None = None  # kind of the weakest hop: nvswitch, nvlink, pcie, unknown; None: one GPU
    gbps: float | None = None  # rate of that hop, both ways
    distance: str | None = None  # of that hop, over PCIe


class FactorItem(msgspec.Struct, frozen=True, rename="camel"):
    """A factor of a score."""

    name: str
    raw: float  # 0 to 1
    weight: float
    share: float  # points of the score
    measures: str  # for people


class CandidateNode(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A node that the pod fits."""

    node: str
    points: float  # 0 to 10
    factors: tuple[FactorItem, ...]
    outcomes: tuple[GpuSet, ...] | None  # possible sets of GPUs, best first; None: unknown
    more_outcomes: int = 0  # not listed
    worst: GpuSet | None = None  # of these; a node is scored by its worst set
    may_crash: bool = False  # the device plugin may crash
    choice: GpuSet | None = None  # gputopo's choice; the kubelet chooses without it


class RejectedNodes(msgspec.Struct, frozen=True, rename="camel"):
    """The nodes that are rejected for the same reason."""

    reason: str  # its name in the closed list
    text: str  # as kube-scheduler shows it
    means: str
    advice: str
    nodes: tuple[str, ...]


class ReservedGpus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """GPUs that an active reservation keeps, on nodes that therefore reject a pod or a gang."""

    gang: str | None  # "namespace/name"; None: of single pods
    reservation: str  # "namespace/name"
    phase: str  # "Held", "Proposed" or "Committed"
    until: str | None  # RFC 3339; of a capacity hold an estimate. None: unknown
    gpus: int
    nodes: tuple[str, ...]


class ExcludedNodes(msgspec.Struct, frozen=True, rename="camel"):
    """GPU nodes that kube-scheduler excludes itself, for the same reason."""

    text: str
    nodes: tuple[str, ...]


class NearMiss(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A change that would make the pod fit; of kind ``OBSTACLE``: why a free, suitable set does not help."""

    kind: str  # "agent", "pods-end", "wish", "wishes", "model", "memory" or "device-plugin"
    text: str
    nodes: tuple[str, ...]  # that the pod would fit then
    pods: tuple[str, ...] = ()  # "namespace/name" of the pods to end
    keys: tuple[str, ...] = ()  # to change on the pod
    value: str | None = None  # the new value; None: to be removed


class CurrentPlacement(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The GPUs of a bound pod."""

    node: str
    spot: GpuSet | None  # None: not reported yet
    broken: tuple[str, ...] = ()  # required constraints that they violate, as written on the pod
    best: GpuSet | None = None  # of its own and the free GPUs there


class ExplainedPod(msgspec.Struct, frozen=True, rename="camel"):
    """The pod that is explained."""

    namespace: str
    name: str
    scheduler: str | None = None


class Explanation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Why a pod is where it is, or fits no node."""

    pod: ExplainedPod
    beforehand: str | None = None  # why no scheduler sees it yet: gates, its gang
    malformed: str | None = None  # why no node is evaluated
    asks: tuple[RequirementItem, ...] = ()
    held: CurrentPlacement | None = None  # of a bound pod; the rest is as if it were scheduled again
    nodes: int = 0  # with such devices, or unknown
    other_nodes: int = 0  # without such devices, which kube-scheduler excludes itself
    barred: tuple[ExcludedNodes, ...] = ()  # counted in neither; most nodes first
    suited: tuple[str, ...] = ()  # by name
    best: tuple[CandidateNode, ...] = ()
    refused: tuple[RejectedNodes, ...] = ()  # most nodes first
    kept: tuple[ReservedGpus, ...] = ()  # by name of the reservation
    nearest: tuple[NearMiss, ...] = ()  # smallest change first; only where no node suits
    scheduler_said: str | None = None  # the condition PodScheduled, where it is False
    notes: tuple[str, ...] = ()
