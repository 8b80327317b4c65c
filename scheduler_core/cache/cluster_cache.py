"""What is known of the cluster now: what three watches show and what Filter answered, as the next ``NodeTable``.

The one owner of what changes; the loop's thread alone calls it, so there are no locks. The three watches tell of nodes,
pods and the kubelet's word in any order, and after a gap all at once. So what belongs to a node that has not been shown
(yet, or any more) is kept for it, and a pod that only the kubelet speaks of is taken to be there until the pods' watch
has had time to show it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from gputopo.crd.reservations import LEDGERS, RESERVATIONS
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import AssumedPod, AssumedPods
from scheduler_core.cache.change_log import ChangeLog
from scheduler_core.cache.events import (
    Batch,
    LedgerUpdate,
    NodeGpusUpdate,
    NodeUpdate,
    PodUpdate,
    ReservationUpdate,
    removed_keys,
)
from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.node_record import NodeRecord, with_gpus, with_pod, without_pod
from scheduler_core.cache.node_table import Snapshot, with_records, without_nodes, without_own_reservation
from scheduler_core.cache.owner_pods import PlacedPod
from scheduler_core.cache.placeholder_pods import FullName, full_name, gpu_holders, placeholder_pod, placeholder_uid
from scheduler_core.cache.reservations import NO_RESERVATIONS, ReservationIndex
from scheduler_core.cache.staleness import hashes_match, observed_at, staleness_changes
from scheduler_core.cache.ungated_pods import Ungated
from scheduler_core.policy.policy import Policy

_NO_FACTS = NodeFacts(topology=None, described=False, allocatable=())
_KINDS: dict[type[Any], str] = {NodeUpdate: "nodes", PodUpdate: "pods", NodeGpusUpdate: "nodegpus"}
_RESERVATION_KINDS: dict[type[Any], str] = {ReservationUpdate: RESERVATIONS, LedgerUpdate: LEDGERS}
_CLOCKS_DIFFER_S = 10.0  # at most, between a node and here, the time that an agent takes to look included


class BoundPod(NamedTuple):
    """A pod that got its node."""

    pod: PodUpdate
    table_before: Snapshot  # what was known just before, without what was assumed of the pod


class ReportedNode(NamedTuple):
    """A node before and after a PodResources report of its kubelet, assumed pods included."""

    before: NodeRecord
    after: NodeRecord


class CacheChanges(NamedTuple):
    """What a batch made known that somebody may want to tell of. What the first lists show is no news."""

    bound_pods: tuple[BoundPod, ...] = ()
    kubelet_reports: tuple[ReportedNode, ...] = ()
    removed_pods: tuple[PodUpdate, ...] = ()


class ClusterCache:
    """The node table, the pods that want or hold GPUs, and what is assumed of them."""

    def __init__(
        self, policy: Policy, *, reservations: bool = False, bound: bool = True, guarded: bool = False
    ) -> None:
        """``reservations``: what planners keep is shown too, and nothing is known before it was.

        ``bound``: ``take`` answers what was known when a pod was bound, for which the table is worked out each time.

        ``guarded``: only planners can write their annotations on pods (``Ungated``).
        """
        self.change_log = ChangeLog()  # of the table, by name
        self.assumed_pods = AssumedPods()
        self._policy = policy
        self._reports_bound = bound
        self._kinds = _KINDS | (_RESERVATION_KINDS if reservations else {})
        self._pods: dict[str, PodUpdate] = {}
        self.reservations = ReservationIndex(self._pods)
        self._ungated = Ungated(self.reservations, guarded=guarded)
        self._owned: dict[str, set[str]] = {}  # the UIDs of those that one owner made
        self._uids: dict[FullName, str] = {}  # of the pods, by namespace and name
        self._records: dict[str, NodeRecord] = {}  # as observed; also of nodes that were not shown
        self._nodes: set[str] = set()
        self._listed: set[type[Any]] = set()
        self._table = Snapshot()
        self._dirty: set[str] = set()  # nodes whose state is to be worked out again
        self._ended_at: dict[str, float] = {}  # when pods ended that the kubelet may still name, by UID
        self._stale_at: list[tuple[float, str]] = []  # a heap: when a node's observation becomes too old
        self._now = 0.0

    @property
    def table(self) -> Snapshot:
        """All nodes as they are taken to be: what was observed, and the pods that are assumed there."""
        if not self._dirty:
            return self._table
        stirred, self._dirty = self._dirty, set()
        gone = [name for name in stirred if name not in self._nodes and name in self._table.records]
        shown = [self._record_with_assumed(name) for name in stirred if name in self._nodes]
        if gone:
            self._table = without_nodes(self._table, gone)
        if shown:
            self._table = with_records(self._table, shown, self._now, self._policy)
        self.change_log.add_names(stirred)
        return self._table

    def table_for_pod(self, uid: str) -> Snapshot:
        """The table as that pod sees it: a place that is kept for it does not stand in its way."""
        places = self.reservations.nodes_for(uid)
        return without_own_reservation(self.table, uid, places) if places else self.table

    def table_without(self, reservations: Collection[str]) -> Snapshot:
        """The table as it would be if those reservations, by their UIDs, kept nothing."""
        counting = self.reservations.active
        nodes = {node for uid in reservations if uid in counting for node in counting[uid].nodes} & self._nodes
        shown = [self._record_with_assumed(name, reservations) for name in nodes]
        return with_records(self.table, shown, self._now, self._policy) if shown else self.table

    @property
    def pods(self) -> Mapping[str, PodUpdate]:
        """All pods that want or hold GPUs, by UID."""
        return MappingProxyType(self._pods)

    def placed_pods_of(self, owner: str | None) -> list[PlacedPod]:
        """The pods of that owner that are on a node, or are taken to be."""
        found = []
        for uid in self._owned.get(owner or "", ()):
            seen, held = self._pods[uid], self.assumed_pods.get_pod(uid)
            if seen.node is not None:
                found.append(PlacedPod(seen.node, seen.occupant))
            elif held is not None and held.is_on_one_node:
                found += [PlacedPod(node, held.pod) for node in held.nodes]
        return found

    def set_policy(self, policy: Policy) -> None:
        """Judge by another policy when observations are too old."""
        self._policy = policy
        self._stale_at = [(at, name) for name, each in self._records.items() for at in staleness_changes(each, policy)]
        heapq.heapify(self._stale_at)
        self._dirty |= self._nodes

    @property
    def missing_kinds(self) -> tuple[str, ...]:
        """What has not been listed yet."""
        return tuple(name for kind, name in self._kinds.items() if kind not in self._listed)

    @property
    def not_ready_reason(self) -> str | None:
        """Why nothing can be said yet; None: it can."""
        return (
            f"gputopo has not yet listed all {', '.join(self.missing_kinds)} of the cluster"
            if self.missing_kinds
            else None
        )

    @property
    def synced(self) -> bool:
        """Whether there has been a complete list of each kind."""
        return len(self._listed) == len(self._kinds)

    def apply_batch(self, batch: Batch[Any], now: float) -> CacheChanges:
        """Take note of what a watch delivers. ``now``: seconds since 1970, here as everywhere."""
        self.advance_time(now)
        first = batch.kind not in self._listed
        if batch.is_full_list:
            self._listed.add(batch.kind)
        if batch.kind is PodUpdate:
            return self._apply_pods(batch, first=first)
        if batch.kind is NodeUpdate:
            self._apply_nodes(batch)
            return CacheChanges()
        if batch.kind in _RESERVATION_KINDS:
            self._take_kept(batch)
            return CacheChanges()
        return self._apply_kubelet_reports(batch, first=first)

    def ungated_to(self, uid: str) -> str | None:
        """Return the node to which a planner ungated the pod; None where nothing proves that one did."""
        return self._ungated.node_of(uid, self._now)

    def advance_time(self, now: float) -> None:
        """Let time pass: observations become old, assumptions end."""
        self._now = max(now, self._now)
        self._mark_dirty(self.assumed_pods.expire_pods(self._now))
        while self._stale_at and self._stale_at[0][0] < self._now:
            self._dirty.add(heapq.heappop(self._stale_at)[1])

    def assume_pod(self, pod: Occupant, nodes: AbstractSet[str], lifetime_s: float = ASSUMED_POD_LIFETIME_S) -> None:
        """Filter answered those nodes. Nothing is assumed of a pod that has a node."""
        seen = self._pods.get(pod.uid)
        if seen is None or seen.node is None:
            self._assume(pod, nodes, self._now + lifetime_s)

    def forget_assumed_pod(self, uid: str) -> None:
        """Filter is asked about that pod again."""
        self._mark_dirty(self.assumed_pods.drop_pod(uid))

    def _take_kept(self, batch: Batch[Any]) -> None:
        """What planners keep."""
        reserved = self.reservations
        take = reserved.apply_ledgers if batch.kind is LedgerUpdate else reserved.apply_reservations
        self._dirty |= take(batch) & self._nodes
        left, until = reserved.take_unbound(), self._now + ASSUMED_POD_LIFETIME_S
        self._ungated.expect({pod.uid: node for pod, node in left}, self._now, until)
        for pod, node in left:
            held, seen = self.assumed_pods.get_pod(pod.uid), self._pods.get(pod.uid)
            if seen is not None and seen.nominated == node:  # it comes there, whenever that is
                self._assume(pod, frozenset({node}), inf)
            elif held is None or not held.is_on_one_node:  # it was let go, and may be there by now
                self._assume(pod, frozenset({node}), until)
        for seen in self._ungated.proved_by(batch, self._pods, self._now):
            self._update_pod(seen, self._pods[seen.key])

    def _apply_pods(self, batch: Batch[PodUpdate], *, first: bool) -> CacheChanges:
        gone = tuple(pod for uid in removed_keys(batch, self._pods) if (pod := self._pods.pop(uid, None)) is not None)
        for uid in batch.removed:
            self._ungated.forget(uid)
        for pod in gone:
            self._remove_pod(pod)
        bound: list[BoundPod] = []
        for pod in (self._ungated.resolve(each, self._now) for each in batch.updates):
            known = self._pods.get(pod.key)
            if known != pod:
                if not first and pod.node is not None and (known is None or known.node is None):
                    self._forget_assumed(pod)
                    if self._reports_bound:
                        bound.append(BoundPod(pod, self.table))
                self._update_pod(pod, known)
        return CacheChanges(bound_pods=tuple(bound), removed_pods=gone)

    def _update_pod(self, pod: PodUpdate, known: PodUpdate | None) -> None:
        """A pod as it is now."""
        self._pods[pod.key] = pod
        places = self.reservations.nodes_for(pod.key) if pod.node is None else self.reservations.mark_bound(pod.key)
        if places:
            self._dirty |= self._nodes.intersection(places)
        if pod.occupant.owner is not None:
            self._owned.setdefault(pod.occupant.owner, set()).add(pod.key)
        self._uids[full_name(pod.occupant)] = pod.key
        if pod.node is None:
            self._assume_nominated(pod, known)
            return
        if known is not None and known.node is not None and known.node != pod.node:  # after a gap of the watch
            self._set_record(without_pod(self._record(known.node), pod.key))
        self._forget_assumed(pod)
        self._set_record(with_pod(self._record(pod.node), pod.occupant))

    def _remove_pod(self, pod: PodUpdate) -> None:
        owner = pod.occupant.owner
        if owner is not None:
            self._owned[owner].discard(pod.key)
            if not self._owned[owner]:
                del self._owned[owner]
        name = full_name(pod.occupant)
        if self._uids.get(name) == pod.key:
            del self._uids[name]
        self._forget_assumed(pod)
        self._ungated.forget(pod.key)
        self._dirty |= self._nodes.intersection(self.reservations.nodes_for(pod.key))
        self.reservations.mark_ended(pod.key)
        if pod.node is not None:
            record = without_pod(self._record(pod.node), pod.key)
            if pod.occupant in record.departed:
                self._ended_at[pod.key] = self._now
            self._set_record(record)

    def _forget_assumed(self, pod: PodUpdate) -> None:
        self.forget_assumed_pod(pod.key)
        self.forget_assumed_pod(placeholder_uid(full_name(pod.occupant)))

    def _assume_nominated(self, pod: PodUpdate, known: PodUpdate | None) -> None:
        """kube-scheduler nominated the pod: it waits for volumes, or for others to be evicted, and will come there.

        Filter's last answer is younger than any nomination to another node. What was refused since is not expected.
        Where a planner let it go its place is kept as long as the reservation counts; it comes there whatever becomes
        of that.
        """
        held = self.assumed_pods.get_pod(pod.key)
        if (known is not None and known.nominated == pod.nominated) or pod.nominated in self.reservations.nodes_for(
            pod.key
        ):
            return
        if pod.nominated is None:
            if held is not None and held.expires_at == inf:
                self.forget_assumed_pod(pod.key)
        elif held is None or held.expires_at == inf or pod.nominated in held.nodes:
            self._assume(pod.occupant, frozenset({pod.nominated}), inf)

    def _apply_nodes(self, batch: Batch[NodeUpdate]) -> None:
        for name in removed_keys(batch, self._nodes):
            if name in self._nodes:
                self._nodes.remove(name)
                self._set_record(msgspec.structs.replace(self._record(name), machine=_NO_FACTS))
        for node in batch.updates:
            record = self._record(node.key)
            if node.key not in self._nodes or record.machine != node.facts:
                self._nodes.add(node.key)
                self._set_record(msgspec.structs.replace(record, machine=node.facts))

    def _apply_kubelet_reports(self, batch: Batch[NodeGpusUpdate], *, first: bool) -> CacheChanges:
        spoken = (
            {name for name, record in self._records.items() if record.gpus is not None} if batch.is_full_list else ()
        )
        for name in removed_keys(batch, spoken):
            self._set_record(with_gpus(self._record(name), None))
        reports = [report for word in batch.updates if (report := self._apply_kubelet_report(word)) is not None]
        return CacheChanges(kubelet_reports=() if first else tuple(reports))

    def _apply_kubelet_report(self, word: NodeGpusUpdate) -> ReportedNode | None:
        """Apply one PodResources report; None where it says nothing new."""
        name = word.key
        if self._record(name).gpus == word.gpus:
            return None
        if PodUpdate in self._listed:
            self._assume_named_pods(name, word.gpus)
        before = self._record_with_assumed(name)
        self._set_record(self._without_replaced_pods(with_gpus(self._record(name), word.gpus)))
        return ReportedNode(before, self._record_with_assumed(name))

    def _without_replaced_pods(self, record: NodeRecord) -> NodeRecord:
        """Without the departed whose name a living pod bears, once the word is surely younger than their end."""
        living = {full_name(pod) for pod in record.pods if pod.admitted}
        spoken = -inf if record.gpus is None else observed_at(record.gpus)
        departed = tuple(
            pod
            for pod in record.departed
            if full_name(pod) not in living or spoken <= self._ended_at.get(pod.uid, inf) + _CLOCKS_DIFFER_S
        )
        return msgspec.structs.replace(record, departed=departed)

    def _assume_named_pods(self, node: str, gpus: NodeGpus) -> None:
        """Pods that the kubelet names and the pods' watch has not shown there: for a while they are taken to be there.

        Where it never shows them they have gone, and the word is old.
        """
        record = self._record(node)
        there = {full_name(pod) for pod in (*record.pods, *record.departed, *self.assumed_pods.pods_on(node))}
        there |= gpu_holders(record.gpus).keys()
        for name, devices in gpu_holders(gpus).items():
            if name not in there:
                pod = self._waiting_pod_named(name, node) or placeholder_pod(name, devices)
                self._assume(pod._replace(admitted=True), frozenset({node}), self._now + ASSUMED_POD_LIFETIME_S)

    def _waiting_pod_named(self, name: FullName, node: str) -> Occupant | None:
        """The pod of that name, where it is known to wait for a node and is not expected on another."""
        pod = self._pods.get(self._uids.get(name, ""))
        if pod is None or pod.node is not None:
            return None
        held = self.assumed_pods.get_pod(pod.key)
        return pod.occupant if held is None or node in held.nodes else None

    def _assume(self, pod: Occupant, nodes: AbstractSet[str], until: float) -> None:
        self._mark_dirty((*self.assumed_pods.add_pod(pod, nodes, until), AssumedPod(pod, nodes, until)))

    def _mark_dirty(self, ended: Iterable[AssumedPod]) -> None:
        """The nodes that these are, or were, exact about are to be looked at again."""
        for each in ended:
            if each.is_on_one_node:
                self._dirty |= each.nodes & self._nodes

    def _record_with_assumed(self, name: str, besides: Collection[str] = NO_RESERVATIONS) -> NodeRecord:
        """A node with the pods that are taken to be there. ``besides``: reservations that do not count."""
        record = self._record(name)
        for pod in self.assumed_pods.pods_on(name):
            record = with_pod(record, pod)
        return self.reservations.with_reservations(record, besides)

    def _record(self, name: str) -> NodeRecord:
        return self._records.get(name) or NodeRecord(name, _NO_FACTS)

    def _set_record(self, record: NodeRecord) -> None:
        """Keep what is known of a node, shown or not, as long as that is anything."""
        name, before = record.name, self._record(record.name)
        for pod in before.departed:
            if pod not in record.departed:
                self._ended_at.pop(pod.uid, None)
        self._dirty.add(name)
        parted = self._mismatch_since(before, record)
        if parted != record.parted:
            record = msgspec.structs.replace(record, parted=parted)
        if name in self._nodes or record.pods or record.gpus is not None:
            self._records[name] = record
        else:
            self._records.pop(name, None)
        if record.gpus is not before.gpus or parted != before.parted:
            for at in staleness_changes(record, self._policy):
                if at >= self._now:
                    heapq.heappush(self._stale_at, (at, name))

    def _mismatch_since(self, before: NodeRecord, record: NodeRecord) -> float | None:
        """Since when what the Node carries is not what its ``NodeGpus`` speaks of."""
        if hashes_match(record):
            return None
        same = before.machine.topology_hash == record.machine.topology_hash
        return before.parted if same and before.parted is not None else self._now
