"""Decisions of an extender, as it records them."""

from __future__ import annotations

from typing import Any

from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.node import parse_node
from scheduler_core.extender.extender import DecisionRecord, Extender
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, kubelet_report, node, occupant, pod

SHAPES = ("hgx_h100", "dgx1", "a100_mesh", "rtx4090")


NAMES = tuple(f"n{number}" for number in range(8))


ANY_GOOD_NODE = Policy(tolerance=10.0)  # so that plain pods are in doubt on several


def decided(
    *pods: Any, names: frozenset[str] = frozenset(NAMES), policy: Policy = ANY_GOOD_NODE
) -> list[DecisionRecord]:
    """Return the extender's records of requests for pods, one after the other, on eight nodes in use."""
    cluster_cache, records = ClusterCache(policy), list[DecisionRecord]()
    topologies = [MACHINES[SHAPES[number % 4]]() for number in range(8)]
    nodes = [NodeUpdate(name, parse_node(node(each))) for name, each in zip(NAMES, topologies, strict=True)]
    held = [
        PodUpdate(f"uid-h{number}", occupant(f"h{number}", 1 + number % 3), name) for number, name in enumerate(NAMES)
    ]
    late = [
        PodUpdate("uid-late", occupant("late", 2), "n1"),
        PodUpdate("uid-new", occupant("new", 2, island="required"), "n0"),
    ]
    words = [
        NodeGpusUpdate(name, kubelet_report(each, {f"h{number}": range(1 + number % 3)} if number < 7 else None))
        for number, (name, each) in enumerate(
            zip(NAMES, topologies, strict=True)
        )  # the last one's kubelet is not asked
    ]
    for batch in (
        Batch(NodeUpdate, tuple(nodes), is_full_list=True),
        Batch(PodUpdate, (*held, *late), is_full_list=True),
    ):
        cluster_cache.apply_batch(batch, NOW)
    cluster_cache.apply_batch(Batch(NodeGpusUpdate, tuple(words), is_full_list=True), NOW)
    extender = Extender(cluster_cache, policy, lambda: NOW, records.append)
    for each in pods:
        extender.filter(each, names)
    return records


PODS = {
    "a plain pod": pod("a", 1),
    "two GPUs in an island": pod("b", 2, annotations={"island": "required"}),
    "a rate": pod("d", 2, annotations={"min-bandwidth": "300"}),
    "four GPUs beside what is in doubt": pod("c", 4, annotations={"island": "required", "numa": "preferred"}),
    "what no node has": pod("e", 8, annotations={"interconnect": "nvswitch"}),
    "a model": pod("f", 1, labels={"gpu-model": "*H100*"}),
}
