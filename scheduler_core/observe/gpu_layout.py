"""How the GPUs of a pod lie: what joins them, in one island or not, on how many NUMA nodes. Pure.

Where it is not known which set a pod has or may get, that is a ``Span``: what holds for the worst of the sets, and for
the best. Each fact is taken by itself, so the worst is what is sure.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from gputopo.paths import PathKind
from gputopo.rings import Ring
from scheduler_core.allocation.gpu_sets import Sets, SomeSet
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.possible_gpus import possible_rings, whole_gpu_outcome
from scheduler_core.request.device_request import DeviceRequest


class GpuLayout(NamedTuple):
    """How a set of GPUs lies."""

    ring: Ring | None  # None: of a single GPU, or unknown
    one_island: bool | None  # None: unknown
    numa_nodes: int | None  # that it is on; None: unknown


class LayoutRange(NamedTuple):
    """How a set lies that is one of several."""

    worst: GpuLayout
    best: GpuLayout

    @property
    def known(self) -> bool:
        """Whether it lies the same whichever it is, as far as rings and islands go."""
        return self.worst[:2] == self.best[:2]


_UNKNOWN = GpuLayout(None, None, None)


@lru_cache(maxsize=1 << 14)
def layout_of(shape: MachineShape, mask: int) -> GpuLayout:
    """How that set lies."""
    return GpuLayout(shape.ring(mask), shape.is_one_island(mask), shape.count_numa_nodes(mask))


def exact_range(shape: MachineShape, mask: int) -> LayoutRange:
    """That set and no other."""
    return LayoutRange(layout_of(shape, mask), layout_of(shape, mask))


@lru_cache(maxsize=1 << 14)
def possible_layouts(ask: DeviceRequest, node: NodeState) -> LayoutRange | None:
    """How the whole GPUs lie that a pod may get there; None where nobody can tell."""
    found = whole_gpu_outcome(ask, node)
    if node.shape is None or node.free is None or found is None:
        return None
    return layout_range(node.shape, found.sets)


def layout_range(shape: MachineShape, sets: Sets) -> LayoutRange | None:
    """How the set lies that is one of these; None where there is none."""
    if isinstance(sets, SomeSet):
        worst = _worst_ring(possible_rings(shape, sets))
        return LayoutRange(
            GpuLayout(worst, shape.is_one_island(sets.among) or None, shape.count_numa_nodes(sets.among)), _UNKNOWN
        )
    lays = [layout_of(shape, mask) for mask in sets.masks]
    if not lays:
        return None
    every = [each.one_island for each in lays]
    numa = [each.numa_nodes for each in lays]
    found = [each.ring for each in lays if each.ring is not None]
    return LayoutRange(
        GpuLayout(_worst_ring(found), _all(every), None if None in numa else max(each for each in numa if each)),
        GpuLayout(_best_ring(found), _any(every), min((each for each in numa if each), default=None)),
    )


def is_unknown(ring: Ring | None) -> bool:
    """Whether nobody knows what the ring is."""
    return ring is None or ring.kind is PathKind.UNKNOWN or (ring.kind is not PathKind.PCIE and ring.gbps is None)


def _worst_ring(found: Iterable[Ring]) -> Ring | None:
    """What is not known may be the worst."""
    found = list(found)
    return next((ring for ring in found if is_unknown(ring)), min(found, key=_quality, default=None))


def _best_ring(found: Iterable[Ring]) -> Ring | None:
    return max(found, key=_quality, default=None)


def _quality(ring: Ring) -> tuple[bool, float, int, int, float]:
    return ring.sort_key


def _all(every: list[bool | None]) -> bool | None:
    return False if False in every else None if None in every else True


def _any(every: list[bool | None]) -> bool | None:
    return True if True in every else None if None in every else False
