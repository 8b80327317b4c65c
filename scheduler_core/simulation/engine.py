"""Replays a workload: arrivals in order, departures, and those who wait.

Pods that find no room wait, and are tried again in the order of their arrival whenever a pod ended: as in
kube-scheduler's queue, later ones may pass those that still find none.
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
    """A placement policy at work on one cluster. All that happens there it is told, or sees in ``Hosts.changed``."""

    def place(self, job: SimulatedJob, now: float) -> Placement | None:
        """A node and GPUs for the job; None: there are none. The engine then gives them to it."""
        ...

    def ended(self, job: SimulatedJob, placement: Placement, now: float) -> None:
        """The job has ended, and the cluster has its GPUs back."""
        ...


class Started(NamedTuple):
    """A job that got its GPUs."""

    job: SimulatedJob
    placement: Placement
    at: float  # seconds
    latency_s: float  # that the decision took


class Moment(NamedTuple):
    """The cluster after an arrival has been dealt with."""

    at: float  # seconds
    submitted: int  # thousandths of GPUs asked for until now
    allocated: int
    waiting: int  # jobs


class ReplayResult(NamedTuple):
    """What happened."""

    started: tuple[Started, ...]
    moments: tuple[Moment, ...]
    never: tuple[SimulatedJob, ...]  # jobs that did not get GPUs until the last arrival


def replay_jobs(
    jobs: Sequence[SimulatedJob],
    hosts: SimulatedCluster,
    scheduler: SimulatedScheduler,
    watch: Callable[[Moment], None] = lambda _: None,
) -> ReplayResult:
    """Run to the last arrival. ``watch`` sees the cluster after each."""
    course = _ReplayState(hosts, scheduler)
    moments = []
    submitted = 0
    for job in sorted(jobs, key=lambda each: each.arrival):
        course.pass_time(job.arrival)
        submitted += job.kind.demand
        if not course.start(job, job.arrival):
            course.waiting.append(job)
        moments.append(Moment(job.arrival, submitted, hosts.allocated, len(course.waiting)))
        watch(moments[-1])
    return ReplayResult(tuple(course.started), tuple(moments), tuple(course.waiting))


class _ReplayState:
    """Who runs and who waits."""

    def __init__(self, hosts: SimulatedCluster, scheduler: SimulatedScheduler) -> None:
        self._hosts = hosts
        self._scheduler = scheduler
        self._running: list[tuple[float, int, SimulatedJob, Placement]] = []  # a heap, by end
        self.waiting: list[SimulatedJob] = []
        self.started: list[Started] = []

    def pass_time(self, until: float) -> None:
        """Let jobs end, and those who wait follow."""
        for now, ending in self._ends(until):
            for job, placement in ending:
                self._hosts.end_pod(job.kind, placement)
                self._scheduler.ended(job, placement, now)
            self._retry(now)

    def start(self, job: SimulatedJob, now: float) -> bool:
        """Whether there is room."""
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
        """In order of arrival. What a kind does not find, its next one does not find either."""
        hopeless: set[JobKind] = set()
        still = []
        for job in self.waiting:
            if job.kind in hopeless or not self.start(job, now):
                hopeless.add(job.kind)
                still.append(job)
        self.waiting = still
