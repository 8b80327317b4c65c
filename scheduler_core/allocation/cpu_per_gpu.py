"""The CPU of a node for each free GPU. Pure.

Only the requests of GPU pods are known, and only the ratio to the idle node matters. The ratio is rounded to quarters,
so that nodes have few different states.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import floor
from typing import NamedTuple

from scheduler_core.policy.demand_mix import WHOLE_GPU

_MAX_RATIO = 2.5  # to the idle node; CPU is not scarce beyond it
_STEPS = 4  # per unit of the ratio


class CpuPerGpu(NamedTuple):
    """CPU for each free GPU."""

    of_gpu: int  # milli, on the idle node
    level: float  # available CPU per free GPU as a ratio to ``of_gpu``, rounded down

    def milli_for(self, free: int) -> int:
        """Return the CPU milli for this many free thousandths of GPUs."""
        return int(self.level * self.of_gpu * free / WHOLE_GPU)


def cpu_per_gpu(allocatable: int | None, gpus: int, free: int, requested: Iterable[int]) -> CpuPerGpu | None:
    """``allocatable``: CPU milli of the node; ``asked``: of its GPU pods; ``free``: free thousandths of its GPUs."""
    if not allocatable or not gpus or allocatable < gpus:  # less than a milli CPU for each GPU
        return None
    of_gpu = allocatable // gpus
    ratio = (allocatable - sum(requested)) * WHOLE_GPU / (of_gpu * free) if free else 0.0
    return CpuPerGpu(of_gpu, min(_MAX_RATIO, max(0.0, floor(_STEPS * ratio) / _STEPS)))
