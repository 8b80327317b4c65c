"""The quality of a policy's placements: figures of one replay. Pure.

allocated     share of the GPU capacity in use (a share of a GPU counts as a fraction), after the last arrival;
              ``mean_allocated``: over the second half of the arrivals, because the cluster is empty before the first
fragments     free GPUs that are fragments, as a share of all GPUs: by FGD's definition (the node serves a request),
              and by islands (a free GPU is a fragment for n GPUs if its island has fewer than n free GPUs)
island_share  share of pods inside one island, of pods with several GPUs for which some island is large enough
bandwidth     ring bandwidth of a pod with several GPUs, as a share of the best ring of as many GPUs on any suitable
              node of the cluster; PCIe counts as 0 if NVLink was possible
wait          seconds until a pod got its GPUs

Nodes with unknown NVLinks do not count in ``island_share``, and nodes with unknown NVLinks or an unknown NVLink
bandwidth do not count in ``bandwidth``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from gputopo.paths import PathKind
from gputopo.rings import Ring, rings_of
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.evaluation.score_fragmentation import fragmented_gpus
from scheduler_core.policy.demand_mix import WHOLE_GPU, DemandMix, FreeCapacity
from scheduler_core.simulation.assumed_facts import MissingFact
from scheduler_core.simulation.engine import Moment, ReplayResult, Started
from scheduler_core.simulation.hosts import SimulatedCluster, SimulatedHost

_ISLAND_FACTS = frozenset({MissingFact.NVLINKS})
_BANDWIDTH_FACTS = frozenset({MissingFact.NVLINKS, MissingFact.BANDWIDTH})


class CoursePoint(NamedTuple):
    """The cluster at a moment; all values are shares of its GPU capacity."""

    submitted: float
    allocated: float
    fragments: float  # FGD's
    island_fragments: float


class Figures(NamedTuple):
    """The figures of a replay."""

    policy: str
    seed: int
    allocated: float  # at the end
    mean_allocated: float  # over the second half of the arrivals
    fragments: float  # at the end
    island_fragments: float
    island_share: float | None  # None: no island was large enough for any pod, or unknown
    bandwidth: float | None  # mean; None: no pod of several GPUs, or unknown
    mean_wait_s: float
    p99_wait_s: float
    never: int  # pods that did not get GPUs
    latency_ms: float  # of a decision, median
    p99_latency_ms: float
    course: tuple[CoursePoint, ...] = ()
    bandwidths: tuple[float, ...] = ()  # ascending
    unknown: tuple[str, ...] = ()  # figures that the missing facts of the nodes leave unknown


class FragmentationMeter:
    """Measures fragments while a replay runs; measures only changed nodes again."""

    def __init__(self, hosts: SimulatedCluster, mix: DemandMix, points: int = 100) -> None:
        self._hosts = hosts
        self._mix = mix
        self._by_host = [(0.0, 0.0)] * len(hosts.all)
        self._sums = [0.0, 0.0]
        self._mark = 0
        self._every = points
        self._arrivals = 0
        self.course: list[CoursePoint] = []
        for host in hosts.all:
            self._measure_host(host)

    def __call__(self, moment: Moment) -> None:
        """Record a point after every ``points`` arrivals."""
        self._arrivals += 1
        if self._arrivals % self._every == 0:
            self.course.append(self.point(moment))

    def point(self, moment: Moment) -> CoursePoint:
        """Return the state of the cluster now."""
        for number in set(self._hosts.changed[self._mark :]):
            self._measure_host(self._hosts.all[number])
        self._mark = len(self._hosts.changed)
        capacity = self._hosts.capacity
        by_node, by_island = (max(0.0, each) * WHOLE_GPU / capacity for each in self._sums)
        return CoursePoint(moment.submitted / capacity, moment.allocated / capacity, by_node, by_island)

    def _measure_host(self, host: SimulatedHost) -> None:
        now = (
            self._mix.fragmented_gpus(
                FreeCapacity((tuple(sorted(host.free_fractions)),), host.product, host.cpu_milli)
            ),
            fragmented_gpus(host.shape, tuple(host.free_fractions), self._mix),
        )
        old = self._by_host[host.number]
        self._by_host[host.number] = now
        self._sums = [total + new - before for total, new, before in zip(self._sums, now, old, strict=True)]


def compute_figures(
    policy: str, seed: int, hosts: SimulatedCluster, replayed: ReplayResult, meter: FragmentationMeter
) -> Figures:
    """Compute the figures of a replay."""
    last = meter.point(replayed.moments[-1])
    half = replayed.moments[len(replayed.moments) // 2 :]
    waits = sorted(each.at - each.job.arrival for each in replayed.started if each.job.kind.demand)
    latencies = sorted(each.latency_s for each in replayed.started if each.job.kind.demand)
    multi_gpu = [each for each in replayed.started if each.job.kind.gpus > 1]
    with_islands, with_bandwidth = (
        [each for each in multi_gpu if not hosts.all[each.placement.host].spec.missing & facts]
        for facts in (_ISLAND_FACTS, _BANDWIDTH_FACTS)
    )
    shares = tuple(sorted(_bandwidth(each, hosts) for each in with_bandwidth))
    counted = {"island_share": with_islands, "bandwidth": with_bandwidth}
    return Figures(
        policy=policy,
        seed=seed,
        allocated=last.allocated,
        mean_allocated=_mean([each.allocated / hosts.capacity for each in half]),
        fragments=last.fragments,
        island_fragments=last.island_fragments,
        island_share=_island_share(with_islands, hosts),
        bandwidth=_mean(shares) if shares else None,
        mean_wait_s=_mean(waits),
        p99_wait_s=_at(waits, 0.99),
        never=sum(bool(job.kind.demand) for job in replayed.never),
        latency_ms=1000 * _at(latencies, 0.5),
        p99_latency_ms=1000 * _at(latencies, 0.99),
        course=(*meter.course, last),
        bandwidths=shares,
        unknown=tuple(figure for figure, pods in counted.items() if multi_gpu and not pods),
    )


def _island_share(pods: Iterable[Started], hosts: SimulatedCluster) -> float | None:
    possible = [each for each in pods if _largest_island(each.job.kind.products, hosts) >= each.job.kind.gpus]
    inside = sum(bool(hosts.all[each.placement.host].shape.is_one_island(each.placement.gpus)) for each in possible)
    return inside / len(possible) if possible else None


def _largest_island(products: frozenset[str] | None, hosts: SimulatedCluster) -> int:
    return max((_largest(shape) for shape in _shapes(products, hosts, _ISLAND_FACTS)), default=0)


def _bandwidth(started: Started, hosts: SimulatedCluster) -> float:
    kind = started.job.kind
    best = max(_rate(_best_ring(shape, kind.gpus)) for shape in _shapes(kind.products, hosts, _BANDWIDTH_FACTS))
    got = _rate(hosts.all[started.placement.host].shape.ring(started.placement.gpus))
    return got / best if best else 1.0


@lru_cache(maxsize=256)
def _shapes(
    products: frozenset[str] | None, hosts: SimulatedCluster, facts: frozenset[MissingFact]
) -> frozenset[MachineShape]:
    """Return the shapes of the nodes with these products that lack none of the facts."""
    suitable = (host for host in hosts.all if products is None or host.product in products)
    return frozenset(host.shape for host in suitable if not host.spec.missing & facts)


@lru_cache(maxsize=256)
def _largest(shape: MachineShape) -> int:
    return max((island.bit_count() for island in shape.islands or ()), default=0)


@lru_cache(maxsize=1024)
def _best_ring(shape: MachineShape, size: int) -> Ring | None:
    return rings_of(shape.topology).best_ring(size)


def _rate(ring: Ring | None) -> float:
    """Return GB/s over NVLink, else 0."""
    return 0.0 if ring is None or ring.kind in (PathKind.PCIE, PathKind.UNKNOWN) else ring.gbps or 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _at(ascending: Sequence[float], quantile: float) -> float:
    return ascending[min(len(ascending) - 1, int(quantile * len(ascending)))] if ascending else 0.0
