"""What a pod leaves of a node: fewer or more fragments. Pure.

    gain = fragments before - fragments after - stranded / 4        GPUs, by ``mix``
    raw  = 1 / (1 + e^(-2 gain)), in steps of 0.04, rounded down    0.48 where nothing changes

``stranded`` are GPUs whose share of the node's CPU the pod takes beyond that of its own GPUs. Which GPUs the pod gets
is the device plugin's choice, so the gain is the mean over what may come out; a share of a GPU goes where the gain is
highest (``shares``).

Finer differences than such a step say nothing about what will come. Nodes that differ by less are equals, and what
kube-scheduler knows of them (all CPU and memory in use) decides: measured, that places more than to be exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import exp, floor

from scheduler_core.allocation.cpu_per_gpu import CpuPerGpu
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, SomeSet, member_places
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.named_shares import FreeFractions, free_fraction, gpus_with_free_memory
from scheduler_core.cache.node_state import NodeState
from scheduler_core.policy.demand_mix import WHOLE_GPU, DemandMix, FreeCapacity, free_units
from scheduler_core.request.pod_request import PodProfile

_STRANDED = 0.25  # what a GPU without CPU costs: it may serve yet, what asks for little or when others have ended
_MOST_LOSS = 700.0  # whose exponential a float still holds
_STEEPNESS, _STEPS = 2, 25
_ROUNDING = 1e-9  # what adding up in another order may change


def fragmentation_score(profile: PodProfile, node: NodeState, mix: DemandMix, sets: Sets | None) -> float:
    """Between 0 and 1. ``sets``: of GPUs that the pod may get; None: not known."""
    if node.shape is None:
        return 0.0
    share = profile.constraints.vram_mib
    if node.obeys and share is not None and not profile.gpus:
        chosen = best_gpu_for_share(node, share, mix, profile.device_request.cpu_milli)
        return 0.0 if chosen is None else _raw(chosen[1])
    if node.free is None or sets is None or sets == ExactSets(()):
        return 0.0
    free, sets = _distinguishable(node.free, sets)
    return _raw(
        _mean_gain(
            node.shape,
            node.cpu,
            free_fraction(node.shape, free, node.promised),
            sets,
            profile.device_request.cpu_milli,
            mix,
        )
    )


def best_gpu_for_share(node: NodeState, vram_mib: int, mix: DemandMix, cpu_milli: int = 0) -> tuple[int, float] | None:
    """The GPU, by place, on which a share does the least harm, and its gain; of equals the first. None: none fits."""
    assert node.shape is not None
    before = free_fraction(node.shape, node.free, node.promised)
    gain = _Gain(node.shape, node.cpu, before, cpu_milli, mix)
    island_of = _island_of(node.shape)
    best: tuple[int, float] | None = None
    seen = set()
    for place, rest in gpus_with_free_memory(node.shape, before, vram_mib):
        alike = before[place], rest, island_of[place]
        if alike not in seen:
            seen.add(alike)
            found = gain((*before[:place], rest, *before[place + 1 :]))
            best = (place, found) if best is None or found > best[1] else best
    return best


def fragmented_gpus(shape: MachineShape, free: FreeFractions, mix: DemandMix, cpu: CpuPerGpu | None = None) -> float:
    """Free GPUs of a node that are fragments: GPUs."""
    return mix.fragmented_gpus(_free_capacity(shape, free, None if cpu is None else cpu.milli_for(sum(free))))


class _Gain:
    """What a pod gains on a node, by what it leaves."""

    def __init__(
        self, shape: MachineShape, cpu: CpuPerGpu | None, before: FreeFractions, cpu_milli: int, mix: DemandMix
    ) -> None:
        self._shape, self._cpu, self._cpu_milli, self._mix = shape, cpu, cpu_milli, mix
        self._free = sum(before)
        there = None if cpu is None else cpu.milli_for(self._free)
        self._then = None if there is None else max(0, there - cpu_milli)
        self._before = mix.fragmented_gpus(_free_capacity(shape, before, there))

    def __call__(self, after: FreeFractions) -> float:
        """GPUs."""
        gain = self._before - self._mix.fragmented_gpus(_free_capacity(self._shape, after, self._then))
        if self._cpu is None:
            return gain
        own = self._cpu.of_gpu * (self._free - sum(after)) // WHOLE_GPU
        return gain - _STRANDED * max(0, self._cpu_milli - own) / self._cpu.of_gpu


@lru_cache(maxsize=1 << 14)
def _mean_gain(
    shape: MachineShape, cpu: CpuPerGpu | None, before: FreeFractions, sets: Sets, cpu_milli: int, mix: DemandMix
) -> float:
    """Over the sets that may come out. Pods that differ in other wishes share it."""
    gain = _Gain(shape, cpu, before, cpu_milli, mix)
    gains = [gain(_without(before, mask)) for mask in _few(sets)]
    return sum(gains) / len(gains)


def _free_capacity(shape: MachineShape, free: FreeFractions, cpu_milli: int | None) -> FreeCapacity:
    return FreeCapacity(free_units(free, _islands(shape)), _product(shape), cpu_milli)


@lru_cache(maxsize=1 << 14)
def _distinguishable(free: Sets, sets: Sets) -> tuple[Sets, Sets]:
    """Where it is not known which GPUs are free, some that may be stand for them, and the pod's are among those.

    Without an agent that is so on every node in use, and on any until the kubelet has named what it gave out. How many
    are free is known, and which nodes are full counts there as elsewhere.
    """
    if len(free.masks) <= 1 if isinstance(free, ExactSets) else free.size == free.among.bit_count():
        return free, sets
    there = free.masks[0] if isinstance(free, ExactSets) else _first(free.among, free.size)
    if isinstance(sets, SomeSet):
        return ExactSets((there,)), ExactSets((_first(there, sets.size),))
    inside = tuple(mask for mask in sets.masks if not mask & ~there)
    return ExactSets((there,)), ExactSets(inside or (_first(there, sets.masks[0].bit_count()),))


def _first(among: int, size: int) -> int:
    """Those of the lowest places."""
    return sum(1 << place for place in member_places(among)[:size])


def _without(before: FreeFractions, mask: int) -> FreeFractions:
    return tuple(0 if mask >> place & 1 else free for place, free in enumerate(before))


def _few(sets: Sets) -> Iterable[int]:
    """The sets; where they are too many to list, one of them."""
    if isinstance(sets, SomeSet):
        return (_first(sets.among, sets.size),)
    return sets.masks


def _raw(gain: float) -> float:
    """Of a loss without measure too: a pod may ask for a thousand times the CPU that a node has."""
    return floor(_STEPS / (1 + exp(min(_MOST_LOSS, -_STEEPNESS * gain))) + _ROUNDING) / _STEPS


@lru_cache(maxsize=1024)
def _islands(shape: MachineShape) -> tuple[int, ...]:
    return shape.islands if shape.islands is not None else (shape.whole,)


@lru_cache(maxsize=1024)
def _island_of(shape: MachineShape) -> tuple[int, ...]:
    """Of each GPU, by place. Those that cannot be used are in none: 0."""
    islands = _islands(shape)
    return tuple(sum(island for island in islands if island >> place & 1) for place in range(len(shape.gpus)))


@lru_cache(maxsize=1024)
def _product(shape: MachineShape) -> str | None:
    """The one product of its GPUs; None where they differ."""
    products = {gpu.product for gpu in shape.gpus}
    return products.pop() if len(products) == 1 else None
