"""The cluster of a preemption simulation: which job holds which GPUs. All mutable state of the cluster is here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple

from scheduler_core.allocation.admission import predict_sets
from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.allocation.machine_shape import MachineShape, shape_of
from scheduler_core.request.device_request import ContainerStep
from scheduler_core.simulation.device_plugin import draw_gpus
from scheduler_core.simulation.hosts import SimulatedNode
from scheduler_core.simulation.preemption.jobs import TieredJob


class RunningPod(NamedTuple):
    """A pod of a job, and its GPUs."""

    node: int
    gpus: int  # set of GPUs, by place


class RunningJob:
    """A job that runs, or has run: its progress survives evictions as far as it was saved."""

    def __init__(self, job: TieredJob) -> None:
        self.job = job
        self.pods: tuple[RunningPod, ...] = ()
        self.done = 0.0  # seconds of work that are saved
        self.started = 0.0  # of the current run, restart included
        self.run = 0  # number of the current run
        self.waited = 0.0  # until the first start
        self.since = job.arrival  # when it began to wait
        self.ever_started = False

    @property
    def key(self) -> str:
        """Return its name."""
        return self.job.name

    def work(self, now: float) -> float:
        """Return the seconds of work of this run."""
        warm_up = self.job.restart_s if self.run > 1 else 0.0
        return min(max(0.0, now - self.started - warm_up), self.job.duration - self.done)

    def unsaved(self, now: float) -> float:
        """Return the seconds of work that an eviction loses."""
        work, every = self.work(now), self.job.checkpoint_s
        return work if every is None else work % every

    def lost_gpu_hours(self, now: float, grace_s: float) -> float:
        """Return the GPU-hours that an eviction loses: work since the checkpoint, restart and grace period."""
        return self.job.all_gpus * (self.unsaved(now) + self.job.restart_s + grace_s) / 3600.0

    def ends_at(self) -> float:
        """Return when the current run is done."""
        warm_up = self.job.restart_s if self.run > 1 else 0.0
        return self.started + warm_up + self.job.duration - self.done


class RunningCluster:
    """The free GPUs of each node, and the jobs on it."""

    def __init__(self, specs: Sequence[SimulatedNode], random: Random) -> None:
        self.specs = specs
        self.shapes: list[MachineShape] = [shape_of(each.topology) for each in specs]
        self.free = [shape.whole for shape in self.shapes]
        self.on: list[dict[str, RunningJob]] = [{} for _ in specs]
        self._priorities = Counter[int]()  # of the running jobs
        self.gpus = sum(shape.whole.bit_count() for shape in self.shapes)
        self._random = random

    def place(self, job: TieredJob, only: Iterable[int] | None = None) -> tuple[RunningPod, ...] | None:
        """Return places for all pods, the fullest nodes first; None: they do not fit."""
        free: dict[int, int] = {}
        order = sorted(
            range(len(self.free)) if only is None else only, key=lambda node: (self.free[node].bit_count(), node)
        )
        pods: list[RunningPod] = []
        for node in order:
            mask = self.free[node]
            while len(pods) < job.pods and fits(self.shapes[node], mask, job.gpus, island=job.island):
                gpus = draw_gpus(self.shapes[node], mask, job.gpus, self._random)
                mask &= ~gpus
                pods.append(RunningPod(node, gpus))
            free[node] = mask
            if len(pods) == job.pods:
                return tuple(pods)
        return None

    def start(self, running: RunningJob, pods: tuple[RunningPod, ...]) -> None:
        """Start all pods of a job."""
        running.pods = pods
        self._priorities[running.job.priority] += 1
        for pod in pods:
            self.free[pod.node] &= ~pod.gpus
            self.on[pod.node][running.key] = running

    def stop(self, running: RunningJob) -> None:
        """Stop all pods of a job."""
        for pod in running.pods:
            self.free[pod.node] |= pod.gpus
            self.on[pod.node].pop(running.key, None)
        running.pods = ()
        self._priorities[running.job.priority] -= 1

    def has_lower(self, priority: int) -> bool:
        """Return whether a job of a lower priority runs."""
        return any(count and each < priority for each, count in self._priorities.items())


@lru_cache(maxsize=1 << 16)
def fits(shape: MachineShape, free: int, gpus: int, *, island: bool) -> bool:
    """Return whether a pod fits, with the worst outcome of the device plugin where it requires an island."""
    if free.bit_count() < gpus:
        return False
    if not island or gpus == 1:
        return True
    found = predict_sets(shape, ExactSets((free,)), (ContainerStep(gpus),)).sets
    return (
        isinstance(found, ExactSets)
        and bool(found.masks)
        and all(any(mask & ~each == 0 for each in shape.islands or ()) for mask in found.masks)
    )
