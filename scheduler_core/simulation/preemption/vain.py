"""Evictions in vain: random full clusters, one urgent job each, and what every rule evicts for it."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from scheduler_core.policy.preemption import CRITICAL_PRIORITY
from scheduler_core.policy.workload_class import WorkloadClass
from scheduler_core.simulation.assumed_machines import islands, nvswitch
from scheduler_core.simulation.hosts import SimulatedNode
from scheduler_core.simulation.preemption.jobs import TieredJob
from scheduler_core.simulation.preemption.replay import RULES
from scheduler_core.simulation.preemption.running import RunningCluster, RunningJob

_NOW = 86_400.0
_MACHINES = (islands("A100", (4, 4)), islands("A40", (2, 2, 2, 2)), islands("V100", (4, 4), 2), nvswitch("H100", 8))
_FILL = 64  # jobs that are tried to fill a cluster


class VainCount(NamedTuple):
    """The results of a rule on all clusters."""

    clusters: int  # in which the urgent job did not fit at first
    evicted: int  # jobs
    in_vain: int  # of these: the urgent job did not start
    started: int  # urgent jobs that started


def count_vain_evictions(name: str, seeds: Iterable[int]) -> VainCount:
    """Return the count of a rule over random clusters. The same seeds give the same clusters to every rule."""
    clusters = evicted = in_vain = started = 0
    for seed in seeds:
        cluster, urgent = random_case(seed)
        if cluster.place(urgent.job) is not None:
            continue
        clusters += 1
        victims = RULES[name]().choose(urgent, cluster, _NOW).victims
        for victim in victims:
            cluster.stop(victim)
        fits = bool(victims) and cluster.place(urgent.job) is not None
        evicted += len(victims)
        in_vain += 0 if fits else len(victims)
        started += fits
    return VainCount(clusters, evicted, in_vain, started)


def random_case(seed: int) -> tuple[RunningCluster, RunningJob]:
    """Return a full cluster of 2 to 6 nodes, and a critical job that requires an island."""
    random = Random(seed)  # noqa: S311  not a secret
    specs = [SimulatedNode(f"n{at}", random.choice(_MACHINES)) for at in range(random.randint(2, 6))]
    cluster = RunningCluster(specs, random)
    for number in range(_FILL):
        workload = random.choice((WorkloadClass.SCAVENGER, WorkloadClass.TRAINING, WorkloadClass.INFERENCE))
        pods, gpus = random.choice((1, 1, 1, 2)), random.choice((1, 1, 2, 2, 4))
        saves = random.choice((900.0, None))
        job = TieredJob(
            f"job-{number}", pods, gpus, 0.0, 10 * _NOW, random.choice((-10, 0, 50)), workload, False, saves
        )
        running = RunningJob(job)
        running.started, running.run = _NOW - random.uniform(60.0, 20_000.0), 1
        if (places := cluster.place(job)) is not None:
            cluster.start(running, places)
    urgent = TieredJob(
        "urgent",
        random.choice((1, 1, 2)),
        random.choice((2, 4, 4)),
        0.0,
        3_600.0,
        CRITICAL_PRIORITY,
        WorkloadClass.TRAINING,
        island=True,
    )
    return cluster, RunningJob(urgent)
