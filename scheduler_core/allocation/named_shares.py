"""GPUs that pods share, by memory, where the scheduler's choice of the GPU is obeyed. Pure.

NVIDIA's device plugin chooses the GPU of a share itself. Others take the one that the scheduler names (HAMi's, and the
one that "Beware of Fragmentation", USENIX ATC 2023, measured with): on such nodes a share may go wherever its memory
is free, and what it leaves of which GPU is up to us.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from gputopo.crd.nodegpus import Allocation
from scheduler_core.allocation.gpu_sets import Sets
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.policy.demand_mix import WHOLE_GPU

FreeFractions = tuple[int, ...]  # thousandths of each GPU, by place, that are free


def reserved_mib(
    place_of: Mapping[str, int], size: int, allocations: Iterable[Allocation], pods: Iterable[Occupant]
) -> tuple[int, ...]:
    """MiB of each GPU, by place, that shares hold: what bound pods ask for, on the GPUs that they really got."""
    asked = {(pod.namespace, pod.name): pod.profile.constraints.vram_mib or 0 for pod in pods if not pod.profile.gpus}
    held = [0] * size
    for each in allocations:
        if each.gpu in place_of:
            held[place_of[each.gpu]] += asked.get((each.pod.namespace, each.pod.name), 0)
    return tuple(held)


@lru_cache(maxsize=1 << 14)
def free_fraction(shape: MachineShape, free: Sets | None, reserved: tuple[int, ...]) -> FreeFractions:
    """What is free of each GPU: of GPUs that are handed out whole all or nothing. ``promised``: MiB, or nothing."""
    whole = 0 if free is None else free.among
    return tuple(
        WHOLE_GPU if whole >> place & 1 else _left_of(reserved[place] if reserved else 0, gpu.memory_mib)
        for place, gpu in enumerate(shape.gpus)
    )


def gpus_with_free_memory(
    shape: MachineShape, free_fractions: FreeFractions, vram_mib: int
) -> Iterator[tuple[int, int]]:
    """GPUs, by place, with so much memory free, and what would be left of each. ``now``: what is free."""
    for place, free in enumerate(free_fractions):
        memory = shape.gpus[place].memory_mib
        share = -(-WHOLE_GPU * vram_mib // memory) if memory else None  # rounded up; None: nobody knows
        if share is not None and share <= free:
            yield place, free - share


def _left_of(taken: int, memory: int | None) -> int:
    """A GPU that is not free as a whole: what its shares leave; nothing where a pod holds it whole."""
    return 0 if not taken or not memory else max(0, WHOLE_GPU * (memory - taken) // memory)
