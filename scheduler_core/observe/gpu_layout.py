"""The layout of a pod's GPUs: their interconnect, islands and NUMA nodes. Pure.

Where a pod has, or may get, one of several sets, a ``LayoutRange`` gives the worst and the best of these sets. Each
fact is taken by itself, so the worst is certain.
"""

from __future__ import annotations

import msgspec

from gputopo.paths import PathKind
from gputopo.recent_results import recent_results
from gputopo.rings import Ring
from scheduler_core.allocation.gpu_sets import Sets, SomeSet
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.possible_gpus import possible_rings, whole_gpu_outcome
from scheduler_core.request.device_request import DeviceRequest


class GpuLayout(msgspec.Struct, frozen=True, rename="camel"):
    """The layout of a set of GPUs."""

    ring: Ring | None  # None: a single GPU, or unknown
    one_island: bool | None  # None: unknown
    numa_nodes: int | None  # how many; None: unknown


class LayoutRange(msgspec.Struct, frozen=True, rename="camel"):
    """The worst and the best layout of some sets."""

    worst: GpuLayout
    best: GpuLayout

    @property
    def known(self) -> bool:
        """True if all sets have the same ring, and all or none are in one island."""
        worst, best = self.worst, self.best
        return (worst.ring, worst.one_island) == (best.ring, best.one_island)


@recent_results(1 << 14)
def layout_of(shape: MachineShape, mask: int) -> GpuLayout:
    """Return the layout of a set."""
    return GpuLayout(shape.ring(mask), shape.is_one_island(mask), shape.count_numa_nodes(mask))


def exact_range(shape: MachineShape, mask: int) -> LayoutRange:
    """Return the range of a single set."""
    return LayoutRange(layout_of(shape, mask), layout_of(shape, mask))


@recent_results(1 << 14)
def possible_layouts(ask: DeviceRequest, node: NodeState) -> LayoutRange | None:
    """Return the range of the sets of whole GPUs that a pod may get on a node; None: unknown."""
    found = whole_gpu_outcome(ask, node)
    if node.shape is None or node.free is None or found is None:
        return None
    return layout_range(node.shape, found.sets)


def layout_range(shape: MachineShape, sets: Sets) -> LayoutRange | None:
    """Return the range of these sets; None without sets."""
    if isinstance(sets, SomeSet):
        worst = _worst_ring(possible_rings(shape, sets))
        one_island = shape.is_one_island(sets.among) or None
        return LayoutRange(
            worst=GpuLayout(worst, one_island, shape.count_numa_nodes(sets.among)), best=GpuLayout(None, None, None)
        )
    layouts = [layout_of(shape, mask) for mask in sets.masks]
    if not layouts:
        return None
    islands = {each.one_island for each in layouts}
    numa = [each.numa_nodes for each in layouts]
    known_numa = [each for each in numa if each]
    found = [each.ring for each in layouts if each.ring is not None]
    return LayoutRange(
        worst=GpuLayout(
            ring=_worst_ring(found),
            one_island=False if False in islands else None if None in islands else True,
            numa_nodes=None if None in numa else max(known_numa),
        ),
        best=GpuLayout(
            ring=max(found, key=_quality, default=None),
            one_island=True if True in islands else None if None in islands else False,
            numa_nodes=min(known_numa, default=None),
        ),
    )


def is_unknown(ring: Ring | None) -> bool:
    """Return whether the interconnect or the rate of a ring is unknown; a PCIe ring needs no rate."""
    return ring is None or ring.kind is PathKind.UNKNOWN or (ring.kind is not PathKind.PCIE and ring.gbps is None)


def _worst_ring(found: list[Ring]) -> Ring | None:
    """Return the worst ring; an unknown ring may be the worst."""
    return next((ring for ring in found if is_unknown(ring)), min(found, key=_quality, default=None))


def _quality(ring: Ring) -> tuple[bool, float, int, int, float]:
    return ring.sort_key
