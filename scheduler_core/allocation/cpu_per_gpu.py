"""How much CPU of a node there is for each free GPU. Pure.

No more is known than what GPU pods ask for, and what counts is only how it compares with the idle node. Told in
quarters of that, so that few states of nodes differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import floor
from typing import NamedTuple

from scheduler_core.policy.demand_mix import WHOLE_GPU

_MOST = 2.5  # of what an idle node has for each GPU; who has that much lacks none
_STEPS = 4  # for each of it


class CpuPerGpu(NamedTuple):
    """CPU for each free GPU."""

    of_gpu: int  # milli, on the idle node
    level: float  # what there is, in that, rounded down

    def milli_for(self, free: int) -> int:
        """Milli, for so many free thousandths."""
        return int(self.level * self.of_gpu * free / WHOLE_GPU)


def cpu_per_gpu(allocatable: int | None, gpus: int, free: int, asked: Iterable[int]) -> CpuPerGpu | None:
    """``allocatable``: CPU milli of the node; ``asked``: of its GPU pods; ``free``: thousandths of its GPUs."""
    if not allocatable or not gpus:
        return None
    of_gpu = allocatable // gpus
    ratio = (allocatable - sum(asked)) * WHOLE_GPU / (of_gpu * free) if free else 0.0
    return CpuPerGpu(of_gpu, min(_MOST, max(0.0, floor(_STEPS * ratio) / _STEPS)))
