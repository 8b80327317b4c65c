"""Replays, policy by policy."""

from __future__ import annotations

from random import Random

import pytest

from scheduler_core.allocation.gpu_sets import member_places
from scheduler_core.policy.policy import Policy
from scheduler_core.simulation.engine import Moment, SimulatedScheduler, replay_jobs
from scheduler_core.simulation.hosts import Placement, SimulatedCluster
from scheduler_core.simulation.policies import DESCRIPTIONS, POLICIES, PolicyContext, run_policy
from scheduler_core.simulation.workload import JobKind, SimulatedJob, draw_jobs
from tests.scheduler_core.simulation.clusters import MIXED, MIXED_JOBS, QUADS, jobs

POLICY = Policy()


class First:
    """The first node that fits, and its first GPUs."""

    def __init__(self, hosts: SimulatedCluster) -> None:
        self._hosts = hosts
        self.received: list[tuple[str, float]] = []

    def place(self, job: SimulatedJob, now: float) -> Placement | None:
        del now
        for host in self._hosts.all:
            if host.fits(job.kind):
                return Placement(
                    host.number, sum(1 << place for place in list(member_places(host.free))[: job.kind.gpus])
                )
        return None

    def ended(self, job: SimulatedJob, placement: Placement, now: float) -> None:
        del placement
        self.received.append((job.name, now))


def test_pod_that_does_not_fit_waits_and_may_be_passed() -> None:
    hosts = SimulatedCluster(QUADS[:1])
    first = First(hosts)
    conforming: SimulatedScheduler = first
    asked = [
        SimulatedJob("six", JobKind(6), 0.0, 10.0),
        SimulatedJob("five", JobKind(5), 1.0, 5.0),
        SimulatedJob("two", JobKind(2), 2.0, 20.0),
        SimulatedJob("late", JobKind(8), 100.0),
    ]
    seen: list[Moment] = []

    found = replay_jobs(asked, hosts, conforming, seen.append)

    assert [(each.job.name, each.at) for each in found.started] == [
        ("six", 0.0),
        ("two", 2.0),
        ("five", 10.0),
        ("late", 100.0),
    ]
    assert first.received == [("six", 10.0), ("five", 15.0), ("two", 22.0)]
    assert tuple(seen) == found.moments
    assert [(each.submitted, each.allocated, each.waiting) for each in seen] == [
        (6000, 6000, 0),
        (11000, 6000, 1),
        (13000, 8000, 1),
        (21000, 8000, 0),
    ]
    assert found.never == ()


def test_pod_that_is_too_large_waits_for_ever() -> None:
    hosts = SimulatedCluster(QUADS[:1])

    found = replay_jobs(
        [
            SimulatedJob("a", JobKind(9), 0.0),
            SimulatedJob("b", JobKind(1), 1.0, 1.0),
            SimulatedJob("c", JobKind(1), 3.0),
        ],
        hosts,
        First(hosts),
    )

    assert [job.name for job in found.never] == ["a"]


@pytest.mark.parametrize("name", POLICIES, ids=str)
def test_nothing_is_allocated_twice_and_everything_is_released(name: str) -> None:
    """Shares, whole GPUs, CPU-only pods, on two models, with departures."""
    hosts = SimulatedCluster(MIXED)
    random = Random(3)
    asked = [job._replace(duration=random.uniform(1, 40)) for job in draw_jobs(MIXED_JOBS, hosts.capacity, 4.0, random)]
    scheduler = POLICIES[name](PolicyContext(hosts, asked, POLICY, random))

    def watch(_: Moment) -> None:
        for host in hosts.all:
            assert min(*host.free_fractions, host.cpu_milli, host.memory_mib) >= 0

    found = replay_jobs([*asked, SimulatedJob("last", JobKind(), 1e6)], hosts, scheduler, watch)

    assert [job.name for job in found.never] == []
    assert hosts.allocated == 0
    assert all(set(host.free_fractions) == {1000} for host in hosts.all)


@pytest.mark.parametrize("name", POLICIES, ids=str)
def test_same_seed_same_placements(name: str) -> None:
    def placements(seed: int) -> list[tuple[str, Placement]]:
        hosts = SimulatedCluster(QUADS)
        asked = jobs(1)
        scheduler = POLICIES[name](PolicyContext(hosts, asked, POLICY, Random(seed)))
        return [(each.job.name, each.placement) for each in replay_jobs(asked, hosts, scheduler).started]

    assert placements(5) == placements(5)
    assert placements(5) != placements(6)


def test_every_policy_has_a_description() -> None:
    assert DESCRIPTIONS.keys() == POLICIES.keys()


def test_ours_keeps_pods_inside_islands() -> None:
    nodes = [spec._replace(name=f"{spec.name}-{copy}") for spec in QUADS for copy in range(3)]
    asked = jobs(2, 600, load=0.85)
    denser = [job._replace(arrival=job.arrival / 3) for job in asked]
    ours, spread = (run_policy(name, nodes, denser, POLICY, 2) for name in ("ours", "spread"))

    assert ours.island_share is not None
    assert spread.island_share is not None
    assert ours.island_share > 0.92
    assert spread.island_share < 0.9


def test_required_island_is_given() -> None:
    assert run_policy("ours-required", QUADS, jobs(2, 400), POLICY, 2).island_share == 1.0


def test_shared_gpus_are_packed() -> None:
    """Sixteen halves fit on eight GPUs."""
    halves = [SimulatedJob(f"h{number}", JobKind(0, 500), float(number)) for number in range(16)]

    assert run_policy("ours", QUADS[:1], halves, POLICY, 1).allocated == 1.0
    assert run_policy("fgd", QUADS[:1], halves, POLICY, 1).allocated == 1.0
