"""The policies that a workload can be replayed with, by name, and the replay with a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple

from scheduler_core.policy.demand_mix import Demand, DemandMix
from scheduler_core.policy.policy import Policy, WorkloadWeights
from scheduler_core.simulation.baselines.fgd import fgd_rank
from scheduler_core.simulation.baselines.kube import default_mix, least_allocated, most_allocated
from scheduler_core.simulation.baselines.packing import best_fit, dot_product, gpu_packing
from scheduler_core.simulation.baselines.ranked import RankedScheduler, Rate, RatedNode, any_gpu
from scheduler_core.simulation.engine import Moment, SimulatedScheduler, replay_jobs
from scheduler_core.simulation.gputopo_policy import GputopoScheduler
from scheduler_core.simulation.hosts import SimulatedCluster, SimulatedHost, SimulatedNode
from scheduler_core.simulation.measures import Figures, FragmentationMeter, compute_figures
from scheduler_core.simulation.workload import JobKind, SimulatedJob

_COVERAGE = 0.95  # share of pods by which FGD measures fragments


class PolicyContext(NamedTuple):
    """The arguments that a policy is created with."""

    hosts: SimulatedCluster
    jobs: Sequence[SimulatedJob]  # a policy may use the kinds of jobs, but not their times and order
    policy: Policy  # of gputopo
    random: Random


class TypicalDemand(NamedTuple):
    """The kinds of pods that make up most of a workload."""

    mix: DemandMix  # the kinds with GPUs
    cpu_only: float  # share of the kinds without GPUs


def typical_demand(jobs: Iterable[SimulatedJob]) -> TypicalDemand:
    """Return the most frequent kinds that together cover most of the jobs."""
    counts: dict[Demand, int] = {}
    for job in jobs:
        demand = Demand(job.kind.gpus, job.kind.share, job.kind.cpu_milli, job.kind.products)
        counts[demand] = counts.get(demand, 0) + 1
    needed = _COVERAGE * sum(counts.values())
    kept: dict[Demand, float] = {}
    for demand, count in sorted(counts.items(), key=lambda each: (-each[1], each[0][:3], sorted(each[0][3] or ()))):
        if sum(kept.values()) >= needed:
            break
        kept[demand] = count
    idle = sum(count for demand, count in kept.items() if not demand.gpus and not demand.share)
    return TypicalDemand(DemandMix(tuple(kept.items())), idle / (sum(kept.values()) or 1.0))


class PolicyRun(NamedTuple):
    """One run of a workload with a policy. The same seed gives the same placements."""

    name: str  # of ``POLICIES``
    seed: int
    policy: Policy = Policy()  # of gputopo
    as_served: bool = False  # gputopo measures fragments by its own demand mix instead of the mix of the workload


def run_policy(
    name: str, specs: Sequence[SimulatedNode], jobs: Sequence[SimulatedJob], policy: Policy, seed: int
) -> Figures:
    """Replay the jobs on idle nodes with the named policy. The same seed gives the same placements."""
    return replay_workload(PolicyRun(name, seed, policy), specs, jobs)


def replay_workload(
    run: PolicyRun,
    specs: Sequence[SimulatedNode],
    jobs: Sequence[SimulatedJob],
    advance: Callable[[], None] = lambda: None,
) -> Figures:
    """Replay the jobs on idle nodes. ``advance`` is called after each job."""
    hosts = SimulatedCluster(specs)
    mix = typical_demand(jobs).mix
    meter = FragmentationMeter(hosts, mix, max(1, len(jobs) // 100))
    replayed = [_with_islands(job, hosts) for job in jobs] if run.name == "ours-required" else jobs
    ours = run.policy if run.as_served else run.policy._replace(demand_mix=mix)
    context = PolicyContext(hosts, replayed, ours, Random(run.seed))  # noqa: S311  not a secret

    def watch(moment: Moment) -> None:
        meter(moment)
        advance()

    result = replay_jobs(replayed, hosts, POLICIES[run.name](context), watch)
    return compute_figures(run.name, run.seed, hosts, result, meter)


def _with_islands(job: SimulatedJob, hosts: SimulatedCluster) -> SimulatedJob:
    """Let the job require one island, if some island is large enough."""
    largest = max((island.bit_count() for host in hosts.all for island in host.shape.islands or ()), default=0)
    return job._replace(kind=job.kind._replace(island=1 < job.kind.gpus <= largest))


def _gputopo(context: PolicyContext) -> SimulatedScheduler:
    return GputopoScheduler(context.hosts, context.policy, context.random)


def _with_weights_of(kind: str) -> Callable[[PolicyContext], SimulatedScheduler]:
    """Return gputopo's policy with the weights of this workload class for all pods."""

    def scheduler(context: PolicyContext) -> SimulatedScheduler:
        weights = context.policy.workload_weights._asdict()[kind]
        return GputopoScheduler(context.hosts, context.policy._replace(weights=weights), context.random)

    return scheduler


def _by_score(rate: Callable[[JobKind, SimulatedHost], float]) -> Callable[[PolicyContext], SimulatedScheduler]:
    """Return a policy by node scores only: shares go to any GPU with enough capacity, ties are broken at random."""

    def scheduler(context: PolicyContext) -> SimulatedScheduler:
        def rated(kind: JobKind, host: SimulatedHost) -> RatedNode:
            return RatedNode(rate(kind, host), any_gpu(kind, host, context.random))

        return RankedScheduler(context.hosts, rated, context.random)

    return scheduler


def _packing(rate: Rate) -> Callable[[PolicyContext], SimulatedScheduler]:
    """Return a policy as "Beware of Fragmentation" ran it: of equal nodes the first in a fixed random order."""
    return lambda context: RankedScheduler(context.hosts, rate, context.random, in_order=True)


def _fgd(context: PolicyContext) -> SimulatedScheduler:
    return _packing(fgd_rank(*typical_demand(context.jobs)))(context)


POLICIES: dict[str, Callable[[PolicyContext], SimulatedScheduler]] = {
    "ours": _gputopo,
    "ours-required": _gputopo,
    **{f"ours-{kind}": _with_weights_of(kind) for kind in WorkloadWeights._fields},
    "spread": _by_score(least_allocated),
    "pack": _by_score(most_allocated),
    "kube-default": _by_score(default_mix),
    "random": _by_score(lambda _kind, _host: 0.0),
    "best-fit": _packing(best_fit),
    "dot-product": _packing(dot_product),
    "gpu-packing": _packing(gpu_packing),
    "fgd": _fgd,
}
DESCRIPTIONS = {
    "ours": "gputopo, shapes preferred",
    "ours-required": "gputopo, pods of several GPUs require one island and wait for it",
    **{f"ours-{kind}": f"gputopo, all pods weighed as {kind}" for kind in WorkloadWeights._fields},
    "spread": "kube-scheduler, LeastAllocated",
    "pack": "kube-scheduler, MostAllocated",
    "kube-default": "kube-scheduler as it comes",
    "random": "any node that fits",
    "best-fit": "least CPU and GPU left",
    "dot-product": "DotProd (Tetris)",
    "gpu-packing": "GPUs in use first",
    "fgd": "fragmentation gradient descent (ATC 2023)",
}
