"""Score the free GPUs that a pod leaves on a node by their fragmentation. Pure.

    gain = fragments before - fragments after - stranded / 4        GPUs, by ``demand_mix``
    raw  = 1 / (1 + e^(-2 gain)), in steps of 0.04, rounded down    0.48 where nothing changes

``stranded`` are GPUs whose share of the node's CPU the pod takes in addition to that of its own GPUs. The device plugin
chooses the GPUs of the pod, so the gain is the mean over the possible sets; a share of a GPU goes where the gain is
highest (``named_shares``).

Differences below one step say nothing about future pods. Nodes within one step count as equal, and the scores of
kube-scheduler (CPU and memory in use) decide between them: measured, this places more pods than exact values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from math import exp, floor

from gputopo.recent_results import recent_results
from scheduler_core.allocation.cpu_per_gpu import CpuPerGpu
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, SomeSet, member_places
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.named_shares import FreeFractions, free_fraction, gpus_with_free_memory
from scheduler_core.cache.node_state import NodeState
from scheduler_core.policy.demand_mix import WHOLE_GPU, DemandMix, FreeCapacity, free_units
from scheduler_core.request.pod_request import PodProfile

_STRANDED = 0.25  # cost of a GPU without CPU: pods with few CPUs, or later pods, may still use it
_MOST_LOSS = 700.0  # the exponential of more overflows a float
_STEEPNESS, _STEPS = 2, 25
_ROUNDING = 1e-9  # sums in another order may differ by this


def fragmentation_score(profile: PodProfile, node: NodeState, mix: DemandMix, sets: Sets | None) -> float:
    """Return a value between 0 and 1. ``sets``: the possible sets of GPUs; None: not known."""
    if node.shape is None:
        return 0.0
    share = profile.constraints.vram_mib
    if node.honours_gpu_choice and share is not None and not profile.gpus:
        chosen = best_gpu_for_share(node, share, mix, profile.device_request.cpu_milli)
        return 0.0 if chosen is None else _raw(chosen[1])
    if node.free is None or sets is None or sets == ExactSets(()):
        return 0.0
    free, sets = _distinguishable(node.free, sets)
    return _raw(
        _mean_gain(
            node.shape,
            node.cpu,
            free_fraction(node.shape, free, node.reserved_mib),
            sets,
            profile.device_request.cpu_milli,
            mix,
        )
    )


def best_gpu_for_share(node: NodeState, vram_mib: int, mix: DemandMix, cpu_milli: int = 0) -> tuple[int, float] | None:
    """Return the GPU, by place, on which a share has the highest gain, and the gain. None: no GPU fits."""
    assert node.shape is not None
    before = free_fraction(node.shape, node.free, node.reserved_mib)
    gain = _Gain(node.shape, node.cpu, before, cpu_milli, mix)
    island_of = _island_of(node.shape)
    best: tuple[int, float] | None = None
    seen = set()
    for place, rest in gpus_with_free_memory(node.shape, before, vram_mib):
        equivalent = before[place], rest, island_of[place]
        if equivalent not in seen:
            seen.add(equivalent)
            found = gain((*before[:place], rest, *before[place + 1 :]))
            best = (place, found) if best is None or found > best[1] else best
    return best


def fragmented_gpus(shape: MachineShape, free: FreeFractions, mix: DemandMix, cpu: CpuPerGpu | None = None) -> float:
    """Return the number of free GPUs of a node that are fragments."""
    return mix.fragmented_gpus(_free_capacity(shape, free, None if cpu is None else cpu.milli_for(sum(free))))


class _Gain:
    """Computes the gain of a pod on a node from the GPUs that it leaves free."""

    def __init__(
        self, shape: MachineShape, cpu: CpuPerGpu | None, before: FreeFractions, cpu_milli: int, mix: DemandMix
    ) -> None:
        self._shape, self._cpu, self._cpu_milli, self._mix = shape, cpu, cpu_milli, mix
        self._free = sum(before)
        there = None if cpu is None else cpu.milli_for(self._free)
        self._then = None if there is None else max(0, there - cpu_milli)
        self._before = mix.fragmented_gpus(_free_capacity(shape, before, there))

    def __call__(self, after: FreeFractions) -> float:
        """Return the gain, in GPUs. ``after``: the free fractions that the pod leaves."""
        gain = self._before - self._mix.fragmented_gpus(_free_capacity(self._shape, after, self._then))
        if self._cpu is None:
            return gain
        own = self._cpu.of_gpu * (self._free - sum(after)) // WHOLE_GPU
        return gain - _STRANDED * max(0, self._cpu_milli - own) / self._cpu.of_gpu


@recent_results(1 << 14)
def _mean_gain(
    shape: MachineShape, cpu: CpuPerGpu | None, before: FreeFractions, sets: Sets, cpu_milli: int, mix: DemandMix
) -> float:
    """Return the mean gain over the possible sets. Pods that differ in other constraints share the cache entry."""
    gain = _Gain(shape, cpu, before, cpu_milli, mix)
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    group_of = _left_in_islands(shape, before)
    for mask in _few(sets):
        groups[group_of(mask)].append(mask)
    gains = [len(masks) * gain(_without(before, masks[0])) for masks in groups.values()]
    return sum(gains) / sum(map(len, groups.values()))


def _left_in_islands(shape: MachineShape, before: FreeFractions) -> Callable[[int], Hashable]:
    """Return a function with equal values for sets that leave equal numbers of GPUs in islands: their gain is equal.

    With 16 GPUs, two thousand sets leave a few dozen different numbers.
    """
    if not {0, WHOLE_GPU}.issuperset(before):
        return lambda mask: mask
    free = sum(1 << place for place, each in enumerate(before) if each)
    single = free & sum(island for island in _islands(shape) if island.bit_count() == 1)
    others = [free & island for island in _islands(shape) if island.bit_count() > 1]
    return lambda mask: (
        (single & ~mask).bit_count(),
        tuple(sorted([(each & ~mask).bit_count() for each in others])),
    )


def _free_capacity(shape: MachineShape, free: FreeFractions, cpu_milli: int | None) -> FreeCapacity:
    return FreeCapacity(free_units(free, _islands(shape)), _product(shape), cpu_milli)


@recent_results(1 << 14)
def _distinguishable(free: Sets, sets: Sets) -> tuple[Sets, Sets]:
    """Return one possible free set, and sets of the pod within it, where the free GPUs are not known exactly.

    Without an agent this applies to every node in use; with one, until the kubelet has reported its allocations. The
    number of free GPUs is known, so full nodes are still preferred.
    """
    if len(free.masks) <= 1 if isinstance(free, ExactSets) else free.size == free.among.bit_count():
        return free, sets
    there = free.masks[0] if isinstance(free, ExactSets) else _first(free.among, free.size)
    if isinstance(sets, SomeSet):
        return ExactSets((there,)), ExactSets((_first(there, sets.size),))
    inside = tuple(mask for mask in sets.masks if not mask & ~there)
    return ExactSets((there,)), ExactSets(inside or (_first(there, sets.masks[0].bit_count()),))


def _first(among: int, size: int) -> int:
    """Return the GPUs of the lowest places."""
    return sum(1 << place for place in member_places(among)[:size])


def _without(before: FreeFractions, mask: int) -> FreeFractions:
    return tuple(0 if mask >> place & 1 else free for place, free in enumerate(before))


def _few(sets: Sets) -> Iterable[int]:
    """Return the sets; where they are too many to list, one of them."""
    if isinstance(sets, SomeSet):
        return (_first(sets.among, sets.size),)
    return sets.masks


def _raw(gain: float) -> float:
    """Return the raw value, also of a huge loss: a pod may request a thousand times the CPU of a node."""
    return floor(_STEPS / (1 + exp(min(_MOST_LOSS, -_STEEPNESS * gain))) + _ROUNDING) / _STEPS


@lru_cache(maxsize=1024)
def _islands(shape: MachineShape) -> tuple[int, ...]:
    return shape.islands if shape.islands is not None else (shape.whole,)


@lru_cache(maxsize=1024)
def _island_of(shape: MachineShape) -> tuple[int, ...]:
    """Return the island of each GPU, by place; 0 for unusable GPUs."""
    islands = _islands(shape)
    return tuple(sum(island for island in islands if island >> place & 1) for place in range(len(shape.gpus)))


@lru_cache(maxsize=1024)
def _product(shape: MachineShape) -> str | None:
    """Return the product of the GPUs; None where they differ."""
    products = {gpu.product for gpu in shape.gpus}
    return products.pop() if len(products) == 1 else None
