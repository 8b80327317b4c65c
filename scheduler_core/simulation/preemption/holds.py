"""Capacity holds in the simulation, with and without backfill: which jobs start on held nodes, and which yield.

As the planner does it in one namespace, but for whole nodes: each priority has at most one hold, for the first job
that does not fit. It is on the nodes that are free first by the deadlines of the running jobs. Without such deadlines
nothing is held. Jobs of a higher priority ignore the hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from scheduler_core.planner.packing.backfill import RELEASE_S, START_S
from scheduler_core.simulation.preemption.jobs import TieredJob
from scheduler_core.simulation.preemption.planner_rule import GRACE_S
from scheduler_core.simulation.preemption.running import RunningCluster, RunningJob, RunningPod

_MOST_TIMES = 256  # ends of running jobs that one search for a hold tries


class HeldPlaces(NamedTuple):
    """The places of a job, and the backfilled jobs that yield them. None: it waits."""

    pods: tuple[RunningPod, ...] | None
    yielding: tuple[RunningJob, ...] = ()


class _Hold:
    def __init__(self, holder: RunningJob, nodes: frozenset[int], estimate: float) -> None:
        self.holder, self.nodes, self.estimate = holder, nodes, estimate  # seconds
        self.backfilled: list[tuple[RunningJob, int]] = []  # with the number of their run


class HeldNodes:
    """The capacity holds of a replay. ``backfill``: whether jobs that end in time may use them."""

    def __init__(self, cluster: RunningCluster, tick_s: float, *, backfill: bool) -> None:
        self.backfilled = self.late = 0  # jobs; holders that started after the estimate of their hold
        self._cluster, self._tick_s, self._backfill = cluster, tick_s, backfill
        self._holds: dict[int, _Hold] = {}  # by priority

    def place(self, running: RunningJob, now: float) -> HeldPlaces:
        """Return the places of a waiting job, or hold nodes for it if no job of its priority has a hold."""
        job, own = running.job, self._holds.get(running.job.priority)
        others = [each for each in self._holds.values() if self._closes(each, running)]
        closed = frozenset[int]().union(*(each.nodes for each in others))
        nodes = [number for number in range(len(self._cluster.free)) if number not in closed]
        pods = self._cluster.place(job, nodes)
        if own is not None and own.holder is running:
            found = HeldPlaces(pods) if pods is not None else self._without_backfilled(own, nodes)
            is_late = now > ceil(own.estimate / self._tick_s) * self._tick_s
            self.late += is_late
            if found.pods is not None or is_late:
                del self._holds[job.priority]
            return found
        if pods is None and self._backfill:
            pods = self._backfill_places(running, others, nodes, now)
        if pods is None and own is None:
            self._hold(running, nodes, now)
        return HeldPlaces(pods)

    def _closes(self, hold: _Hold, running: RunningJob) -> bool:
        return hold.holder is not running and hold.holder.job.priority >= running.job.priority

    def _backfill_places(
        self, running: RunningJob, holds: Iterable[_Hold], nodes: list[int], now: float
    ) -> tuple[RunningPod, ...] | None:
        """Return places on held nodes for a job that has certainly ended when the holder is to start."""
        bound = _bound_s(running, running.run + 1)
        if bound is None:
            return None
        for hold in sorted(holds, key=lambda each: -each.estimate):
            if now + START_S + bound + GRACE_S + RELEASE_S > hold.estimate:
                return None
            pods = self._cluster.place(running.job, [*nodes, *hold.nodes])
            if pods is not None:
                hold.backfilled.append((running, running.run + 1))
                self.backfilled += 1
                return pods
        return None

    def _without_backfilled(self, hold: _Hold, nodes: list[int]) -> HeldPlaces:
        """Return the places of the holder if the backfilled jobs yield, and those of them that must."""
        users = [each for each, run in hold.backfilled if each.pods and each.run == run]
        pods = self._place_without(hold.holder.job, nodes, users) if users else None
        taken = pods or ()
        needed = [each for each in users if any(a.node == b.node and a.gpus & b.gpus for a in each.pods for b in taken)]
        return HeldPlaces(pods, tuple(needed))

    def _hold(self, running: RunningJob, nodes: list[int], now: float) -> None:
        """Hold the nodes that are free first by deadlines; none without such deadlines."""
        there = {each.key: each for on in self._cluster.on for each in on.values()}
        bounds = {key: bound for key, each in there.items() if (bound := _bound_s(each, each.run)) is not None}
        ends = sorted((there[key].started + bound + GRACE_S, key) for key, bound in bounds.items())
        gone: list[RunningJob] = []
        for at, (end, key) in enumerate(ends[:_MOST_TIMES]):
            gone.append(there[key])
            if at + 1 < len(ends) and ends[at + 1][0] == end:
                continue
            pods = self._place_without(running.job, nodes, gone)
            if pods is not None:
                estimate = max(end, now)
                self._holds[running.job.priority] = _Hold(running, frozenset(pod.node for pod in pods), estimate)
                return

    def _place_without(
        self, job: TieredJob, nodes: list[int], gone: Iterable[RunningJob]
    ) -> tuple[RunningPod, ...] | None:
        """Return places as if some jobs had ended."""
        free, before = self._cluster.free, list(self._cluster.free)
        for each in gone:
            for pod in each.pods:
                free[pod.node] |= pod.gpus
        try:
            return self._cluster.place(job, nodes)
        finally:
            free[:] = before


def _bound_s(running: RunningJob, run: int) -> float | None:
    """Return how long a run of the job takes at most; None: it has no deadline."""
    deadline = running.job.deadline_s
    return None if deadline is None else deadline + (running.job.restart_s if run > 1 else 0.0)
