"""Reads all pods of the nodes of a preemption before the first pod is evicted: no watch keeps all that they request."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.rbac import NODES, PODS
from scheduler_core.planner.commit.actions import CheckBudgets
from scheduler_core.planner.commit.resource_fit import FitNode, FitPod, shortage_on
from scheduler_core.planner.leader.pod_reads import read_named_pods, read_pages


class Shortages(NamedTuple):
    """The evictions that would be in vain, because members of the gang would lack CPU, memory or other resources."""

    blocked: dict[str, str]  # unit -> why, for people: those on such a node, or all units if none is there
    nodes: frozenset[str]  # without evictions: the gang is to be placed elsewhere


def find_shortages(kube: Kube, action: CheckBudgets) -> Shortages:
    """Return the evictions that would be in vain. Raises ``KubeError``."""
    uids = {each.name: each.uid for each in action.seats if each.node is not None}
    members = read_named_pods(kube, FitPod, uids, ListOptions(action.gang_namespace))
    by_node: dict[str, list[FitPod]] = {}
    for seat in action.seats:
        if seat.node is not None and seat.uid in members:
            by_node.setdefault(seat.node, []).append(members[seat.uid])
    gone = {each.uid for each in action.evictions}
    blocked: dict[str, str] = {}
    short: set[str] = set()
    for name, there in by_node.items():
        nodes = read_pages(kube, NODES, FitNode, ListOptions(fields=f"metadata.name={name}"))
        node = next(filter(None, chain.from_iterable(nodes)), None)
        pods = read_pages(kube, PODS, FitPod, ListOptions(fields=f"spec.nodeName={name}"))
        why = None if node is None else shortage_on(node, filter(None, chain.from_iterable(pods)), gone, there)
        if why is not None:
            on_node = [each for each in action.evictions if each.node == name]
            short |= set() if on_node else {name}
            blocked = {**{each.unit: why for each in on_node or action.evictions}, **blocked}
    return Shortages(blocked, frozenset(short))
