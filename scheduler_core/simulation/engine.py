"""Replay of a workload: arrivals in order, departures, and waiting pods.

Pods that do not fit wait. Whenever a pod ends, waiting pods are tried again in the order of their arrival; as in
kube-scheduler's queue, pods that fit may pass pods that still do not fit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from math import inf
from time import perf_counter
from typing import NamedTuple, Protocol

from scheduler_core.simulation.hosts import Placement, SimulatedCluster
from scheduler_core.simulation.workload import JobKind, SimulatedJob


class SimulatedScheduler(Protocol):
    """A placement policy for a cluster. The engine calls it; ``SimulatedCluster.changed`` lists all changes."""

    def place(self, job: SimulatedJob, now: float) -> Placement | None:
        """Return a node and GPUs for the job, which the engine then allocates; None: the job does not fit."""
        ...

    def ended(self, job: SimulatedJob, placement: Placement, now: float) -> None:
        """Handle the end of a job, after its GPUs were released."""
        ...


class Started(NamedTuple):
    """A job that got its GPUs."""

    job: SimulatedJob
    placement: Placement
    at: float  # seconds
    latency_s: float  # of the decision


class Moment(NamedTuple):
    """The cluster after an arrival was handled."""

    at: float  # seconds
    submitted: int  # thousandths of GPUs requested until now
    allocated: int
    waiting: int  # jobs


class ReplayResult(NamedTuple):
    """The result of a replay."""

    started: tuple[Started, ...]
    moments: tuple[Moment, ...]
    never: tuple[SimulatedJob, ...]  # jobs that did not get GPUs until the last arrival


def replay_jobs(
    jobs: Sequence[SimulatedJob],
    hosts: SimulatedCluster,
    scheduler: SimulatedScheduler,
    watch: Callable[[Moment], None] = lambda _: None,
) -> ReplayResult:
    """Run to the last arrival. ``watch`` is called with the cluster after each arrival."""
    state = _ReplayState(hosts, scheduler)
    moments = []
    submitted = 0
    for job in sorted(jobs, key=lambda each: each.arrival):
        state.pass_time(job.arrival)
        submitted += job.kind.demand
        if not state.start(job, job.arrival):
            state.waiting.append(job)
        moments.append(Moment(job.arrival, submitted, hosts.allocated, len(state.waiting)))
        watch(moments[-1])
    return ReplayResult(tuple(state.started), tuple(moments), tuple(state.waiting))


class _ReplayState:
    """The running and waiting jobs."""

    def __init__(self, hosts: SimulatedCluster, scheduler: SimulatedScheduler) -> None:
        self._hosts = hosts
        self._scheduler = scheduler
        self._running: list[tuple[float, int, SimulatedJob, Placement]] = []  # a heap, by end
        self.waiting: list[SimulatedJob] = []
        self.started: list[Started] = []

    def pass_time(self, until: float) -> None:
        """End jobs until this time, and start waiting jobs in their place."""
        for now, ending in self._ends(until):
            for job, placement in ending:
                self._hosts.end_pod(job.kind, placement)
                self._scheduler.ended(job, placement, now)
            self._retry(now)

    def start(self, job: SimulatedJob, now: float) -> bool:
        """Start the job if it fits. Return True if it does."""
        before = perf_counter()
        placement = self._scheduler.place(job, now)
        latency = perf_counter() - before
        if placement is None:
            return False
        self._hosts.start_pod(job.kind, placement)
        self.started.append(Started(job, placement, now, latency))
        if job.duration < inf:
            heapq.heappush(self._running, (now + job.duration, len(self.started), job, placement))
        return True

    def _ends(self, until: float) -> Iterator[tuple[float, list[tuple[SimulatedJob, Placement]]]]:
        while self._running and self._running[0][0] <= until:
            now, _, job, placement = heapq.heappop(self._running)
            yield now, [(job, placement)]

    def _retry(self, now: float) -> None:
        """Try waiting jobs in order of arrival. If a job does not fit, other jobs of its kind do not fit either."""
        unplaceable: set[JobKind] = set()
        still_waiting = []
        for job in self.waiting:
            if job.kind in unplaceable or not self.start(job, now):
                unplaceable.add(job.kind)
                still_waiting.append(job)
        self.waiting = still_waiting
