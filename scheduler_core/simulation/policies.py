"""The policies that a workload can be replayed with, by name, and the replay of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple

from scheduler_core.policy.demand_mix import Demand, DemandMix
from scheduler_core.policy.policy import Policy, WorkloadWeights
from scheduler_core.simulation.baselines.fgd import fgd_rank
from scheduler_core.simulation.baselines.kube import default_mix, least_allocated, most_allocated
from scheduler_core.simulation.baselines.packing import best_fit, dot_product, gpu_packing
from scheduler_core.simulation.baselines.ranked import Rank, RankedScheduler, RatedNode, any_gpu
from scheduler_core.simulation.engine import SimulatedScheduler, replay_jobs
from scheduler_core.simulation.gputopo_policy import GputopoScheduler
from scheduler_core.simulation.hosts import SimulatedCluster, SimulatedHost, SimulatedNode
from scheduler_core.simulation.measures import Figures, FragmentationMeter, compute_figures
from scheduler_core.simulation.workload import JobKind, SimulatedJob

_COVERAGE = 0.95  # of the pods by which FGD judges fragments


class PolicyContext(NamedTuple):
    """What a policy is made for."""

    hosts: SimulatedCluster
    jobs: Sequence[SimulatedJob]  # what kinds of pods come is known; when and in which order is not
    policy: Policy  # ours
    random: Random


class TypicalDemand(NamedTuple):
    """The kinds of pods that make up most of a workload."""

    mix: DemandMix  # those that take GPUs
    cpu_only: float  # share of those that take none


def typical_demand(jobs: Iterable[SimulatedJob], coverage: float = _COVERAGE) -> TypicalDemand:
    """The most frequent kinds, until they make up so much of all."""
    counts: dict[Demand, int] = {}
    for job in jobs:
        want = Demand(job.kind.gpus, job.kind.share, job.kind.cpu_milli, job.kind.products)
        counts[want] = counts.get(want, 0) + 1
    needed = coverage * sum(counts.values())
    kept: dict[Demand, float] = {}
    for want, count in sorted(counts.items(), key=lambda each: (-each[1], each[0][:3], sorted(each[0][3] or ()))):
        if sum(kept.values()) >= needed:
            break
        kept[want] = count
    idle = sum(count for want, count in kept.items() if not want.gpus and not want.share)
    return TypicalDemand(DemandMix(tuple(kept.items())), idle / (sum(kept.values()) or 1.0))


def run_policy(
    name: str,
    specs: Sequence[SimulatedNode],
    jobs: Sequence[SimulatedJob],
    policy: Policy,
    seed: int,
    *,
    as_served: bool = False,
) -> Figures:
    """Replay the jobs on idle nodes with the policy of that name. The same seed gives the same placements.

    ``as_served``: ours judges what is left over by its own mix, not by what the workload asks for.
    """
    hosts = SimulatedCluster(specs)
    mix = typical_demand(jobs).mix
    meter = FragmentationMeter(hosts, mix, max(1, len(jobs) // 100))
    asked = [_with_islands(job, hosts) for job in jobs] if name == "ours-required" else jobs
    ours = policy if as_served else policy._replace(demand_mix=mix)
    setting = PolicyContext(hosts, asked, ours, Random(seed))  # noqa: S311  no secret
    return compute_figures(name, seed, hosts, replay_jobs(asked, hosts, POLICIES[name](setting), meter), meter)


def _with_islands(job: SimulatedJob, hosts: SimulatedCluster) -> SimulatedJob:
    """Requires one island, where some island is large enough."""
    largest = max((island.bit_count() for host in hosts.all for island in host.shape.islands or ()), default=0)
    return job._replace(kind=job.kind._replace(island=1 < job.kind.gpus <= largest))


def _gputopo(setting: PolicyContext) -> SimulatedScheduler:
    return GputopoScheduler(setting.hosts, setting.policy, setting.random)


def _as(kind: str) -> Callable[[PolicyContext], SimulatedScheduler]:
    """Ours, with all pods weighed as pods of that kind are."""

    def scheduler(setting: PolicyContext) -> SimulatedScheduler:
        weights = setting.policy.workload_weights._asdict()[kind]
        return GputopoScheduler(setting.hosts, setting.policy._replace(weights=weights), setting.random)

    return scheduler


def _by(rate: Callable[[JobKind, SimulatedHost], float]) -> Callable[[PolicyContext], SimulatedScheduler]:
    """By scores alone: shares go to any GPU that has room, equals are drawn."""

    def scheduler(setting: PolicyContext) -> SimulatedScheduler:
        def rated(kind: JobKind, host: SimulatedHost) -> RatedNode:
            return RatedNode(rate(kind, host), any_gpu(kind, host, setting.random))

        return RankedScheduler(setting.hosts, rated, setting.random)

    return scheduler


def _packing(rate: Rank) -> Callable[[PolicyContext], SimulatedScheduler]:
    """As "Beware of Fragmentation" ran them: of equal nodes the first in an order drawn once."""
    return lambda setting: RankedScheduler(setting.hosts, rate, setting.random, in_order=True)


def _fgd(setting: PolicyContext) -> SimulatedScheduler:
    return _packing(fgd_rank(*typical_demand(setting.jobs)))(setting)


POLICIES: dict[str, Callable[[PolicyContext], SimulatedScheduler]] = {
    "ours": _gputopo,
    "ours-required": _gputopo,
    **{f"ours-{kind}": _as(kind) for kind in WorkloadWeights._fields},
    "spread": _by(least_allocated),
    "pack": _by(most_allocated),
    "kube-default": _by(default_mix),
    "random": _by(lambda _kind, _host: 0.0),
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
    "random": "any node that has room",
    "best-fit": "least CPU and GPU left",
    "dot-product": "DotProd (Tetris)",
    "gpu-packing": "GPUs in use first",
    "fgd": "fragmentation gradient descent (ATC 2023)",
}
