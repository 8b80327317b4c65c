"""Bound and nominated pods without GPUs: the CPU, memory, ephemeral storage and pod slots that they take. No I/O.

A cluster has many more of these pods than pods with GPUs. So of each only its node and one shared value are kept, and
their sum for each node. Which nodes have GPUs is not asked: a node registers its GPUs after its first pods run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
from immutables import Map

from scheduler_core.cache.events import Batch, NodeUpdate
from scheduler_core.request.node_load import NO_LOAD, NodeLoad


class PodLoad(msgspec.Struct, frozen=True, gc=False):
    """A pod without GPUs that has a node, or a nominated one, and has not finished. Its key is its UID."""

    key: str
    node: str
    load: NodeLoad  # one object for equal requests


class PodLoads:
    """The pods, and their sum for each node. For one thread."""

    def __init__(self) -> None:
        self.by_node: Map[str, NodeLoad] = Map()  # replaced, never changed in place: a plan may read it
        self.times_freed = 0  # how often something became free on a node with GPUs
        self._pods: dict[str, PodLoad] = {}
        self._gpu_nodes: set[str] = set()

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    @property
    def uids(self) -> Collection[str]:
        """The UIDs of the pods."""
        return self._pods.keys()

    def apply_nodes(self, batch: Batch[NodeUpdate]) -> None:
        """Apply nodes. Only nodes with GPUs are reported as changed."""
        self._gpu_nodes = set() if batch.is_full_list else self._gpu_nodes.difference(batch.removed)
        for each in batch.updates:
            (self._gpu_nodes.add if each.facts.allocatable else self._gpu_nodes.discard)(each.key)

    def apply_batch(self, batch: Batch[PodLoad]) -> list[str]:
        """Apply new and changed pods, and the end of pods. Return the nodes with GPUs whose sum has changed."""
        before, changed = self.by_node, dict[str, NodeLoad]()
        if batch.is_full_list:
            self._pods = {each.key: each for each in batch.updates}
            for each in batch.updates:
                changed[each.node] = changed.get(each.node, NO_LOAD).plus(each.load)
            self.by_node = Map(changed)
            return self._note_changes(before, {*before, *changed})
        for uid in batch.removed:
            self._add_pod(self._pods.pop(uid, None), -1, changed)
        for each in batch.updates:
            self._add_pod(self._pods.get(each.key), -1, changed)
            self._pods[each.key] = each
            self._add_pod(each, 1, changed)
        if changed:
            sums = before.mutate()
            for name, load in changed.items():
                if load.pods:
                    sums[name] = load
                else:
                    sums.pop(name, None)
            self.by_node = sums.finish()
        return self._note_changes(before, changed)

    def _add_pod(self, pod: PodLoad | None, times: int, changed: dict[str, NodeLoad]) -> None:
        if pod is not None:
            known = changed.get(pod.node) or self.by_node.get(pod.node) or NO_LOAD
            changed[pod.node] = known.plus(pod.load, times)

    def _note_changes(self, before: Map[str, NodeLoad], names: Iterable[str]) -> list[str]:
        found, is_freed = list[str](), False
        for name in names:
            was, now = before.get(name, NO_LOAD), self.by_node.get(name, NO_LOAD)
            if was != now and name in self._gpu_nodes:
                found.append(name)
                is_freed = is_freed or any(less < more for less, more in zip(now, was, strict=True))
        self.times_freed += is_freed
        return found
