"""A pod that somebody else placed: what it got, what it could have had, and what the difference is. Pure.

Of pods with several whole GPUs the ring through these and the island are compared with the node that we would have
chosen, judged by the worst that its device plugin may have given there. What is not known is in no sum. A single GPU
has nothing to lose, but may break an island that was free as a whole.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gputopo.cluster.pods import is_worse
from gputopo.paths import PathKind
from scheduler_core.allocation.best_set import best_set
from scheduler_core.allocation.gpu_sets import member_places
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.events import PodUpdate
from scheduler_core.cache.node_state import NodeState
from scheduler_core.observe.alternatives import Alternative, Alternatives
from scheduler_core.observe.gpu_layout import LayoutRange, exact_range, is_unknown, layout_of, possible_layouts
from scheduler_core.observe.island_breakage import broken_island_size, possible_broken_island_size


class ComparisonResult(Enum):
    """What became of a pod, next to what we would have done."""

    GOOD = "good"  # no worse than what we would have promised it
    WORSE = "worse"
    WAITS = "waits"  # we would have let it wait: no node suited what it asks
    UNKNOWN = "unknown"
    SINGLE = "single"  # one GPU, that broke no whole island
    BROKE = "broke"  # one GPU, that broke one
    SHARED = "shared"  # shares of GPUs or MIG devices: not judged


class ObservedPlacement(NamedTuple):
    """A pod that got its node."""

    at: float  # seconds since 1970
    namespace: str
    name: str
    scheduler: str | None
    node: str
    size: int  # whole GPUs; 0 where it has none
    layout: LayoutRange | None  # None: unknown
    gpus: tuple[int, ...] | None = None  # their indices, where the kubelet has named them
    cluster_then: bool = (
        False  # it ran before we looked; then the best is that of its machine when nothing else runs there
    )
    alternatives: Alternatives = Alternatives()
    broke: int | None = None  # GPUs of the whole island that a single GPU broke; 0: none; None: unknown
    unchecked: tuple[str, ...] = ()  # rules of the pod that nobody looked at

    @property
    def result(self) -> ComparisonResult:
        """What became of it."""
        if self.size < 2:
            if not self.size:
                return ComparisonResult.SHARED
            return (
                ComparisonResult.UNKNOWN
                if self.broke is None
                else ComparisonResult.BROKE
                if self.broke
                else ComparisonResult.SINGLE
            )
        if self.layout is None or not self.layout.known or is_unknown(self.layout.worst.ring):
            return ComparisonResult.UNKNOWN
        if self.best_alternative is None or is_unknown(self.best_alternative.layout.ring):
            waits = not self.cluster_then and not self.alternatives.suited
            return ComparisonResult.WAITS if waits else ComparisonResult.UNKNOWN
        return (
            ComparisonResult.WORSE
            if is_worse(self.layout.worst.ring, self.best_alternative.layout.ring)
            else ComparisonResult.GOOD
        )

    @property
    def best_alternative(self) -> Alternative | None:
        """What it is held against."""
        return self.alternatives.best if self.cluster_then else self.alternatives.ours

    @property
    def compared(self) -> bool:
        """Whether its ring could be compared."""
        return self.result in (ComparisonResult.GOOD, ComparisonResult.WORSE)

    @property
    def lost_gbps(self) -> float | None:
        """GB/s that its ring has less, at the least; None where no number can be said. 0 where it is not worse.

        Over PCIe a ring's rate is an upper bound, so two rings over PCIe have no difference that could be named.
        """
        if self.result is not ComparisonResult.WORSE or self.layout is None or self.best_alternative is None:
            return 0.0 if self.result is ComparisonResult.GOOD else None
        has, best = self.layout.worst.ring, self.best_alternative.layout.ring
        if has is None or best is None or has.gbps is None or best.gbps is None or best.kind is PathKind.PCIE:
            return None
        return max(0.0, best.gbps - has.gbps)

    @property
    def one_island(self) -> bool | None:
        """Whether its GPUs are in one island; None: unknown."""
        return self.layout.worst.one_island if self.layout is not None and self.layout.known else None

    @property
    def could_be_one_island(self) -> bool:
        """Whether some node may have given it one island, or its own did."""
        best = self.alternatives.best
        return self.one_island is True or (best is not None and best.layout.one_island is True)


class AllocatedGpus(NamedTuple):
    """The GPUs that the kubelet says a pod has."""

    shape: MachineShape
    mask: int


class Pending(NamedTuple):
    """A pod that was bound, while its kubelet has not named its GPUs."""

    pod: PodUpdate
    node: str
    before: NodeState | None  # its node just before; None: nobody knew it
    alternatives: Alternatives
    at: float  # seconds since 1970


def compare_bound(bound: Pending, held: AllocatedGpus | None) -> ObservedPlacement:
    """A pod that was bound. ``held``: None where its kubelet did not name its GPUs in time."""
    pod, node, before, options, at = bound
    plain = _plain(pod, node, before, held, at)
    if plain.size < 2:
        return plain._replace(alternatives=options, broke=None if before is None else _broke(pod, before, held))
    return plain._replace(alternatives=_with_own(options, node, plain.layout))


def compare_running(pod: PodUpdate, node: str, held: AllocatedGpus | None, at: float) -> ObservedPlacement:
    """A pod that runs already, next to the best that its machine gives when nothing else runs there."""
    plain = _plain(pod, node, None, held, at)._replace(cluster_then=True)
    if plain.size < 2:
        return plain._replace(broke=0)  # nobody knows what was free when it came
    if held is None:
        return plain
    best = best_set(held.shape, held.shape.whole | held.mask, plain.size)
    options = Alternatives() if best is None else Alternatives(best=Alternative(node, layout_of(held.shape, best.mask)))
    return plain._replace(alternatives=_with_own(options, node, plain.layout))


def _plain(
    pod: PodUpdate, node: str, before: NodeState | None, held: AllocatedGpus | None, at: float
) -> ObservedPlacement:
    profile = pod.occupant.profile
    whole = profile.gpus if profile.gpus == profile.devices else 0
    got: LayoutRange | None = None
    if held is not None:
        got = exact_range(held.shape, held.mask)
    elif before is not None and whole:
        got = possible_layouts(profile.device_request, before)
    return ObservedPlacement(
        at=at,
        namespace=pod.occupant.namespace,
        name=pod.occupant.name,
        scheduler=pod.scheduler,
        node=node,
        size=whole,
        layout=got,
        gpus=None if held is None else tuple(held.shape.gpus[place].index for place in member_places(held.mask)),
        unchecked=() if pod.rules is None else pod.rules.unchecked,
    )


def _broke(pod: PodUpdate, before: NodeState, held: AllocatedGpus | None) -> int | None:
    if held is not None and held.shape is before.shape:
        return broken_island_size(before, held.mask)
    return possible_broken_island_size(pod.occupant.profile.device_request, before)


def _with_own(options: Alternatives, node: str, got: LayoutRange | None) -> Alternatives:
    """What it got was there to be had, whatever was known of it before."""
    if got is None or not got.known:
        return options
    best = options.best
    if best is None or is_unknown(best.layout.ring):  # then the best that can be said is what we would have promised
        best = options.ours
    if best is None or is_unknown(best.layout.ring) or is_worse(best.layout.ring, got.worst.ring):
        best = Alternative(node, got.worst)
    return options._replace(best=best)
