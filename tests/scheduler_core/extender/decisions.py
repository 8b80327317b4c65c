"""Decisions of an extender, as it records them."""

from __future__ import annotations

from typing import Any

from scheduler_core.cache.cluster_cache import Knowledge
from scheduler_core.cache.events import Batch, GpusSeen, NodeSeen, PodSeen
from scheduler_core.cache.node import read_node
from scheduler_core.extender.extender import Extender, Record
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, node, occupant, pod, word

SHAPES = ("hgx_h100", "dgx1", "a100_mesh", "rtx4090")


NAMES = tuple(f"n{number}" for number in range(8))


ANY_GOOD_NODE = Policy(tolerance=10.0)  # so that plain pods are in doubt on several


def decided(*pods: Any, names: frozenset[str] = frozenset(NAMES), policy: Policy = ANY_GOOD_NODE) -> list[Record]:
    """What an extender records of pods that are asked about one after the other, on eight nodes in use."""
    knowledge, records = Knowledge(policy), list[Record]()
    topologies = [MACHINES[SHAPES[number % 4]]() for number in range(8)]
    nodes = [NodeSeen(name, read_node(node(each))) for name, each in zip(NAMES, topologies, strict=True)]
    held = [
        PodSeen(f"uid-h{number}", occupant(f"h{number}", 1 + number % 3), name) for number, name in enumerate(NAMES)
    ]
    late = [
        PodSeen("uid-late", occupant("late", 2), "n1"),
        PodSeen("uid-new", occupant("new", 2, island="required"), "n0"),
    ]
    words = [
        GpusSeen(name, word(each, {f"h{number}": range(1 + number % 3)} if number < 7 else None))
        for number, (name, each) in enumerate(
            zip(NAMES, topologies, strict=True)
        )  # the last one's kubelet is not asked
    ]
    for batch in (Batch(NodeSeen, tuple(nodes), complete=True), Batch(PodSeen, (*held, *late), complete=True)):
        knowledge.take(batch, NOW)
    knowledge.take(Batch(GpusSeen, tuple(words), complete=True), NOW)
    extender = Extender(knowledge, policy, lambda: NOW, records.append)
    for each in pods:
        extender.filter(each, names)
    return records


PODS = {
    "a plain pod": pod("a", 1),
    "two GPUs in an island": pod("b", 2, annotations={"island": "required"}),
    "four GPUs beside what is in doubt": pod("c", 4, annotations={"island": "required", "numa": "preferred"}),
    "a rate": pod("d", 2, annotations={"min-bandwidth": "300"}),
    "what no node has": pod("e", 8, annotations={"interconnect": "nvswitch"}),
    "a model": pod("f", 1, labels={"gpu-model": "*H100*"}),
}
