"""Follows the cluster and compares each placement as soon as possible. No I/O; one thread.

A pod is compared when the agent publishes the kubelet's report of its GPUs, within seconds. Without an agent it is
compared at once, and after ``MAX_WAIT_S`` by the GPUs that the device plugin may have given it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import (
    Batch,
    BoundPod,
    CacheChanges,
    HeartbeatUpdate,
    NodeGpusUpdate,
    NodeUpdate,
    PodUpdate,
)
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import kubelet_report_of, whole_gpu_shape
from scheduler_core.observe.alternatives import alternatives_for
from scheduler_core.observe.cluster_now import ClusterNow, cluster_now
from scheduler_core.observe.comparison import (
    AllocatedGpus,
    ObservedPlacement,
    PendingPlacement,
    compare_bound,
    compare_running,
)
from scheduler_core.observe.totals import TotalsByDimension
from scheduler_core.policy.policy import Policy

MAX_WAIT_S = 60.0  # for the kubelet's report: agents query it every second and publish changes at once


class ObserverReport(NamedTuple):
    """The placements until now."""

    since: float  # seconds since 1970: when the watches were synced
    until: float
    now: ClusterNow
    ran: TotalsByDimension  # bound before
    placed: TotalsByDimension
    pending: int  # bound, without a report of their GPUs


class Observer:
    """Follows the placements of the cluster's schedulers."""

    def __init__(self, policy: Policy, *, heartbeats: bool = False) -> None:
        self.cache = ClusterCache(policy, heartbeats=heartbeats)
        self.ran = TotalsByDimension()
        self.placed = TotalsByDimension()
        self._policy = policy
        self._since: float | None = None
        self._nodes: dict[str, FullNode] = {}
        self._pending: dict[str, PendingPlacement] = {}

    def apply_batch(self, batch: Batch[Any], now: float) -> tuple[ObservedPlacement, ...]:
        """Apply a batch of a watch; return the placements that it completes. ``now``: seconds since 1970."""
        if batch.kind is NodeUpdate:
            self._update_rules(batch)
        news = self.cache.apply_batch(batch, now)
        if self._since is None:
            return self._begin(now) if self.cache.synced else ()
        for each in news.bound_pods:
            self._add_pending(each, now)
        return self._compared(self._ready(batch, news))

    def advance_time(self, now: float) -> tuple[ObservedPlacement, ...]:
        """Let time pass; return the placements that have waited too long."""
        self.cache.advance_time(now)
        late = [uid for uid, each in self._pending.items() if now - each.at > MAX_WAIT_S]
        return self._compared((uid, None) for uid in late)

    def finish(self) -> tuple[ObservedPlacement, ...]:
        """Return the placements that still wait."""
        return self._compared((uid, None) for uid in tuple(self._pending))

    def report(self, now: float) -> ObserverReport:
        """Return the report until now."""
        since = now if self._since is None else self._since
        unusable = {name for name, node in self._nodes.items() if node.unusable}
        cluster = cluster_now(self.cache.snapshot.states, unusable)
        return ObserverReport(since, now, cluster, self.ran, self.placed, len(self._pending))

    def _update_rules(self, batch: Batch[NodeUpdate]) -> None:
        if batch.is_full_list:
            self._nodes.clear()
        for name in batch.removed:
            self._nodes.pop(name, None)
        self._nodes |= {node.key: node.rules for node in batch.updates if node.rules is not None}

    def _begin(self, now: float) -> tuple[ObservedPlacement, ...]:
        """Return the pods that ran when the watches were synced."""
        self._since = now
        ran = tuple(
            compare_running(pod, pod.node, self._allocated(pod, pod.node), now)
            for pod in self.cache.pods.values()
            if pod.node is not None
        )
        for each in ran:
            self.ran.add_placement(each)
        return ran

    def _add_pending(self, bound: BoundPod, now: float) -> None:
        pod, before = bound
        assert pod.node is not None  # it is bound
        self._pending[pod.key] = PendingPlacement(
            pod=pod,
            node=pod.node,
            before=before.states.get(pod.node),
            alternatives=alternatives_for(pod, before, self._nodes, self._policy),
            at=now,
        )

    def _ready(self, batch: Batch[Any], news: CacheChanges) -> Iterable[tuple[str, AllocatedGpus | None]]:
        """Yield the pods whose GPUs are reported, or never will be."""
        yield from ((pod.key, None) for pod in news.removed_pods)
        is_report = batch.kind in (NodeGpusUpdate, HeartbeatUpdate)
        reported = {each.key for each in batch.updates} if is_report else set[str]()
        new = {each.pod.key for each in news.bound_pods}
        for uid, each in tuple(self._pending.items()):
            if uid in new or each.node in reported:
                allocated = self._allocated(each.pod, each.node)
                if allocated is not None or self._never_reports(each.node):
                    yield uid, allocated

    def _compared(self, ready: Iterable[tuple[str, AllocatedGpus | None]]) -> tuple[ObservedPlacement, ...]:
        placements = []
        for uid, allocated in ready:
            if pending := self._pending.pop(uid, None):
                placements.append(compare_bound(pending, allocated))
                self.placed.add_placement(placements[-1])
        return tuple(placements)

    def _allocated(self, pod: PodUpdate, node: str) -> AllocatedGpus | None:
        """Return the GPUs that the kubelet reports for the pod; None until all are reported."""
        record = self._records.get(node)
        shape, report = (None, None) if record is None else (whole_gpu_shape(record), kubelet_report_of(record))
        if shape is None or report is None:
            return None
        mask = report.allocated.get(pod.key, 0)
        return AllocatedGpus(shape, mask) if 0 < pod.occupant.profile.gpus <= mask.bit_count() else None

    def _never_reports(self, node: str) -> bool:
        """Return whether the node has no agent that reports allocations."""
        record = self._records.get(node)
        return record is None or record.gpus is None or record.gpus.allocations is None

    @property
    def _records(self) -> Mapping[str, NodeRecord]:
        return self.cache.snapshot.records
