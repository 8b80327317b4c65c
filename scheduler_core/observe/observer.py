"""What is watched -> placements, judged as soon as that can be done, and their sums. No I/O; one thread.

A pod is judged when its kubelet has named its GPUs, which the agent tells within seconds. Where no agent tells, at
once, and where it takes too long, by what the device plugin may have given it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scheduler_core.cache.cluster_cache import Bound, Knowledge, News
from scheduler_core.cache.events import Batch, GpusSeen, NodeSeen, PodSeen
from scheduler_core.cache.kube_scheduler_filters import StockNode
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import whole_gpus, word_of
from scheduler_core.observe.alternatives import options
from scheduler_core.observe.cluster_now import Present, present
from scheduler_core.observe.comparison import Held, Pending, Placement, found, judge
from scheduler_core.observe.totals import Sums
from scheduler_core.policy.policy import Policy

PATIENCE_S = 60.0  # for the kubelet's word: agents ask every second, and publish what is new at once


class Report(NamedTuple):
    """All that was seen until now."""

    since: float  # seconds since 1970: when all was listed
    until: float
    now: Present
    ran: Sums  # what ran already
    placed: Sums
    pending: int  # bound, and the kubelet has not named their GPUs


class Observer:
    """Watches how others place."""

    def __init__(self, policy: Policy) -> None:
        self.knowledge = Knowledge(policy)
        self.ran = Sums()
        self.placed = Sums()
        self._policy = policy
        self._since: float | None = None
        self._nodes: dict[str, StockNode] = {}
        self._pending: dict[str, Pending] = {}

    def take(self, batch: Batch[Any], now: float) -> tuple[Placement, ...]:
        """Take note of what a watch delivers; the placements that were judged by it. ``now``: seconds since 1970."""
        if batch.kind is NodeSeen:
            self._note_rules(batch)
        news = self.knowledge.take(batch, now)
        if self._since is None:
            return self._begin(now) if self.knowledge.synced else ()
        for each in news.bound:
            self._meet(each, now)
        return self._judged(self._decided(batch, news))

    def tick(self, now: float) -> tuple[Placement, ...]:
        """Let time pass: those judged that have waited too long."""
        self.knowledge.tick(now)
        late = [uid for uid, each in self._pending.items() if now - each.at > PATIENCE_S]
        return self._judged((uid, None) for uid in late)

    def finish(self) -> tuple[Placement, ...]:
        """The end: those judged that still wait."""
        return self._judged((uid, None) for uid in tuple(self._pending))

    def report(self, now: float) -> Report:
        """All that was seen until now."""
        since = now if self._since is None else self._since
        states = self.knowledge.table.states
        return Report(since, now, present(states), self.ran, self.placed, len(self._pending))

    def _note_rules(self, batch: Batch[NodeSeen]) -> None:
        if batch.complete:
            self._nodes.clear()
        for name in batch.gone:
            self._nodes.pop(name, None)
        self._nodes |= {node.key: node.rules for node in batch.seen if node.rules is not None}

    def _begin(self, now: float) -> tuple[Placement, ...]:
        """All is listed: what runs already is told first."""
        self._since = now
        ran = tuple(
            found(pod, pod.node, self._held(pod, pod.node), now)
            for pod in self.knowledge.pods.values()
            if pod.node is not None
        )
        for each in ran:
            self.ran.add(each)
        return ran

    def _meet(self, bound: Bound, now: float) -> None:
        pod, before = bound
        assert pod.node is not None  # it is bound
        chosen = options(pod, before, self._nodes, self._policy)
        self._pending[pod.key] = Pending(pod, pod.node, before.states.get(pod.node), chosen, now)

    def _decided(self, batch: Batch[Any], news: News) -> Iterable[tuple[str, Held | None]]:
        """Pods of which no more is to be heard, with what they hold."""
        yield from ((pod.key, None) for pod in news.gone)
        spoken = {each.key for each in batch.seen} if batch.kind is GpusSeen else set[str]()
        met = {each.pod.key for each in news.bound}
        for uid, each in tuple(self._pending.items()):
            if uid in met or each.node in spoken:
                held = self._held(each.pod, each.node)
                if held is not None or self._silent(each.node):
                    yield uid, held

    def _judged(self, decided: Iterable[tuple[str, Held | None]]) -> tuple[Placement, ...]:
        judged = []
        for uid, held in decided:
            pending = self._pending.pop(uid, None)
            if pending is not None:
                placement = judge(pending, held)
                self.placed.add(placement)
                judged.append(placement)
        return tuple(judged)

    def _held(self, pod: PodSeen, node: str) -> Held | None:
        """What the kubelet says that the pod has; None where it has not named all of it."""
        record = self._records.get(node)
        shape, word = (None, None) if record is None else (whole_gpus(record), word_of(record))
        if shape is None or word is None:
            return None
        mask = word.settled.get(pod.key, 0)
        return Held(shape, mask) if 0 < pod.occupant.profile.gpus <= mask.bit_count() else None

    def _silent(self, node: str) -> bool:
        """Whether nobody will say who holds the GPUs there."""
        record = self._records.get(node)
        return record is None or record.gpus is None or record.gpus.allocations is None

    @property
    def _records(self) -> Mapping[str, NodeRecord]:
        return self.knowledge.table.records
