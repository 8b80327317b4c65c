"""What there is to tell about a pod's placement, as values. ``document`` and ``text`` print them; nothing here decides.

GPUs are named by their index on the node, rates are GB/s both ways, unknown is None.
"""

from __future__ import annotations

import msgspec

OBSTACLE = "device-plugin"


class RequirementItem(msgspec.Struct, frozen=True, rename="camel"):
    """One thing that a pod asks for."""

    key: str  # the resource, annotation or label that said it
    value: str
    words: str
    required: bool  # a node without it is refused


class GpuSet(msgspec.Struct, frozen=True, rename="camel"):
    """A set of GPUs on a node."""

    gpus: tuple[int, ...]
    islands: tuple[int, ...] | None  # how many of them are in each island that they touch, most first
    numa: tuple[int, ...] | None  # ids of the NUMA nodes that they touch
    ring: str | None = None  # what the weakest hop of their best ring is: nvswitch, nvlink, pcie, unknown; one has none
    gbps: float | None = None  # of that hop
    distance: str | None = None  # of that hop, over PCIe


class FactorItem(msgspec.Struct, frozen=True, rename="camel"):
    """One factor of a score."""

    name: str
    raw: float  # 0 to 1
    weight: float
    share: float  # points of the score
    measures: str  # in words


class CandidateNode(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A node that suits the pod."""

    node: str
    points: float  # 0 to 10
    factors: tuple[FactorItem, ...]
    outcomes: tuple[GpuSet, ...] | None  # what it may get there, best first; None: nobody can tell
    more_outcomes: int = 0  # that are not listed
    worst: GpuSet | None = None  # of those; by the worst a node is judged
    may_crash: bool = False  # the device plugin's crash is among the outcomes
    choice: GpuSet | None = None  # what gputopo would choose; the kubelet does not ask


class RejectedNodes(msgspec.Struct, frozen=True, rename="camel"):
    """The nodes that are refused for the same reason."""

    reason: str  # its name in the closed list
    text: str  # what kube-scheduler shows
    means: str
    advice: str
    nodes: tuple[str, ...]


class ReservedGpus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """GPUs that a planner keeps for a gang, on nodes that the pod is refused because of that."""

    gang: str | None  # "namespace/name"; None: for pods that are planned one by one, or one of them
    reservation: str  # "namespace/name"
    phase: str  # "Held", "Proposed" or "Committed"
    until: str | None  # RFC 3339; of what is held an estimate. None: nobody can say
    gpus: int
    nodes: tuple[str, ...]


class ExcludedNodes(msgspec.Struct, frozen=True, rename="camel"):
    """GPU nodes that kube-scheduler would not take anyway, for the same reason."""

    text: str
    nodes: tuple[str, ...]


class NearMiss(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Something that would make the pod fit; of kind ``OBSTACLE``: what stands in the way though a good set is free."""

    kind: str  # "agent", "pods-end", "wish", "wishes", "model", "memory" or "device-plugin"
    text: str
    nodes: tuple[str, ...]  # that would suit it then
    pods: tuple[str, ...] = ()  # "namespace/name" of those that would have to end
    keys: tuple[str, ...] = ()  # what the pod would have to say otherwise
    value: str | None = None  # or what it would have to say; None: nothing


class CurrentPlacement(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a pod that runs already has got."""

    node: str
    spot: GpuSet | None  # None: nobody has said yet
    broken: tuple[str, ...] = ()  # what it required and this is not, as the pod said it
    best: GpuSet | None = None  # of what is free there and its own


class ExplainedPod(msgspec.Struct, frozen=True, rename="camel"):
    """The pod."""

    namespace: str
    name: str
    scheduler: str | None = None


class Explanation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Why a pod is where it is, or is nowhere."""

    pod: ExplainedPod
    beforehand: str | None = None  # what comes before any scheduler looks at it: gates, its gang
    malformed: str | None = None  # why no node is even looked at
    asks: tuple[RequirementItem, ...] = ()
    held: CurrentPlacement | None = None  # of a pod that is on a node; the rest is then as if it were placed anew
    nodes: int = 0  # that have such devices, or are not known
    other_nodes: int = 0  # that have none, and that kube-scheduler leaves out by itself
    barred: tuple[
        ExcludedNodes, ...
    ] = ()  # neither: kube-scheduler leaves them out, whatever their GPUs. Most nodes first
    suited: tuple[str, ...] = ()  # by name
    best: tuple[CandidateNode, ...] = ()
    refused: tuple[RejectedNodes, ...] = ()  # most nodes first
    kept: tuple[ReservedGpus, ...] = ()  # by name of the reservation
    nearest: tuple[NearMiss, ...] = ()  # smallest change first; only where no node suits
    scheduler_said: str | None = None  # the condition PodScheduled, where it is False
    notes: tuple[str, ...] = ()
