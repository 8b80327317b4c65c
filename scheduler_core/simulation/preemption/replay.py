"""Replay of jobs of several tiers with one rule of preemption: lost work, waits, evictions in vain."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from scheduler_core.policy.preemption import PreemptionPolicy
from scheduler_core.simulation.hosts import SimulatedNode
from scheduler_core.simulation.preemption.eviction_rules import (
    DefaultPreemption,
    EvictionRule,
    KaiPreemption,
    NoEviction,
)
from scheduler_core.simulation.preemption.holds import HeldNodes
from scheduler_core.simulation.preemption.jobs import TieredJob
from scheduler_core.simulation.preemption.planner_rule import GRACE_S, PlannerPreemption
from scheduler_core.simulation.preemption.running import RunningCluster, RunningJob, RunningPod

RULES: dict[str, Callable[[], EvictionRule]] = {
    "ours": PlannerPreemption,
    "default": DefaultPreemption,
    "kai": KaiPreemption,
    "none": NoEviction,
}
HOLD_RULES = {"hold": False, "backfill": True}  # without preemption: whether short jobs use held nodes
RULE_DESCRIPTIONS = {
    "ours": "gputopo: the built-in rules, the cheapest set that is proven to suffice, or none",
    "default": "kube-scheduler's default preemption, without gputopo's preemptVerb",
    "kai": "KAI: whole jobs of priority below 100, by priority, without cost",
    "none": "no preemption",
    "hold": "no preemption; nodes are held for the first job of each priority that does not fit",
    "backfill": "the same, and jobs with deadlines use held nodes if they end in time",
}
TIERS = ("critical", "normal", "low", "scavenger")
TICK_S = 300.0  # how often waiting jobs are tried again
_MONEY_PER_GPU_HOUR = 2.0
_RETRY_S = 600.0  # how often evictions are considered for a waiting job


class TierWaits(NamedTuple):
    """The waits of the jobs of a tier until their first start. Jobs that never started count until the end."""

    jobs: int
    p50_s: float
    p95_s: float
    never: int


class PreemptionFigures(NamedTuple):
    """The result of a replay."""

    policy: str
    seed: int
    gpu_hours_lost: float  # work since the checkpoint, restart and grace period
    money_lost: float
    evicted_jobs: int
    in_vain: int  # of these: the job for which they were evicted did not start
    utilisation: float  # share of the GPUs in use over time, until the first tick after the last arrival
    useful: float  # the same without lost work; 0 if more was lost
    waits: dict[str, TierWaits]
    waiting_gpu_hours: float  # work of the jobs that wait at the end
    gave_up: int = 0  # searches that reached their limit
    backfilled_jobs: int = 0  # starts on held nodes
    yielded_jobs: int = 0  # of these: evicted because the holder could start earlier
    late_holders: int = 0  # holders that started after the estimate of their hold


def replay_tiers(
    name: str,
    specs: Sequence[SimulatedNode],
    jobs: Sequence[TieredJob],
    seed: int,
    advance: Callable[[int], None] = lambda _: None,
    rules: PreemptionPolicy | None = None,
) -> PreemptionFigures:
    """Run to the first tick after the last arrival with the named rule. The same seed gives the same result.

    ``advance`` is called with the number of jobs that arrived, after each tick. ``rules``: gputopo's preemption with
    these rules, whatever the name.
    """
    cluster = RunningCluster(specs, Random(seed))  # noqa: S311  not a secret
    holds = HeldNodes(cluster, TICK_S, backfill=HOLD_RULES[name]) if name in HOLD_RULES else None
    rule = RULES.get(name, NoEviction)() if rules is None else PlannerPreemption(rules)
    replay = _TierReplay(cluster, rule, holds)
    end = replay.run(jobs, advance)
    lost = replay.lost_gpu_hours
    total = replay.cluster.gpus * max(end, 1.0) / 3600.0
    return PreemptionFigures(
        policy=name,
        seed=seed,
        gpu_hours_lost=lost,
        money_lost=lost * _MONEY_PER_GPU_HOUR,
        evicted_jobs=replay.evicted,
        in_vain=replay.in_vain,
        utilisation=replay.used_gpu_hours / total,
        useful=max(0.0, replay.used_gpu_hours - lost) / total,
        waits={tier: _waits([each for each in replay.jobs if each.job.tier == tier], end) for tier in TIERS},
        waiting_gpu_hours=replay.waiting_gpu_hours,
        gave_up=replay.gave_up,
        backfilled_jobs=0 if holds is None else holds.backfilled,
        yielded_jobs=replay.yielded,
        late_holders=0 if holds is None else holds.late,
    )


def _waits(jobs: Sequence[RunningJob], end: float) -> TierWaits:
    waits = sorted(each.waited if each.ever_started else end - each.job.arrival for each in jobs)
    if not waits:
        return TierWaits(0, 0.0, 0.0, 0)
    never = sum(not each.ever_started for each in jobs)
    return TierWaits(len(waits), waits[len(waits) // 2], waits[min(len(waits) - 1, len(waits) * 95 // 100)], never)


class _TierReplay:
    """The running and waiting jobs."""

    def __init__(self, cluster: RunningCluster, rule: EvictionRule, holds: HeldNodes | None) -> None:
        self.cluster = cluster
        self.jobs: list[RunningJob] = []
        self.evicted = self.in_vain = self.gave_up = self.yielded = 0
        self.lost_gpu_hours = self.used_gpu_hours = 0.0
        self._rule, self._holds = rule, holds
        self._waiting: list[RunningJob] = []
        self._ends: list[tuple[float, int, int, RunningJob]] = []  # a heap: time, order, run
        self._order = 0
        self._next_search: dict[str, float] = {}

    def run(self, jobs: Sequence[TieredJob], advance: Callable[[int], None]) -> float:
        """Handle all arrivals, ends and retries until all jobs have arrived. Return the time of the last tick."""
        now = 0.0
        for now, arriving in _moments(jobs):
            self._finish(now)
            self.jobs += arriving
            self._waiting += arriving
            self._waiting.sort(key=lambda each: (-each.job.priority, each.job.arrival, each.key))
            self._retry(now)
            advance(len(arriving))
        for each in self.jobs:
            if each.pods:
                self._count_use(each, now)
        return now

    @property
    def waiting_gpu_hours(self) -> float:
        """Return the work that the waiting jobs have left."""
        return sum(each.job.all_gpus * (each.job.duration - each.done) / 3600.0 for each in self._waiting)

    def _finish(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            at, _, run, running = heapq.heappop(self._ends)
            if running.pods and running.run == run:
                self._count_use(running, at)
                self.cluster.stop(running)

    def _retry(self, now: float) -> None:
        """Try waiting jobs by priority. If a job does not fit, equal jobs do not fit either."""
        failed: set[tuple[int, int, bool]] = set()
        waiting, self._waiting = self._waiting, []
        for running in waiting:
            if self._holds is not None:
                self._start_with_holds(running, self._holds, now)
                continue
            kind = running.job.pods, running.job.gpus, running.job.island
            pods = None if kind in failed else self.cluster.place(running.job)
            if pods is None:
                failed.add(kind)
                pods = self._preempt(running, now)
                if pods is not None:
                    failed.clear()  # what was evicted may leave more than the job takes
            if pods is None:
                self._waiting.append(running)
            else:
                self._start(running, pods, now)

    def _start_with_holds(self, running: RunningJob, holds: HeldNodes, now: float) -> None:
        """Start a job beside capacity holds, if it fits: backfilled jobs yield to the holder."""
        found = holds.place(running, now)
        for each in found.yielding:
            self._evict(each, now)
        self.yielded += len(found.yielding)
        self.evicted += len(found.yielding)
        if found.pods is None:
            self._waiting.append(running)
        else:
            self._start(running, found.pods, now)

    def _preempt(self, running: RunningJob, now: float) -> tuple[RunningPod, ...] | None:
        """Evict for the job, if the rule chooses victims; return its places, None: it does not fit."""
        if now < self._next_search.get(running.key, 0.0):
            return None
        victims, gave_up, too_early = self._rule.choose(running, self.cluster, now)
        self._next_search[running.key] = now if too_early else now + _RETRY_S
        self.gave_up += gave_up
        if not victims:
            return None
        for victim in victims:
            self._evict(victim, now)
        pods = self.cluster.place(running.job)
        self.evicted += len(victims)
        self.in_vain += len(victims) if pods is None else 0
        return pods

    def _evict(self, victim: RunningJob, now: float) -> None:
        """End the run of a job. It begins again from its last checkpoint when it fits."""
        self.lost_gpu_hours += victim.lost_gpu_hours(now, GRACE_S)
        victim.done += victim.work(now) - victim.unsaved(now)
        self._count_use(victim, now)
        self.cluster.stop(victim)
        victim.since = now
        self._waiting.append(victim)

    def _start(self, running: RunningJob, pods: tuple[RunningPod, ...], now: float) -> None:
        if not running.ever_started:
            running.waited, running.ever_started = now - running.job.arrival, True
        running.started, running.run = now, running.run + 1
        self.cluster.start(running, pods)
        self._order += 1
        heapq.heappush(self._ends, (running.ends_at(), self._order, running.run, running))

    def _count_use(self, running: RunningJob, until: float) -> None:
        self.used_gpu_hours += running.job.all_gpus * (until - running.started) / 3600.0


def _moments(jobs: Sequence[TieredJob]) -> Iterator[tuple[float, list[RunningJob]]]:
    """Yield each tick, and the jobs that arrived since the last one."""
    ordered, at, now = sorted(jobs, key=lambda job: (job.arrival, job.name)), 0, 0.0
    end = ordered[-1].arrival
    while now <= end + TICK_S:
        arriving = []
        while at < len(ordered) and ordered[at].arrival <= now:
            arriving.append(RunningJob(ordered[at]))
            at += 1
        yield now, arriving
        now += TICK_S
