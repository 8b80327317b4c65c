"""Reads all pods of the nodes of a preemption before the first pod is evicted: no watch keeps those without GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import NotFoundError
from gputopo.kube.rbac import NODES, PODS, Resource
from gputopo.process.decoding import decode
from scheduler_core.planner.commit.actions import CheckBudgets
from scheduler_core.planner.commit.node_room import RoomNode, RoomPod, shortage_on

_FEW = 16  # so many members are read one by one
T = TypeVar("T")


def check_node_room(kube: Kube, action: CheckBudgets) -> dict[str, str]:
    """Return the units whose eviction would be in vain, with the reason for people. Raises ``KubeError``.

    These are the units on a node where members of the gang lack CPU, memory or another resource all the same; all
    units, if none is there.
    """
    members = _members(kube, action)
    by_node: dict[str, list[RoomPod]] = {}
    for seat in action.seats:
        if seat.node is not None and seat.uid in members:
            by_node.setdefault(seat.node, []).append(members[seat.uid])
    gone = {each.uid for each in action.evictions}
    blocked: dict[str, str] = {}
    for name, there in by_node.items():
        node = next(_objects(kube, NODES, RoomNode, ListOptions(fields=f"metadata.name={name}")), None)
        pods = _objects(kube, PODS, RoomPod, ListOptions(fields=f"spec.nodeName={name}"))
        why = None if node is None else shortage_on(node, pods, gone, there)
        if why is not None:
            on_node = [each for each in action.evictions if each.node == name]
            blocked = {**{each.unit: why for each in on_node or action.evictions}, **blocked}
    return blocked


def _members(kube: Kube, action: CheckBudgets) -> Mapping[str, RoomPod]:
    """Return the members of the gang that exist, by UID."""
    names = {each.name: each.uid for each in action.seats if each.node is not None}
    found: list[RoomPod] = []
    if len(names) > _FEW:
        found = list(_objects(kube, PODS, RoomPod, ListOptions(action.gang_namespace)))
    else:
        for name in names:
            try:
                found.append(kube.get(PODS, name, RoomPod, ListOptions(action.gang_namespace)))
            except NotFoundError:
                continue
    return {each.metadata.uid: each for each in found if names.get(each.metadata.name) == each.metadata.uid}


def _objects(kube: Kube, resource: Resource, kind: type[T], query: ListOptions) -> Iterator[T]:
    """Yield all objects that can be decoded."""
    for page in kube.list_readable(resource, kind, query):
        for each in page.items:
            try:
                yield decode(each, kind) if isinstance(each, msgspec.Raw) else each
            except msgspec.DecodeError:
                continue
