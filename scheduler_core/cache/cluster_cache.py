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
from scheduler_core.cache.assumed_pods import Assumption, Assumptions
from scheduler_core.cache.change_log import Changes
from scheduler_core.cache.events import Batch, GpusSeen, LedgerSeen, NodeSeen, PodSeen, ReservationSeen, ended
from scheduler_core.cache.node import Machine
from scheduler_core.cache.node_record import NodeRecord, with_gpus, with_pod, without_pod
from scheduler_core.cache.node_table import NodeTable, with_records, without_nodes, without_seat
from scheduler_core.cache.owner_pods import Placed
from scheduler_core.cache.placeholder_pods import FullName, alias, full_name, holders, stranger
from scheduler_core.cache.reservations import NOBODY, Reserved
from scheduler_core.cache.staleness import confirms, observed, turning
from scheduler_core.cache.ungated_pods import Ungated
from scheduler_core.policy.policy import Policy

_NOWHERE = Machine(topology=None, described=False, allocatable=())
_KINDS: dict[type[Any], str] = {NodeSeen: "nodes", PodSeen: "pods", GpusSeen: "nodegpus"}
_KEPT: dict[type[Any], str] = {ReservationSeen: RESERVATIONS, LedgerSeen: LEDGERS}
_CLOCKS_DIFFER_S = 10.0  # at most, between a node and here, the time that an agent takes to look included


class Bound(NamedTuple):
    """A pod that got its node."""

    pod: PodSeen
    before: NodeTable  # what was known just before, without what was assumed of the pod


class NodeReport(NamedTuple):
    """A node before and after a PodResources report of its kubelet, assumed pods included."""

    before: NodeRecord
    after: NodeRecord


class News(NamedTuple):
    """What a batch made known that somebody may want to tell of. What the first lists show is no news."""

    bound: tuple[Bound, ...] = ()
    reports: tuple[NodeReport, ...] = ()
    gone: tuple[PodSeen, ...] = ()


