"""Predictions of admissions, compared with the simulated kubelet.

The whole campaign: ``python -m tests.scheduler_core.allocation.admission_campaign``.

Every policy, scope and option of the Topology Manager, with and without exclusive CPUs and pinned memory, on real and
random machines, with random free GPUs and pods. The simulated kubelet (``tests.simulated_node``) states the rules
independently; each admission is repeated with many orders of the GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from random import Random
from typing import NamedTuple

from gputopo.model import Gpu, Link, NodeTopology, Nvlink, PcieDistance
from scheduler_core.allocation.admission import predict_sets
from scheduler_core.allocation.device_plugin import Prediction
from scheduler_core.allocation.gpu_sets import ExactSets, member_places
from scheduler_core.allocation.machine_shape import shape_of
from scheduler_core.allocation.numa_alignment import (
    UNKNOWN_KUBELET,
    KubeletModel,
    NumaCapacity,
    pod_steps,
    possible_alignments,
)
from scheduler_core.allocation.numa_alignment import NumaPolicy as ModelledPolicy
from scheduler_core.request.device_request import ContainerStep
from tests.machines import MACHINES
from tests.scheduler_core.allocation.random_graphs import best_effort_resource
from tests.simulated_node.kubelet import Container, Device, DeviceManager, Pod
from tests.simulated_node.preferred import Scores, pair_scores
from tests.simulated_node.topology_manager import Numa, NumaPolicy, TopologyConfig

GPU = "nvidia.com/gpu"
REAL = ("hgx_h100", "dgx1", "a100_bridged", "a100_mesh", "rtx4090", "ac922", "a6000_pair_and_one", "a40x10")
CONFIGS = [
    (policy, pod_scope, closest)
    for policy, pod_scope, closest in product(NumaPolicy, (False, True), (False, True))
    if policy is not NumaPolicy.NONE or not (pod_scope or closest)
]


class Case(NamedTuple):
    """One admission."""

    topology: NodeTopology
    config: TopologyConfig
    taken: tuple[int, ...]  # places of GPUs of other pods
    others: tuple[Container, ...]  # pods without GPUs that hold CPUs and memory
    steps: tuple[ContainerStep, ...]


class Tally(NamedTuple):
    """The results of many cases."""

    cases: int = 0
    admissions: int = 0
    wrong: tuple[str, ...] = ()  # an outcome, or a rejection, that was not predicted
    crashes: int = 0  # of the plugin, predicted as possible
    refused: int = 0  # cases whose rejection was predicted
    uncertain: int = 0  # cases that the kubelet rejects although outcomes were predicted, or CPUs were unknown
    predicted: int = 0  # sets, over all cases with outcomes
    seen: int = 0  # of them, that came about


def check_case(case: Case, seeds: range) -> Tally:
    """Admit the pod once per seed; compare with the prediction of a known and of an unknown configuration."""
    shape, free = shape_of(case.topology), _free(case)
    known = predict_sets(shape, ExactSets((free,)), case.steps, _model(case))
    unknown = predict_sets(shape, ExactSets((free,)), case.steps, UNKNOWN_KUBELET)
    outcomes, wrong, crashes, rejected = set[int](), [], 0, 0
    for seed in seeds:
        manager = _kubelet(case, Random(seed))
        rejection = manager.admit(_pod("pod", case.steps))
        if rejection is None:
            outcome = sum(1 << _place(case, device) for device in manager.devices_of("pod"))
            outcomes.add(outcome)
            wrong += [
                f"seed {seed}: {outcome:b} is not predicted {label}"
                for label, found in (("", known), ("for any policy", unknown))
                if not contains(found, outcome)
            ]
        elif "rpc failed" in rejection.message:
            crashes += 1
            wrong += [] if known.may_crash else [f"seed {seed}: crash"]
        else:
            rejected += 1
    foreseen = isinstance(known.sets, ExactSets) and not known.sets.masks
    sets = known.sets.masks if isinstance(known.sets, ExactSets) and outcomes else ()
    return Tally(
        1,
        len(outcomes),
        tuple(f"{error} in {case}" for error in wrong),
        crashes,
        foreseen,
        bool(rejected and not foreseen),
        len(sets),
        len(outcomes) if sets else 0,
    )


def contains(found: Prediction, outcome: int) -> bool:
    """Return whether the set was predicted."""
    if isinstance(found.sets, ExactSets):
        return outcome in found.sets.masks
    return not outcome & ~found.sets.among


def cases(machines: int, per_config: int, seed: int = 0) -> Iterator[Case]:
    """Yield cases: machines x configurations x ``per_config``."""
    random = Random(seed)
    topologies = [MACHINES[name]() for name in REAL]
    while len(topologies) < machines:
        topologies.append(random_machine(random))
    for topology in topologies[:machines]:
        for policy, pod_scope, closest in CONFIGS:
            for _ in range(per_config):
                case = _random_case(random, topology, policy, pod_scope=pod_scope, closest=closest)
                while not _is_bound(case):
                    case = _random_case(random, topology, policy, pod_scope=pod_scope, closest=closest)
                yield case


def random_machine(random: Random) -> NodeTopology:
    """Return a machine with any PCIe tree, links, and one to four NUMA nodes; some links have uneven ends."""
    size, nodes = random.randint(2, 6), random.choice((1, 2, 2, 3, 4))
    ids = random.sample(range(8), nodes)
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    distance = {pair: random.choice(list(PcieDistance)) for pair in pairs}
    lanes = {pair: random.choice((0, 0, 1, 2, 4)) for pair in pairs}
    links = [
        Link(a=a, b=b, lanes=count, expected_lanes=count + 1 if random.random() < 0.1 else None)
        for (a, b), count in lanes.items()
        if count
    ]
    if links and random.random() < 0.1:
        links[0] = Link(a=links[0].a, b=links[0].b, lanes=0, expected_lanes=1, one_sided=True)
    return NodeTopology(
        gpus=tuple(Gpu(index=each, uuid=f"GPU-{each}", numa_node=random.choice(ids)) for each in range(size)),
        nvlink=Nvlink(links=tuple(links)),
        pcie=tuple(tuple(None if a == b else distance[min(a, b), max(a, b)] for b in range(size)) for a in range(size)),
    )


def _random_case(random: Random, topology: NodeTopology, policy: NumaPolicy, *, pod_scope: bool, closest: bool) -> Case:
    size = len(topology.gpus)
    ids = sorted({gpu.numa_node for gpu in topology.gpus if gpu.numa_node is not None})
    cpus, memory = random.random() < 0.3, random.random() < 0.2
    numa = tuple(
        Numa(node, 8, 1, 100, tuple(10 if node == other else random.choice((12, 20, 32)) for other in range(256)))
        for node in ids or [0]
    )
    taken = tuple(random.sample(range(size), random.randint(0, size - 1)))
    busy = [
        Container(f"other-{number}", {}, cpus=random.randint(1, 6), memory=random.choice((0, 30, 120)))
        for number in range(random.randint(0, 2))
    ]
    return Case(
        topology,
        TopologyConfig(policy, pod_scope, closest, numa, cpus, memory),
        taken,
        tuple(busy) if cpus or memory else (),
        tuple(_random_steps(random, size - len(taken), cpus=cpus, memory=memory)),
    )


def _random_steps(random: Random, free: int, *, cpus: bool, memory: bool) -> Iterator[ContainerStep]:
    count = random.choice((1, 1, 1, 2, 3))
    inits = 0 if count == 1 or memory else random.randint(0, count - 1)
    for number in range(count):
        devices = random.randint(1, max(1, free if count == 1 else free // 2 + 1))
        stays = number >= inits or random.random() < 0.2
        yield ContainerStep(devices, stays, random.choice((0, 2, 5, 9)) * cpus, random.choice((0, 40, 90)) * memory)


def _is_bound(case: Case) -> bool:
    """Return whether kube-scheduler binds the pod: all CPUs and memory that it requests at once are free."""
    config, requested = case.config, pod_steps(case.steps)
    cpus = sum(node.cpus - node.reserved_cpus for node in config.nodes) - sum(each.cpus for each in case.others)
    memory = sum(node.memory for node in config.nodes) - sum(each.memory for each in case.others)
    return (not config.static_cpus or requested.cpus <= cpus) and (
        not config.static_memory or requested.memory <= memory
    )


def _free(case: Case) -> int:
    return ((1 << len(case.topology.gpus)) - 1) & ~sum(1 << place for place in case.taken)


def _model(case: Case) -> KubeletModel:
    config, manager = case.config, _kubelet(case, Random(0))
    held = manager.memory.free()
    nodes = tuple(
        NumaCapacity(
            node.id,
            node.cpus,
            sum(cpu[0] == node.id for cpu in manager.cpus.free),
            node.memory,
            held[node.id],
            member_places(manager.memory.group(node.id)),
        )
        for node in config.nodes
    )
    exact = not case.others or config.policy is not NumaPolicy.NONE
    return KubeletModel(
        possible_alignments(
            ModelledPolicy(config.policy.value),
            pod_scope=config.pod_scope,
            closest=config.prefer_closest,
            by_socket=False,
        ),
        config.static_cpus,
        config.static_memory,
        nodes if exact else None,
    )


def _kubelet(case: Case, random: Random) -> DeviceManager:
    """Return the kubelet after the other pods were admitted, always with the same result."""
    devices = {
        place: Device(gpu.uuid or f"GPU-{place}", gpu.index, gpu.numa_node)
        for place, gpu in enumerate(case.topology.gpus)
    }
    free = [devices[place] for place in devices if place not in case.taken]
    scores = _directed_scores(case.topology, random)
    manager = DeviceManager({GPU: best_effort_resource(tuple(devices.values()), scores)}, Random(1), case.config)
    manager.set_unhealthy([device.id for device in devices.values() if device not in free])
    for other in case.others:
        manager.admit(Pod(other.name, "team", other.name, (other,)))
    manager.reseed(random)
    return manager


def _directed_scores(topology: NodeTopology, random: Random) -> Scores:
    """Return points by (GPU offered first, GPU offered second): where the ends of a link disagree, one reads more."""
    scores: dict[tuple[int, int], int | None] = {}
    for (a, b), points in pair_scores(topology).items():
        scores[a, b] = scores[b, a] = points
    for link in () if topology.nvlink is None else topology.nvlink.links:
        if link.lanes and link.short:
            end = random.choice([(link.a, link.b), (link.b, link.a)])
            scores[end] = (scores[end] or 0) + 100 * ((link.expected_lanes or 0) - link.lanes)
    return scores


def _place(case: Case, device: Device) -> int:
    return next(place for place, gpu in enumerate(case.topology.gpus) if gpu.index == device.gpu)


def _pod(uid: str, steps: tuple[ContainerStep, ...]) -> Pod:
    return Pod(
        uid,
        "team",
        uid,
        tuple(
            Container(
                f"c{at}",
                {GPU: step.devices} if step.devices else {},
                init=not step.holds_until_end,
                cpus=step.cpus,
                memory=step.memory,
            )
            for at, step in enumerate(steps)
        ),
    )


def total(tallies: Iterator[Tally]) -> Tally:
    """Return the sum."""
    found = Tally()
    for each in tallies:
        found = Tally(*(one + other for one, other in zip(found, each, strict=True)))  # type: ignore[operator]
    return found


def main() -> None:
    """Print the figures of the whole campaign."""
    machines, per_config, seeds = (int(each) for each in sys.argv[1:] or ("60", "60", "40"))
    found = total(check_case(case, range(seeds)) for case in cases(machines, per_config))
    for error in found.wrong[:5]:
        print(error)
    print(found._replace(wrong=()), "wrong, not reported:", len(found.wrong))


if __name__ == "__main__":
    main()
