"""Shared GPUs by memory, for device plugins that honour the scheduler's choice of GPU. Pure.

NVIDIA's device plugin chooses the GPU of a share itself. Other plugins take the GPU that the scheduler names (HAMi, and
the plugin of "Beware of Fragmentation", USENIX ATC 2023). On such nodes a share may use any GPU with enough free
memory, and gputopo chooses the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gputopo.crd.nodegpus import DeviceAllocation
from gputopo.recent_results import recent_results
from scheduler_core.allocation.gpu_sets import Sets
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.policy.demand_mix import WHOLE_GPU

FreeFractions = tuple[int, ...]  # free thousandths of each GPU, by place


def reserved_mib(
    place_of: Mapping[str, int], size: int, allocations: Iterable[DeviceAllocation], pods: Iterable[Occupant]
) -> tuple[int, ...]:
    """Return the MiB of each GPU, by place, that shares hold: the requests of bound pods, on the GPUs that they got."""
    requested_mib = {
        (pod.namespace, pod.name): pod.profile.constraints.vram_mib or 0 for pod in pods if not pod.profile.gpus
    }
    held = [0] * size
    for each in allocations:
        if each.gpu in place_of:
            held[place_of[each.gpu]] += requested_mib.get((each.pod.namespace, each.pod.name), 0)
    return tuple(held)


@recent_results(1 << 14)
def free_fraction(shape: MachineShape, free: Sets | None, reserved: tuple[int, ...]) -> FreeFractions:
    """Return the free thousandths of each GPU; of whole GPUs all or nothing. ``reserved``: MiB by place, or empty."""
    whole = 0 if free is None else free.among
    return tuple(
        WHOLE_GPU if whole >> place & 1 else _left_of(reserved[place] if reserved else 0, gpu.memory_mib)
        for place, gpu in enumerate(shape.gpus)
    )


def gpus_with_free_memory(
    shape: MachineShape, free_fractions: FreeFractions, vram_mib: int
) -> Iterator[tuple[int, int]]:
    """Return the GPUs, by place, with this much free memory, and the thousandths that would stay free of each."""
    for place, free in enumerate(free_fractions):
        memory = shape.gpus[place].memory_mib
        share = -(-WHOLE_GPU * vram_mib // memory) if memory else None  # rounded up; None: unknown
        if share is not None and share <= free:
            yield place, free - share


def _left_of(taken: int, memory: int | None) -> int:
    """Return the free thousandths of a GPU with shares; 0 if a pod holds the whole GPU."""
    return 0 if not taken or not memory else max(0, WHOLE_GPU * (memory - taken) // memory)
