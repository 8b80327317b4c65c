"""Reads all pods of the nodes of a preemption before the first pod is evicted: no watch keeps those without GPUs."""

from __future__ import annotations

from itertools import chain

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.rbac import NODES, PODS
from scheduler_core.planner.commit.actions import CheckBudgets
from scheduler_core.planner.commit.resource_fit import FitNode, FitPod, shortage_on
from scheduler_core.planner.leader.pod_reads import read_named_pods, read_pages


def check_resource_fit(kube: Kube, action: CheckBudgets) -> dict[str, str]:
    """Return the units whose eviction would be in vain, with the reason for people. Raises ``KubeError``.

    These are the units on a node where members of the gang lack CPU, memory or another resource all the same; all
    units, if none is there.
    """
    uids = {each.name: each.uid for each in action.seats if each.node is not None}
    members = read_named_pods(kube, FitPod, uids, ListOptions(action.gang_namespace))
    by_node: dict[str, list[FitPod]] = {}
    for seat in action.seats:
        if seat.node is not None and seat.uid in members:
            by_node.setdefault(seat.node, []).append(members[seat.uid])
    gone = {each.uid for each in action.evictions}
    blocked: dict[str, str] = {}
    for name, there in by_node.items():
        nodes = read_pages(kube, NODES, FitNode, ListOptions(fields=f"metadata.name={name}"))
        node = next(filter(None, chain.from_iterable(nodes)), None)
        pods = read_pages(kube, PODS, FitPod, ListOptions(fields=f"spec.nodeName={name}"))
        why = None if node is None else shortage_on(node, filter(None, chain.from_iterable(pods)), gone, there)
        if why is not None:
            on_node = [each for each in action.evictions if each.node == name]
            blocked = {**{each.unit: why for each in on_node or action.evictions}, **blocked}
    return blocked
