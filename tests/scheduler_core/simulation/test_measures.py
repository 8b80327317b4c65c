"""Figures of replays, by hand."""

from __future__ import annotations

import pytest

from scheduler_core.policy.demand_mix import Demand, DemandMix
from scheduler_core.simulation.assumed_machines import islands, machine_of
from scheduler_core.simulation.engine import Moment, ReplayResult, Started
from scheduler_core.simulation.hosts import Placement, SimulatedCluster, SimulatedNode
from scheduler_core.simulation.measures import FragmentationMeter, compute_figures
from scheduler_core.simulation.workload import JobKind, SimulatedJob

PAIRS = DemandMix(((Demand(2), 1.0),))


def _started(hosts: SimulatedCluster, *placed: tuple[int, int], wait: float = 0.0) -> ReplayResult:
    """Jobs by node and set of GPUs."""
    started = []
    for number, (host, gpus) in enumerate(placed):
        job = SimulatedJob(f"j{number}", JobKind(gpus.bit_count()), float(number))
        placement = Placement(host, gpus)
        hosts.start_pod(job.kind, placement)
        started.append(Started(job, placement, job.arrival + wait, 0.001 * (number + 1)))
    return ReplayResult(tuple(started), (Moment(9.0, 16_000, hosts.allocated, 0),), (SimulatedJob("late", JobKind(1)),))


def test_figures() -> None:
    """Two nodes of 2 + 2 GPUs. One pair inside an island, one across, one single GPU; three jobs of four are placed.

    Free: GPU 0 and 3 of the second node, in two islands: for a pair all of it is a fragment by islands, nothing by
    the node; and one GPU of the first node, which is a fragment in any case.
    """
    hosts = SimulatedCluster([SimulatedNode(f"n{number}", islands("X", (2, 2))) for number in range(2)])
    meter = FragmentationMeter(hosts, PAIRS, points=1)
    replayed = _started(hosts, (0, 0b0011), (1, 0b0110), (0, 0b0100), wait=2.0)
    meter(replayed.moments[0])

    found = compute_figures("mine", 7, hosts, replayed, meter)

    assert (found.policy, found.seed, found.never) == ("mine", 7, 1)
    assert found.allocated == found.mean_allocated == 5 / 8
    assert found.fragments == 1 / 8
    assert found.island_fragments == (1 + 2) / 8
    assert found.island_share == 1 / 2
    assert found.bandwidths == (0.0, 1.0)
    assert found.bandwidth == 0.5
    assert (found.mean_wait_s, found.p99_wait_s) == (2.0, 2.0)
    assert (found.latency_ms, found.p99_latency_ms) == (2.0, 3.0)
    assert [point.allocated for point in found.course] == [5 / 8, 5 / 8]


def test_without_islands_there_is_no_island_share() -> None:
    hosts = SimulatedCluster([SimulatedNode("n", machine_of("T4", 2))])
    found = compute_figures("mine", 1, hosts, _started(hosts, (0, 0b11)), FragmentationMeter(hosts, PAIRS))

    assert found.island_share is None
    assert found.bandwidth == 1.0  # there is nothing better


def test_island_share_depends_on_the_accepted_products() -> None:
    hosts = SimulatedCluster([SimulatedNode("a", machine_of("T4", 2)), SimulatedNode("b", machine_of("G2", 8))])
    job = SimulatedJob("j", JobKind(2, products=frozenset({"T4"})))
    hosts.start_pod(job.kind, Placement(0, 0b11))
    replayed = ReplayResult((Started(job, Placement(0, 0b11), 0.0, 0.0),), (Moment(0.0, 2000, 2000, 0),), ())

    assert compute_figures("mine", 1, hosts, replayed, FragmentationMeter(hosts, PAIRS)).island_share is None


def test_no_pod_of_several_gpus() -> None:
    hosts = SimulatedCluster([SimulatedNode("n", machine_of("T4", 2))])
    found = compute_figures(
        "mine", 1, hosts, ReplayResult((), (Moment(0.0, 0, 0, 0),), ()), FragmentationMeter(hosts, PAIRS)
    )

    assert (found.bandwidth, found.mean_wait_s, found.latency_ms) == (None, 0.0, 0.0)


@pytest.mark.parametrize(
    ("model", "gpus", "largest"),
    [("G2", 8, 4), ("G3", 8, 8), ("V100M16", 8, 8), ("V100M32", 4, 4), ("V100M16", 1, 1), ("T4", 2, 1), ("G2", 4, 1)],
)
def test_assumed_machines(model: str, gpus: int, largest: int) -> None:
    (host,) = SimulatedCluster([SimulatedNode("n", machine_of(model, gpus))]).all

    assert host.gpus == gpus
    assert max(island.bit_count() for island in host.shape.islands or ()) == largest
