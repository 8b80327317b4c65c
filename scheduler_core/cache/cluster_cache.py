"""The cluster cache: merge the updates of the watches and the pods that Filter assigned into the next ``Snapshot``.

Only the event loop's thread calls it, so there are no locks. The watches deliver nodes, pods and PodResources reports
in any order, and after a gap all at once. Therefore observations of a node are kept even while the node watch does not
show the node, and a pod that only a report names is assumed on the node until the pod watch has had time to show it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from math import inf
from types import MappingProxyType
from typing import Any

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from gputopo.crd.reservations import LEDGERS, RESERVATIONS
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import AssumedPod, AssumedPods
from scheduler_core.cache.change_log import ChangeLog
from scheduler_core.cache.domain_index import DomainIndex
from scheduler_core.cache.events import (
    Batch,
    BoundPod,
    CacheChanges,
    HeartbeatUpdate,
    LedgerUpdate,
    NodeGpusUpdate,
    NodeUpdate,
    PodUpdate,
    ReportedNode,
    ReservationUpdate,
    pieces,
    removed_keys,
)
from scheduler_core.cache.heartbeats import HeartbeatJoin
from scheduler_core.cache.kubelet_reports import newly_named_pods, without_replaced_pods, without_settled_pods
from scheduler_core.cache.node_record import NodeRecord, with_gpus, with_pod, without_pod, without_pods
from scheduler_core.cache.node_records import NO_FACTS, NodeRecords
from scheduler_core.cache.node_state import is_changed_by_time
from scheduler_core.cache.node_table import (
    ClusterSnapshot,
    with_changed_records,
    with_records,
    without_nodes,
    without_own_reservation,
)
from scheduler_core.cache.owner_pods import PlacedPod
from scheduler_core.cache.placeholder_pods import full_name, placeholder_pod, placeholder_uid, unnamed_placeholders
from scheduler_core.cache.pod_index import JobMember, PodIndex
from scheduler_core.cache.reservations import NO_RESERVATIONS, ReservationIndex
from scheduler_core.cache.ungated_pods import UngatedPods
from scheduler_core.policy.policy import Policy

_PIECE = 4  # objects of a batch that are applied at once
_KINDS: dict[type[Any], str] = {NodeUpdate: "nodes", PodUpdate: "pods", NodeGpusUpdate: "nodegpus"}
_HEARTBEAT_KINDS: dict[type[Any], str] = {HeartbeatUpdate: "leases"}
_RESERVATION_KINDS: dict[type[Any], str] = {ReservationUpdate: RESERVATIONS, LedgerUpdate: LEDGERS}


class ClusterCache:
    """The snapshot of nodes, the pods that request or hold GPUs, the assumed pods, and the reservations."""

    def __init__(
        self,
        policy: Policy,
        *,
        heartbeats: bool = False,
        reservations: bool = False,
        report_bound_pods: bool = True,
        guarded: bool = False,
    ) -> None:
        """Create an empty cache.

        ``heartbeats``: the Leases of agents are watched too; the cache is not ready before their list.
        ``reservations``: planners' reservations and ledgers are watched too; the cache is not ready before their lists.
        ``report_bound_pods``: ``apply_batch`` returns bound pods, which costs a snapshot for each.
        ``guarded``: only planners can write their annotations on pods (see ``UngatedPods``).
        """
        self.change_log = ChangeLog()  # names of nodes whose state may have changed in the snapshot
        self.assumed_pods = AssumedPods()
        self.domains = DomainIndex()  # of the nodes that the node watch shows
        self._policy = policy
        self._reports_bound = report_bound_pods
        self._kinds = _KINDS | (_HEARTBEAT_KINDS if heartbeats else {}) | (_RESERVATION_KINDS if reservations else {})
        self._listed: set[type[Any]] = set()
        self._pod_index = PodIndex()
        self._pods = self._pod_index.by_uid
        self.reservations = ReservationIndex(self._pods)
        self._ungated = UngatedPods(self.reservations, guarded=guarded)
        self._records = NodeRecords(policy)
        self._heartbeats = HeartbeatJoin()
        self._record, self._nodes = self._records.record_of, self._records.shown
        self._snapshot = ClusterSnapshot()
        self._without: tuple[ClusterSnapshot, frozenset[str], ClusterSnapshot] | None = None  # cache
        self._dirty: set[str] = set()  # nodes whose state must be derived again
        self._now = 0.0

    @property
    def snapshot(self) -> ClusterSnapshot:
        """All nodes: what was observed, with assumed pods and reservations."""
        if not self._dirty:
            return self._snapshot
        dirty, self._dirty = self._dirty, set()
        if gone := [name for name in dirty if name not in self._nodes and name in self._snapshot.records]:
            self._snapshot = without_nodes(self._snapshot, gone)
        if shown := [self._record_with_assumed(name) for name in dirty if name in self._nodes]:
            self._snapshot = with_records(self._snapshot, shown, self._now, self._policy)
        self.change_log.add_names(dirty)
        return self._snapshot

    def snapshot_for_pod(self, uid: str, ignored: Collection[str] = ()) -> ClusterSnapshot:
        """Return the snapshot without what is reserved for this pod; else without the ``ignored`` reservations."""
        nodes = self.reservations.nodes_for(uid)
        if nodes:
            return without_own_reservation(self.snapshot, uid, nodes)
        return self.snapshot_without(ignored) if ignored else self.snapshot

    def snapshot_without(self, reservations: Collection[str]) -> ClusterSnapshot:
        """Return the snapshot without these reservations, given by their UIDs."""
        snapshot, uids = self.snapshot, frozenset(reservations)
        if self._without is None or self._without[0] is not snapshot or self._without[1] != uids:
            nodes = self.reservations.nodes_of(uids) & self._nodes
            records = [self._record_with_assumed(name, uids) for name in nodes]
            found = with_records(snapshot, records, self._now, self._policy) if records else snapshot
            self._without = snapshot, uids, found
        return self._without[2]

    def snapshot_after(
        self, ended: Mapping[str, Collection[str]], uid: str, ignored: Collection[str] = ()
    ) -> ClusterSnapshot:
        """Return the snapshot for a pod as it will be when these pods (UIDs by node) have ended, before any report.

        Capacity holds take what the pods leave, except the ``ignored`` ones. The pod itself counts nowhere.
        """
        records = []
        for name in self._nodes.intersection(ended):
            record = without_pods(self._record(name), ended[name])
            for pod in self.assumed_pods.pods_on(name):
                record = record if pod.uid == uid else with_pod(record, pod)
            records.append(self.reservations.with_reservations(record, ignored))
        table = with_changed_records(self.snapshot, records)
        return without_own_reservation(table, uid, self.reservations.nodes_for(uid))

    @property
    def pods(self) -> Mapping[str, PodUpdate]:
        """All pods that request or hold GPUs, by UID."""
        return MappingProxyType(self._pods)

    def placed_siblings_of(self, request: JobMember) -> list[PlacedPod]:
        """Return the pods of the same owner or job that are bound to a node, or assumed to be on one."""
        found = []
        for pod in self._pod_index.siblings_of(request):
            if pod.node is not None:
                found.append(PlacedPod(pod.node, pod.occupant))
            elif (assumed := self.assumed_pods.get_pod(pod.key)) is not None and assumed.is_on_one_node:
                found += [PlacedPod(node, assumed.pod) for node in assumed.nodes]
        return found

    def set_policy(self, policy: Policy) -> None:
        """Apply another policy to the age of observations."""
        self._policy = policy
        self._records.set_policy(policy, self._now)
        self._dirty |= self._nodes

    @property
    def missing_kinds(self) -> tuple[str, ...]:
        """The kinds of objects that have not been listed yet."""
        return tuple(name for kind, name in self._kinds.items() if kind not in self._listed)

    @property
    def not_ready_reason(self) -> str | None:
        """Why the cache cannot be used yet; None: it can."""
        missing = ", ".join(self.missing_kinds)
        return f"gputopo has not yet listed all {missing} of the cluster" if missing else None

    @property
    def synced(self) -> bool:
        """True if every kind has been listed once."""
        return len(self._listed) == len(self._kinds)

    def split_batch(self, batch: Batch[Any]) -> Iterator[Batch[Any]]:
        """Yield batches of a few objects which together change the same, to be applied one after the other.

        A list is compared with the known objects when the first batch is requested. First lists, which decide when the
        cache is ready, and the few objects of planners stay whole.
        """
        if batch.kind not in _KINDS | _HEARTBEAT_KINDS or batch.kind not in self._listed:
            yield batch
            return
        removed = removed_keys(batch, self._known_keys(batch.kind)) if batch.is_full_list else batch.removed
        yield from (Batch(batch.kind, (), keys) for keys in pieces(removed, _PIECE))
        yield from (Batch(batch.kind, updates) for updates in pieces(batch.updates, _PIECE))

    def _known_keys(self, kind: type[Any]) -> Collection[str]:
        known = {NodeUpdate: self._nodes, PodUpdate: self._pods, HeartbeatUpdate: self._heartbeats.nodes}
        return known[kind] if kind in known else self._records.names_with_reports()

    def apply_batch(self, batch: Batch[Any], now: float) -> CacheChanges:
        """Apply a batch of updates from a watch. ``now``: seconds since 1970, as in all methods."""
        self.advance_time(now)
        first = batch.kind not in self._listed
        if batch.is_full_list:
            self._listed.add(batch.kind)
        if batch.kind is PodUpdate:
            return self._apply_pods(batch, first=first)
        if batch.kind is NodeGpusUpdate:
            return self._apply_kubelet_reports(self._heartbeats.apply_reports(batch), first=first)
        if batch.kind is HeartbeatUpdate:
            return self._apply_kubelet_reports(self._heartbeats.apply_heartbeats(batch), first=first)
        if batch.kind is NodeUpdate:
            self._apply_nodes(batch)
        else:
            self._apply_planner_objects(batch)
        return CacheChanges()

    def ungated_to(self, uid: str) -> str | None:
        """Return the node to which a planner ungated the pod; None where nothing proves that it did."""
        return self._ungated.node_of(uid, self._now)

    def advance_time(self, now: float) -> None:
        """Advance the clock: observations become stale, assumed pods expire."""
        self._now = max(now, self._now)
        self._mark_dirty(self.assumed_pods.expire_pods(self._now))
        for uid, name in self._records.ended_pods.pop_due(self._now):
            self._set_record(without_settled_pods(self._record(name), {uid}))
        for name in self._records.pop_due(self._now):
            state = self._snapshot.states.get(name)
            if state is None or is_changed_by_time(state, self._record(name), self._now, self._policy):
                self._dirty.add(name)

    def assume_pod(self, pod: Occupant, nodes: AbstractSet[str], lifetime_s: float = ASSUMED_POD_LIFETIME_S) -> None:
        """Assume the pod on one of the nodes that Filter returned. A bound pod is not assumed anywhere."""
        known = self._pods.get(pod.uid)
        if known is None or known.node is None:
            self._assume_on(pod, nodes, self._now + lifetime_s)

    def forget_assumed_pod(self, uid: str) -> None:
        """Drop what is assumed of the pod, as when Filter is called for it again."""
        self._mark_dirty(self.assumed_pods.drop_pod(uid))

    def _apply_planner_objects(self, batch: Batch[Any]) -> None:
        """Apply reservations or ledgers."""
        index = self.reservations
        apply = index.apply_ledgers if batch.kind is LedgerUpdate else index.apply_reservations
        self._dirty |= apply(batch) & self._nodes
        unbound, until = index.pop_unbound_pods(), self._now + ASSUMED_POD_LIFETIME_S
        self._ungated.remember_unlisted({pod.uid: node for pod, node in unbound}, self._now, until)
        for pod, node in unbound:
            assumed, known = self.assumed_pods.get_pod(pod.uid), self._pods.get(pod.uid)
            if known is not None and known.nominated_node == node:  # it will be bound there, however late
                self._assume_on(pod, frozenset({node}), inf)
            elif assumed is None or not assumed.is_on_one_node:  # it was ungated, and may be bound there by now
                self._assume_on(pod, frozenset({node}), until)
        for pod_update in self._ungated.changed_by(batch, self._pods, self._now):
            self._update_pod(pod_update, self._pods[pod_update.key])

    def _apply_pods(self, batch: Batch[PodUpdate], *, first: bool) -> CacheChanges:
        uids = removed_keys(batch, self._pods)
        removed = self._pod_index.pop_pods(uids)
        for uid in uids:  # also of pods that were created and deleted within the batch
            self._ungated.forget_pod(uid)
            self._mark_dirty(self.assumed_pods.delete_pod(uid))
        for pod in removed:
            self._remove_pod(pod)
        bound: list[BoundPod] = []
        for pod in (self._ungated.resolve(each, self._now) for each in batch.updates):
            known = self._pods.get(pod.key)
            if known is not None and known != pod and known._replace(running=pod.running) == pod:
                self._pod_index.add_pod(pod)  # its node stays as it is
            elif known != pod:
                if not first and pod.node is not None and (known is None or known.node is None):
                    self._forget_assumed(pod)
                    if self._reports_bound:
                        bound.append(BoundPod(pod, self.snapshot))
                self._update_pod(pod, known)
        return CacheChanges(bound_pods=tuple(bound), removed_pods=removed)

    def _update_pod(self, pod: PodUpdate, known: PodUpdate | None) -> None:
        """Apply a new or changed pod. ``known``: the pod before."""
        self._pod_index.add_pod(pod)
        index = self.reservations
        reserved_on = index.nodes_for(pod.key) if pod.node is None else index.mark_bound(pod.key)
        self._dirty |= self._nodes.intersection(reserved_on)
        if pod.node is None:
            self._assume_nominated(pod, known)
            return
        if known is not None and known.node is not None and known.node != pod.node:  # possible after a watch gap
            self._set_record(without_pod(self._record(known.node), pod.key))
        self._forget_assumed(pod)
        self._set_record(with_pod(self._record(pod.node), pod.occupant))

    def _remove_pod(self, pod: PodUpdate) -> None:
        self.forget_assumed_pod(placeholder_uid(full_name(pod.occupant)))
        self._dirty |= self._nodes.intersection(self.reservations.nodes_for(pod.key))
        self.reservations.mark_ended(pod.key)
        if pod.node is not None:
            record = without_pod(self._record(pod.node), pod.key)
            if pod.occupant in record.departed:
                self._records.ended_pods.add_pod(pod.key, pod.node, self._now)
            self._set_record(record)

    def _forget_assumed(self, pod: PodUpdate) -> None:
        self.forget_assumed_pod(pod.key)
        self.forget_assumed_pod(placeholder_uid(full_name(pod.occupant)))

    def _assume_nominated(self, pod: PodUpdate, known: PodUpdate | None) -> None:
        """Assume an unbound pod on its nominated node: it waits there for volumes, or for evictions.

        A nomination to a node that Filter has rejected since is ignored: Filter's last answer is younger. Where a
        reservation of the pod counts on the node, the reservation keeps the capacity, and nothing is assumed.
        """
        node = pod.nominated_node
        assumed = self.assumed_pods.get_pod(pod.key)
        if (known is not None and known.nominated_node == node) or node in self.reservations.nodes_for(pod.key):
            return
        if node is None:
            if assumed is not None and assumed.expires_at == inf:
                self._end_nomination(pod, assumed)
        elif assumed is None or assumed.expires_at == inf or node in assumed.nodes:
            self._assume_on(pod.occupant, frozenset({node}), inf)

    def _end_nomination(self, pod: PodUpdate, assumed: AssumedPod) -> None:
        """Stop assuming the pod; if its claim counts no more, only when no binding can be under way."""
        if pod.claim is None:
            self.forget_assumed_pod(pod.key)
        else:
            until = max(self._now + ASSUMED_POD_LIFETIME_S, assumed.admitted_until)
            self._assume_on(pod.occupant, assumed.nodes, until)

    def _apply_nodes(self, batch: Batch[NodeUpdate]) -> None:
        for name in removed_keys(batch, self._nodes):
            if name in self._nodes:
                self._nodes.remove(name)
                self.domains.set_node(name, None)
                self._set_record(msgspec.structs.replace(self._record(name), machine=NO_FACTS))
        for node in batch.updates:
            record = self._record(node.key)
            if node.key not in self._nodes or record.machine != node.facts:
                self._nodes.add(node.key)
                self.domains.set_node(node.key, node.facts)
                self._set_record(msgspec.structs.replace(record, machine=node.facts))

    def _apply_kubelet_reports(self, batch: Batch[NodeGpusUpdate], *, first: bool) -> CacheChanges:
        # Only a full list needs all records: there are thousands of nodes, and as many reports a minute.
        known = self._known_keys(NodeGpusUpdate) if batch.is_full_list else ()
        for name in removed_keys(batch, known):
            self._set_record(with_gpus(self._record(name), None))
        reports = [report for each in batch.updates if (report := self._apply_kubelet_report(each)) is not None]
        return CacheChanges(kubelet_reports=() if first else tuple(reports))

    def _apply_kubelet_report(self, update: NodeGpusUpdate) -> ReportedNode | None:
        """Apply one PodResources report; return None where it is unchanged."""
        name = update.key
        if self._record(name).gpus == update.gpus:
            return None
        if PodUpdate in self._listed:
            self._assume_named_pods(name, update.gpus)
        before = self._record_with_assumed(name)
        record = with_gpus(self._record(name), update.gpus)
        self._set_record(without_replaced_pods(record, self._records.ended_pods.ended_at))
        return ReportedNode(before, self._record_with_assumed(name))

    def _assume_named_pods(self, node: str, gpus: NodeGpus) -> None:
        """Assume for a while the pods that a report names and the pod watch has not shown on the node.

        Where the watch never shows them, they have ended and the report is old.
        """
        for uid in unnamed_placeholders(self.assumed_pods.pods_on(node), gpus):
            self.forget_assumed_pod(uid)
        until = self._now + ASSUMED_POD_LIFETIME_S
        for name, devices in list(newly_named_pods(self._record(node), self.assumed_pods.pods_on(node), gpus)):
            pod = self.assumed_pods.waiting_pod(self._pod_index.named(name), node) or placeholder_pod(name, devices)
            self._assume_on(pod._replace(admitted=True), frozenset({node}), until)

    def _assume_on(self, pod: Occupant, nodes: AbstractSet[str], until: float) -> None:
        if self.assumed_pods.was_deleted(pod.uid) and pod.uid not in self._pods:
            return
        self._mark_dirty((*self.assumed_pods.add_pod(pod, nodes, until), AssumedPod(pod, nodes, until)))

    def _mark_dirty(self, changed: Iterable[AssumedPod]) -> None:
        """Mark the nodes of pods that are, or were, assumed on one node: other assumed pods change no state."""
        for each in changed:
            if each.is_on_one_node:
                self._dirty |= each.nodes & self._nodes

    def _record_with_assumed(self, name: str, excluded: Collection[str] = NO_RESERVATIONS) -> NodeRecord:
        """Return the record of a node with assumed pods and reservations. ``excluded``: UIDs of reservations."""
        record = self._record(name)
        for pod in self.assumed_pods.pods_on(name):
            record = with_pod(record, pod)
        return self.reservations.with_reservations(record, excluded)

    def _set_record(self, record: NodeRecord) -> None:
        self._dirty.add(record.name)
        self._records.set_record(record, self._now)
