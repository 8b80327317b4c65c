"""What is watched -> placements, judged as soon as that can be done, and their sums. No I/O; one thread.

A pod is judged when its kubelet has named its GPUs, which the agent tells within seconds. Where no agent tells, at
once, and where it takes too long, by what the device plugin may have given it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scheduler_core.cache.cluster_cache import BoundPod, CacheChanges, ClusterCache
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import kubelet_report_of, whole_gpu_shape
from scheduler_core.observe.alternatives import alternatives_for
from scheduler_core.observe.cluster_now import ClusterNow, cluster_now
from scheduler_core.observe.comparison import AllocatedGpus, ObservedPlacement, Pending, compare_bound, compare_running
from scheduler_core.observe.totals import TotalsByDimension
from scheduler_core.policy.policy import Policy

MAX_WAIT_S = 60.0  # for the kubelet's word: agents ask every second, and publish what is new at once


class ObserverReport(NamedTuple):
    """All that was seen until now."""

    since: float  # seconds since 1970: when all was listed
    until: float
    now: ClusterNow
    ran: TotalsByDimension  # what ran already
    placed: TotalsByDimension
    pending: int  # bound, and the kubelet has not named their GPUs


class Observer:
    """Watches how others place."""

    def __init__(self, policy: Policy) -> None:
        self.cache = ClusterCache(policy)
        self.ran = TotalsByDimension()
        self.placed = TotalsByDimension()
        self._policy = policy
        self._since: float | None = None
        self._nodes: dict[str, FullNode] = {}
        self._pending: dict[str, Pending] = {}

    def apply_batch(self, batch: Batch[Any], now: float) -> tuple[ObservedPlacement, ...]:
        """Take note of what a watch delivers; the placements that were judged by it. ``now``: seconds since 1970."""
        if batch.kind is NodeUpdate:
            self._note_rules(batch)
        news = self.cache.apply_batch(batch, now)
        if self._since is None:
            return self._begin(now) if self.cache.synced else ()
        for each in news.bound_pods:
            self._add_pending(each, now)
        return self._judged(self._decided(batch, news))

    def advance_time(self, now: float) -> tuple[ObservedPlacement, ...]:
        """Let time pass: those judged that have waited too long."""
        self.cache.advance_time(now)
        late = [uid for uid, each in self._pending.items() if now - each.at > MAX_WAIT_S]
        return self._judged((uid, None) for uid in late)

    def finish(self) -> tuple[ObservedPlacement, ...]:
        """The end: those judged that still wait."""
        return self._judged((uid, None) for uid in tuple(self._pending))

    def report(self, now: float) -> ObserverReport:
        """All that was seen until now."""
        since = now if self._since is None else self._since
        states = self.cache.table.states
        return ObserverReport(since, now, cluster_now(states), self.ran, self.placed, len(self._pending))

    def _note_rules(self, batch: Batch[NodeUpdate]) -> None:
        if batch.is_full_list:
            self._nodes.clear()
        for name in batch.removed:
            self._nodes.pop(name, None)
        self._nodes |= {node.key: node.rules for node in batch.updates if node.rules is not None}

    def _begin(self, now: float) -> tuple[ObservedPlacement, ...]:
        """All is listed: what runs already is told first."""
        self._since = now
        ran = tuple(
            compare_running(pod, pod.node, self._held(pod, pod.node), now)
            for pod in self.cache.pods.values()
            if pod.node is not None
        )
        for each in ran:
            self.ran.add_placement(each)
        return ran

    def _add_pending(self, bound: BoundPod, now: float) -> None:
        pod, before = bound
        assert pod.node is not None  # it is bound
        chosen = alternatives_for(pod, before, self._nodes, self._policy)
        self._pending[pod.key] = Pending(pod, pod.node, before.states.get(pod.node), chosen, now)

    def _decided(self, batch: Batch[Any], news: CacheChanges) -> Iterable[tuple[str, AllocatedGpus | None]]:
        """Pods of which no more is to be heard, with what they hold."""
        yield from ((pod.key, None) for pod in news.removed_pods)
        spoken = {each.key for each in batch.updates} if batch.kind is NodeGpusUpdate else set[str]()
        met = {each.pod.key for each in news.bound_pods}
        for uid, each in tuple(self._pending.items()):
            if uid in met or each.node in spoken:
                held = self._held(each.pod, each.node)
                if held is not None or self._silent(each.node):
                    yield uid, held

    def _judged(self, decided: Iterable[tuple[str, AllocatedGpus | None]]) -> tuple[ObservedPlacement, ...]:
        judged = []
        for uid, held in decided:
            pending = self._pending.pop(uid, None)
            if pending is not None:
                placement = compare_bound(pending, held)
                self.placed.add_placement(placement)
                judged.append(placement)
        return tuple(judged)

    def _held(self, pod: PodUpdate, node: str) -> AllocatedGpus | None:
        """What the kubelet says that the pod has; None where it has not named all of it."""
        record = self._records.get(node)
        shape, word = (None, None) if record is None else (whole_gpu_shape(record), kubelet_report_of(record))
        if shape is None or word is None:
            return None
        mask = word.allocated.get(pod.key, 0)
        return AllocatedGpus(shape, mask) if 0 < pod.occupant.profile.gpus <= mask.bit_count() else None

    def _silent(self, node: str) -> bool:
        """Whether nobody will say who holds the GPUs there."""
        record = self._records.get(node)
        return record is None or record.gpus is None or record.gpus.allocations is None

    @property
    def _records(self) -> Mapping[str, NodeRecord]:
        return self.cache.table.records