class Knowledge:
    """The node table, the pods that want or hold GPUs, and what is assumed of them."""

    def __init__(
        self, policy: Policy, *, reservations: bool = False, bound: bool = True, guarded: bool = False
    ) -> None:
        """``reservations``: what planners keep is shown too, and nothing is known before it was.

        ``bound``: ``take`` answers what was known when a pod was bound, for which the table is worked out each time.

        ``guarded``: only planners can write their annotations on pods (``Ungated``).
        """
        self.changes = Changes()  # of the table, by name
        self.assumptions = Assumptions()
        self._policy = policy
        self._tells = bound
        self._kinds = _KINDS | (_KEPT if reservations else {})
        self._pods: dict[str, PodSeen] = {}
        self.reserved = Reserved(self._pods)
        self._ungated = Ungated(self.reserved, guarded=guarded)
        self._owned: dict[str, set[str]] = {}  # the UIDs of those that one owner made
        self._uids: dict[FullName, str] = {}  # of the pods, by namespace and name
        self._records: dict[str, NodeRecord] = {}  # as observed; also of nodes that were not shown
        self._nodes: set[str] = set()
        self._listed: set[type[Any]] = set()
        self._table = NodeTable()
        self._stirred: set[str] = set()  # nodes whose state is to be worked out again
        self._left: dict[str, float] = {}  # when pods ended that the kubelet may still name, by UID
        self._ageing: list[tuple[float, str]] = []  # a heap: when a node's observation becomes too old
        self._now = 0.0

    @property
    def table(self) -> NodeTable:
        """All nodes as they are taken to be: what was observed, and the pods that are assumed there."""
        if not self._stirred:
            return self._table
        stirred, self._stirred = self._stirred, set()
        gone = [name for name in stirred if name not in self._nodes and name in self._table.records]
        shown = [self._taken(name) for name in stirred if name in self._nodes]
        if gone:
            self._table = without_nodes(self._table, gone)
        if shown:
            self._table = with_records(self._table, shown, self._now, self._policy)
        self.changes.add(stirred)
        return self._table

    def seen_by(self, uid: str) -> NodeTable:
        """The table as that pod sees it: a place that is kept for it does not stand in its way."""
        places = self.reserved.places(uid)
        return without_seat(self.table, uid, places) if places else self.table

    def without(self, reservations: Collection[str]) -> NodeTable:
        """The table as it would be if those reservations, by their UIDs, kept nothing."""
        counting = self.reserved.counting
        nodes = {node for uid in reservations if uid in counting for node in counting[uid].nodes} & self._nodes
        shown = [self._taken(name, reservations) for name in nodes]
        return with_records(self.table, shown, self._now, self._policy) if shown else self.table

    @property
    def pods(self) -> Mapping[str, PodSeen]:
        """All pods that want or hold GPUs, by UID."""
        return MappingProxyType(self._pods)

    def placed(self, owner: str | None) -> list[Placed]:
        """The pods of that owner that are on a node, or are taken to be."""
        found = []
        for uid in self._owned.get(owner or "", ()):
            seen, held = self._pods[uid], self.assumptions.of(uid)
            if seen.node is not None:
                found.append(Placed(seen.node, seen.occupant))
            elif held is not None and held.exact:
                found += [Placed(node, held.pod) for node in held.nodes]
        return found

    def follow(self, policy: Policy) -> None:
        """Judge by another policy when observations are too old."""
        self._policy = policy
        self._ageing = [(at, name) for name, each in self._records.items() for at in turning(each, policy)]
        heapq.heapify(self._ageing)
        self._stirred |= self._nodes

    @property
    def missing(self) -> tuple[str, ...]:
        """What has not been listed yet."""
        return tuple(name for kind, name in self._kinds.items() if kind not in self._listed)

    @property
    def unready(self) -> str | None:
        """Why nothing can be said yet; None: it can."""
        return f"gputopo has not yet listed all {', '.join(self.missing)} of the cluster" if self.missing else None

    @property
    def synced(self) -> bool:
        """Whether there has been a complete list of each kind."""
        return len(self._listed) == len(self._kinds)

    def take(self, batch: Batch[Any], now: float) -> News:
        """Take note of what a watch delivers. ``now``: seconds since 1970, here as everywhere."""
        self.tick(now)
        first = batch.kind not in self._listed
        if batch.complete:
            self._listed.add(batch.kind)
        if batch.kind is PodSeen:
            return self._take_pods(batch, first=first)
        if batch.kind is NodeSeen:
            self._take_nodes(batch)
            return News()
        if batch.kind in _KEPT:
            self._take_kept(batch)
            return News()
        return self._take_words(batch, first=first)

    def ungated_to(self, uid: str) -> str | None:
        """Return the node to which a planner ungated the pod; None where nothing proves that one did."""
        return self._ungated.node_of(uid, self._now)

    def tick(self, now: float) -> None:
        """Let time pass: observations become old, assumptions end."""
        self._now = max(now, self._now)
        self._end(self.assumptions.expire(self._now))
        while self._ageing and self._ageing[0][0] < self._now:
            self._stirred.add(heapq.heappop(self._ageing)[1])

    def assume(self, pod: Occupant, nodes: AbstractSet[str], lifetime_s: float = ASSUMED_POD_LIFETIME_S) -> None:
        """Filter answered those nodes. Nothing is assumed of a pod that has a node."""
        seen = self._pods.get(pod.uid)
        if seen is None or seen.node is None:
            self._assume(pod, nodes, self._now + lifetime_s)

    def forget(self, uid: str) -> None:
        """Filter is asked about that pod again."""
        self._end(self.assumptions.drop(uid))

    def _take_kept(self, batch: Batch[Any]) -> None:
        """What planners keep."""
        reserved = self.reserved
        take = reserved.take_ledgers if batch.kind is LedgerSeen else reserved.take_reservations
        self._stirred |= take(batch) & self._nodes
        left, until = reserved.left(), self._now + ASSUMED_POD_LIFETIME_S
        self._ungated.expect({pod.uid: node for pod, node in left}, self._now, until)
        for pod, node in left:
            held, seen = self.assumptions.of(pod.uid), self._pods.get(pod.uid)
            if seen is not None and seen.nominated == node:  # it comes there, whenever that is
                self._assume(pod, frozenset({node}), inf)
            elif held is None or not held.exact:  # it was let go, and may be there by now
                self._assume(pod, frozenset({node}), until)
        for seen in self._ungated.proved_by(batch, self._pods, self._now):
            self._meet(seen, self._pods[seen.key])

    def _take_pods(self, batch: Batch[PodSeen], *, first: bool) -> News:
        gone = tuple(pod for uid in ended(batch, self._pods) if (pod := self._pods.pop(uid, None)) is not None)
        for uid in batch.gone:
            self._ungated.forget(uid)
        for pod in gone:
            self._part(pod)
        bound: list[Bound] = []
        for pod in (self._ungated.resolve(each, self._now) for each in batch.seen):
            known = self._pods.get(pod.key)
            if known != pod:
                if not first and pod.node is not None and (known is None or known.node is None):
                    self._forget(pod)
                    if self._tells:
                        bound.append(Bound(pod, self.table))
                self._meet(pod, known)
        return News(bound=tuple(bound), gone=gone)

    def _meet(self, pod: PodSeen, known: PodSeen | None) -> None:
        """A pod as it is now."""
        self._pods[pod.key] = pod
        places = self.reserved.places(pod.key) if pod.node is None else self.reserved.arrive(pod.key)
        if places:
            self._stirred |= self._nodes.intersection(places)
        if pod.occupant.owner is not None:
            self._owned.setdefault(pod.occupant.owner, set()).add(pod.key)
        self._uids[full_name(pod.occupant)] = pod.key
        if pod.node is None:
            self._expect(pod, known)
            return
        if known is not None and known.node is not None and known.node != pod.node:  # after a gap of the watch
            self._change(without_pod(self._record(known.node), pod.key))
        self._forget(pod)
        self._change(with_pod(self._record(pod.node), pod.occupant))

    def _part(self, pod: PodSeen) -> None:
        owner = pod.occupant.owner
        if owner is not None:
            self._owned[owner].discard(pod.key)
            if not self._owned[owner]:
                del self._owned[owner]
        name = full_name(pod.occupant)
        if self._uids.get(name) == pod.key:
            del self._uids[name]
        self._forget(pod)
        self._ungated.forget(pod.key)
        self._stirred |= self._nodes.intersection(self.reserved.places(pod.key))
        self.reserved.end(pod.key)
        if pod.node is not None:
            record = without_pod(self._record(pod.node), pod.key)
            if pod.occupant in record.departed:
                self._left[pod.key] = self._now
            self._change(record)

    def _forget(self, pod: PodSeen) -> None:
        self.forget(pod.key)
        self.forget(alias(full_name(pod.occupant)))

    def _expect(self, pod: PodSeen, known: PodSeen | None) -> None:
        """kube-scheduler nominated the pod: it waits for volumes, or for others to be evicted, and will come there.

        Filter's last answer is younger than any nomination to another node. What was refused since is not expected.
        Where a planner let it go its place is kept as long as the reservation counts; it comes there whatever becomes
        of that.
        """
        held = self.assumptions.of(pod.key)
        if (known is not None and known.nominated == pod.nominated) or pod.nominated in self.reserved.places(pod.key):
            return
        if pod.nominated is None:
            if held is not None and held.until == inf:
                self.forget(pod.key)
        elif held is None or held.until == inf or pod.nominated in held.nodes:
            self._assume(pod.occupant, frozenset({pod.nominated}), inf)

    def _take_nodes(self, batch: Batch[NodeSeen]) -> None:
        for name in ended(batch, self._nodes):
            if name in self._nodes:
                self._nodes.remove(name)
                self._change(msgspec.structs.replace(self._record(name), machine=_NOWHERE))
        for node in batch.seen:
            record = self._record(node.key)
            if node.key not in self._nodes or record.machine != node.machine:
                self._nodes.add(node.key)
                self._change(msgspec.structs.replace(record, machine=node.machine))

    def _take_words(self, batch: Batch[GpusSeen], *, first: bool) -> News:
        spoken = {name for name, record in self._records.items() if record.gpus is not None} if batch.complete else ()
        for name in ended(batch, spoken):
            self._change(with_gpus(self._record(name), None))
        reports = [report for word in batch.seen if (report := self._hear(word)) is not None]
        return News(reports=() if first else tuple(reports))

    def _hear(self, word: GpusSeen) -> NodeReport | None:
        """Apply one PodResources report; None where it says nothing new."""
        name = word.key
        if self._record(name).gpus == word.gpus:
            return None
        if PodSeen in self._listed:
            self._adopt(name, word.gpus)
        before = self._taken(name)
        self._change(self._succeeded(with_gpus(self._record(name), word.gpus)))
        return NodeReport(before, self._taken(name))

    def _succeeded(self, record: NodeRecord) -> NodeRecord:
        """Without the departed whose name a living pod bears, once the word is surely younger than their end."""
        living = {full_name(pod) for pod in record.pods if pod.admitted}
        spoken = -inf if record.gpus is None else observed(record.gpus)
        departed = tuple(
            pod
            for pod in record.departed
            if full_name(pod) not in living or spoken <= self._left.get(pod.uid, inf) + _CLOCKS_DIFFER_S
        )
        return msgspec.structs.replace(record, departed=departed)

    def _adopt(self, node: str, gpus: NodeGpus) -> None:
        """Pods that the kubelet names and the pods' watch has not shown there: for a while they are taken to be there.

        Where it never shows them they have gone, and the word is old.
        """
        record = self._record(node)
        there = {full_name(pod) for pod in (*record.pods, *record.departed, *self.assumptions.on(node))}
        there |= holders(record.gpus).keys()
        for name, devices in holders(gpus).items():
            if name not in there:
                pod = self._named(name, node) or stranger(name, devices)
                self._assume(pod._replace(admitted=True), frozenset({node}), self._now + ASSUMED_POD_LIFETIME_S)

    def _named(self, name: FullName, node: str) -> Occupant | None:
        """The pod of that name, where it is known to wait for a node and is not expected on another."""
        pod = self._pods.get(self._uids.get(name, ""))
        if pod is None or pod.node is not None:
            return None
        held = self.assumptions.of(pod.key)
        return pod.occupant if held is None or node in held.nodes else None

    def _assume(self, pod: Occupant, nodes: AbstractSet[str], until: float) -> None:
        self._end((*self.assumptions.assume(pod, nodes, until), Assumption(pod, nodes, until)))

    def _end(self, ended: Iterable[Assumption]) -> None:
        """The nodes that these are, or were, exact about are to be looked at again."""
        for each in ended:
            if each.exact:
                self._stirred |= each.nodes & self._nodes

    def _taken(self, name: str, besides: Collection[str] = NOBODY) -> NodeRecord:
        """A node with the pods that are taken to be there. ``besides``: reservations that do not count."""
        record = self._record(name)
        for pod in self.assumptions.on(name):
            record = with_pod(record, pod)
        return self.reserved.occupied(record, besides)

    def _record(self, name: str) -> NodeRecord:
        return self._records.get(name) or NodeRecord(name, _NOWHERE)

    def _change(self, record: NodeRecord) -> None:
        """Keep what is known of a node, shown or not, as long as that is anything."""
        name, before = record.name, self._record(record.name)
        for pod in before.departed:
            if pod not in record.departed:
                self._left.pop(pod.uid, None)
        self._stirred.add(name)
        parted = self._parted(before, record)
        if parted != record.parted:
            record = msgspec.structs.replace(record, parted=parted)
        if name in self._nodes or record.pods or record.gpus is not None:
            self._records[name] = record
        else:
            self._records.pop(name, None)
        if record.gpus is not before.gpus or parted != before.parted:
            for at in turning(record, self._policy):
                if at >= self._now:
                    heapq.heappush(self._ageing, (at, name))

    def _parted(self, before: NodeRecord, record: NodeRecord) -> float | None:
        """Since when what the Node carries is not what its ``NodeGpus`` speaks of."""
        if confirms(record):
            return None
        same = before.machine.topology_hash == record.machine.topology_hash
        return before.parted if same and before.parted is not None else self._now
