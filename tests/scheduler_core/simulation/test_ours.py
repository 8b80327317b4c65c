"""The simulator decides as the extender does: the same pods, one by one, asked of both."""

from __future__ import annotations

from random import Random

from scheduler_core.extender import Extender
from scheduler_core.knowledge import Knowledge
from scheduler_core.nodes import read_occupant
from scheduler_core.policy import Policy
from scheduler_core.sightings import Batch, GpusSeen, NodeSeen, PodSeen
from scheduler_core.simulation.engine import replay
from scheduler_core.simulation.hosts import Hosts
from scheduler_core.simulation.ours import Ours, machine_of, pod_of
from tests.scheduler_core.simulation.clusters import QUADS, jobs

POLICY = Policy(stale_after_s=float("inf"))


def test_placements_equal_those_of_an_extender_that_is_told_the_same() -> None:
    hosts, asked = Hosts(QUADS), [job._replace(duration=float("inf")) for job in jobs(4, 40)]
    ours = Ours(hosts, POLICY, Random(4))
    started = replay(asked, hosts, ours).started
    fresh = Hosts(QUADS)
    knowledge = Knowledge(POLICY)
    extender = Extender(knowledge, POLICY, lambda: 1_800_000_000.0, lambda _: None)
    shown = tuple(NodeSeen(host.spec.name, machine_of(host)) for host in fresh.all)
    knowledge.take(Batch(NodeSeen, shown, complete=True), 0.0)
    knowledge.take(Batch(PodSeen, (), complete=True), 0.0)
    knowledge.take(Batch(GpusSeen, tuple(ours.word(number) for number in ()), complete=True), 0.0)
    told = Ours(fresh, POLICY, Random(0))

    for each in started:
        names = {host.spec.name for host in fresh.all if host.fits(each.job.kind)}
        pod = pod_of(each.job)
        knowledge.take(Batch(GpusSeen, tuple(told.word(host.number) for host in fresh.all)), 1_800_000_000.0)
        answered = extender.filter(pod, names).nodes
        assert fresh.all[each.placement.host].spec.name in answered
        fresh.give(each.job.kind, each.placement)
        told.held[each.placement.host][each.job.name] = each.placement.gpus
        occupant = read_occupant(pod)
        assert occupant is not None
        node = fresh.all[each.placement.host].spec.name
        knowledge.take(
            Batch(PodSeen, (PodSeen(each.job.name, occupant._replace(admitted=True), node),)), 1_800_000_000.0
        )
    assert len(started) > 20
