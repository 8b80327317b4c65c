"""Used memory and busy share of each GPU over time: a mean for metrics, coarse steps for ``NodeGpus``. Pure.

Both change all the time, and every change of a ``NodeGpus`` goes to every extender and planner. So a published value is
a step of 10 %, and it changes only when the value is ``_LEAST_MOVE`` or more away from it: a GPU whose load varies
around 55 % is published once. Numbers from the driver, or from a recording, are limited to 0 to 100 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent.snapshot import Nvml, NvmlGpu
from gputopo.crd.nodegpus import GpuUsage
from gputopo.model import MAX_GPUS, Gpu

WINDOW_S = 600.0  # of the mean busy share; NVML's own sample is one second or less
STEP = 10  # percent
_LEAST_MOVE = 8  # percent: half a step, and a margin
_MOST_SAMPLES = 64  # of a GPU: driver events cause extra passes
_MAX_NAME = 96  # ``ShortText`` of the custom resource


class GpuLoad(NamedTuple):
    """The load of one GPU, from its readings of the last ``WINDOW_S`` seconds. None: unknown."""

    samples: tuple[tuple[float, int], ...] = ()  # (time, busy percent), oldest first; bounded
    used_step: int | None = None  # percent of the memory, as published
    busy_step: int | None = None

    @property
    def busy_percent(self) -> float | None:
        """Return the mean of the samples; None without a sample."""
        return sum(percent for _, percent in self.samples) / len(self.samples) if self.samples else None


LoadHistory = Mapping[str, GpuLoad]  # by UUID


def record_load(history: LoadHistory, nvml: Nvml | None, now: float) -> LoadHistory:
    """Return the load of the GPUs that NVML reads in this pass. A GPU that does not answer has none."""
    answering = [gpu for gpu in (nvml.gpus if nvml else ()) if gpu.access_error is None and gpu.uuid is not None]
    return {str(gpu.uuid): _add(history.get(str(gpu.uuid), GpuLoad()), gpu, now) for gpu in answering}


def published_usage(
    history: LoadHistory, claims: Mapping[str, int], gpus: Iterable[Gpu]
) -> tuple[GpuUsage, ...] | None:
    """Return what ``NodeGpus`` says about the use of these GPUs; None: nothing is known.

    ``claims``: percent of the memory that containers hold, by UUID.
    """
    names = [gpu.uuid for gpu in gpus if gpu.uuid is not None and len(gpu.uuid) <= _MAX_NAME][:MAX_GPUS]
    loads = [(name, history.get(name, GpuLoad())) for name in names]
    usage = [GpuUsage(name, load.used_step, claims.get(name), load.busy_step) for name, load in loads]
    return tuple(each for each in usage if each != GpuUsage(each.gpu)) or None


def _add(load: GpuLoad, gpu: NvmlGpu, now: float) -> GpuLoad:
    samples = tuple(each for each in load.samples if now - each[0] < WINDOW_S)
    if gpu.busy_percent is not None:
        samples = (*samples, (now, _percent(gpu.busy_percent)))[-_MOST_SAMPLES:]
    measured = GpuLoad(samples)
    return measured._replace(
        used_step=_step(_used_percent(gpu), load.used_step), busy_step=_step(measured.busy_percent, load.busy_step)
    )


def _used_percent(gpu: NvmlGpu) -> float | None:
    if gpu.memory_used_bytes is None or not gpu.memory_bytes:
        return None
    return _percent(100 * gpu.memory_used_bytes / gpu.memory_bytes)


def _percent(value: float) -> int:
    return round(min(100.0, max(0.0, value)))


def _step(percent: float | None, published: int | None) -> int | None:
    """Return the published step, or another one where the value differs enough from it."""
    if percent is None:
        return None
    if published is not None and abs(percent - published) < _LEAST_MOVE:
        return published
    return STEP * int(percent / STEP + 0.5)
