"""Compares the placement of a pod with its alternatives. Pure.

For a pod with several whole GPUs, the ring through them and the island are compared with the worst that gputopo's
choice of a node may have given. Unknown values are in no total. A single GPU has no ring, but may break a wholly free
island.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gputopo.cluster.pods import is_worse
from gputopo.paths import PathKind
from scheduler_core.allocation.best_set import best_set
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.events import PodUpdate
from scheduler_core.cache.node_state import NodeState
from scheduler_core.observe.alternatives import Alternative, Alternatives
from scheduler_core.observe.gpu_layout import LayoutRange, exact_range, is_unknown, layout_of, possible_layouts
from scheduler_core.observe.island_breakage import broken_island_size, possible_broken_island_size


class Comparison(Enum):
    """The result of a comparison with gputopo's choice."""

    GOOD = "good"  # no worse
    WORSE = "worse"
    WAITS = "waits"  # gputopo would have let the pod wait: no node fit the request
    UNKNOWN = "unknown"
    SINGLE = "single"  # a GPU that broke no free island
    BROKE = "broke"  # a GPU that broke a free island
    SHARED = "shared"  # shares of GPUs or MIG devices: not compared


class ObservedPlacement(NamedTuple):
    """A bound pod, its GPUs and its alternatives."""

    at: float  # seconds since 1970
    namespace: str
    name: str
    scheduler: str | None
    node: str
    size: int  # whole GPUs; 0 without any
    layout: LayoutRange | None  # None: unknown
    gpus: tuple[int, ...] | None = None  # indices; None: not reported by the kubelet
    ran_before: bool = False  # bound before the observer started; compared with the best of its node when empty
    alternatives: Alternatives = Alternatives()
    broke: int | None = None  # size of the free island that a single GPU broke; 0: none; None: unknown
    unchecked: tuple[str, ...] = ()  # rules of the pod that are not evaluated

    @property
    def result(self) -> Comparison:
        """The result of the comparison."""
        if not self.size:
            return Comparison.SHARED
        if self.size == 1:
            return {None: Comparison.UNKNOWN, 0: Comparison.SINGLE}.get(self.broke, Comparison.BROKE)
        if self.layout is None or not self.layout.known or is_unknown(self.layout.worst.ring):
            return Comparison.UNKNOWN
        if self.reference is None or is_unknown(self.reference.layout.ring):
            waits = not self.ran_before and not self.alternatives.suited
            return Comparison.WAITS if waits else Comparison.UNKNOWN
        worse = is_worse(self.layout.worst.ring, self.reference.layout.ring)
        return Comparison.WORSE if worse else Comparison.GOOD

    @property
    def reference(self) -> Alternative | None:
        """The alternative that the placement is compared with."""
        return self.alternatives.best if self.ran_before else self.alternatives.by_gputopo

    @property
    def compared(self) -> bool:
        """True if the rings could be compared."""
        return self.result in (Comparison.GOOD, Comparison.WORSE)

    @property
    def lost_gbps(self) -> float | None:
        """The least difference to the reference in GB/s; 0 if not worse; None: unknown.

        Over PCIe a ring's rate is an upper bound, so the difference of two PCIe rings is unknown.
        """
        if self.result is not Comparison.WORSE or self.layout is None or self.reference is None:
            return 0.0 if self.result is Comparison.GOOD else None
        ring, best = self.layout.worst.ring, self.reference.layout.ring
        if ring is None or best is None or ring.gbps is None or best.gbps is None or best.kind is PathKind.PCIE:
            return None
        return max(0.0, best.gbps - ring.gbps)

    @property
    def one_island(self) -> bool | None:
        """True if its GPUs are in one island; None: unknown."""
        return self.layout.worst.one_island if self.layout is not None and self.layout.known else None

    @property
    def could_be_one_island(self) -> bool:
        """True if some node may have offered one island."""
        best = self.alternatives.best
        return self.one_island is True or (best is not None and best.layout.one_island is True)


class AllocatedGpus(NamedTuple):
    """The GPUs that the kubelet reports for a pod."""

    shape: MachineShape
    mask: int


class PendingPlacement(NamedTuple):
    """A bound pod whose GPUs the kubelet has not reported yet."""

    pod: PodUpdate
    node: str
    before: NodeState | None  # its node just before; None: unknown node
    alternatives: Alternatives
    at: float  # seconds since 1970


def compare_bound(bound: PendingPlacement, allocated: AllocatedGpus | None) -> ObservedPlacement:
    """Return the comparison of a pod that was bound. ``allocated``: None if the kubelet did not report it in time."""
    pod, node, before, alternatives, at = bound
    placement = _placement(pod, node, before, allocated, at)
    if placement.size < 2:
        broke = None if before is None else _broken_size(pod, before, allocated)
        return placement._replace(alternatives=alternatives, broke=broke)
    return placement._replace(alternatives=_with_own(alternatives, node, placement.layout))


def compare_running(pod: PodUpdate, node: str, allocated: AllocatedGpus | None, at: float) -> ObservedPlacement:
    """Return the comparison of a pod that ran before with the best set of its node when empty."""
    placement = _placement(pod, node, None, allocated, at)._replace(ran_before=True)
    if placement.size < 2:
        return placement._replace(broke=0)  # the free GPUs of that time are not known
    if allocated is None:
        return placement
    shape = allocated.shape
    best = best_set(shape, shape.whole | allocated.mask, placement.size)
    alternatives = Alternatives(best=None if best is None else Alternative(node, layout_of(shape, best.mask)))
    return placement._replace(alternatives=_with_own(alternatives, node, placement.layout))


def _placement(
    pod: PodUpdate, node: str, before: NodeState | None, allocated: AllocatedGpus | None, at: float
) -> ObservedPlacement:
    profile = pod.occupant.profile
    whole = profile.gpus if profile.gpus == profile.devices else 0
    layout: LayoutRange | None = None
    if allocated is not None:
        layout = exact_range(allocated.shape, allocated.mask)
    elif before is not None and whole:
        layout = possible_layouts(profile.device_request, before)
    return ObservedPlacement(
        at=at,
        namespace=pod.occupant.namespace,
        name=pod.occupant.name,
        scheduler=pod.scheduler,
        node=node,
        size=whole,
        layout=layout,
        gpus=None if allocated is None else allocated.shape.indices(allocated.mask),
        unchecked=() if pod.rules is None else pod.rules.unchecked,
    )


def _broken_size(pod: PodUpdate, before: NodeState, allocated: AllocatedGpus | None) -> int | None:
    if allocated is not None and allocated.shape is before.shape:
        return broken_island_size(before, allocated.mask)
    return possible_broken_island_size(pod.occupant.profile.device_request, before)


def _with_own(alternatives: Alternatives, node: str, layout: LayoutRange | None) -> Alternatives:
    """Return the alternatives with the pod's own GPUs among them: these were free, whatever was known before."""
    if layout is None or not layout.known:
        return alternatives
    best = alternatives.best
    if best is None or is_unknown(best.layout.ring):
        best = alternatives.by_gputopo
    if best is None or is_unknown(best.layout.ring) or is_worse(best.layout.ring, layout.worst.ring):
        best = Alternative(node, layout.worst)
    return alternatives._replace(best=best)
