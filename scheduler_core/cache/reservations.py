"""The reservations that ledgers list, by node: GPUs reserved by planners for pods that are not bound yet. Pure.

A ledger entry is active only while its reservation exists with the same UID and hash, so the watches may show them in
any order. An update costs the entries that changed: never all entries, never all nodes.

A seat is used up once its pod is bound. A capacity hold, for a gang that does not fit yet, has no pods: it takes the
free devices of a node, up to a number. Pods of a higher priority than its gang ignore it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import msgspec

from gputopo.crd.reservations import EntryPhase, HeldCapacity, LedgerEntry, PlannedMember, ReservationState
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch, LedgerUpdate, PodUpdate, ReservationUpdate, removed_keys
from scheduler_core.cache.node_record import NodeRecord, hold_uid, with_pod
from scheduler_core.cache.placeholder_pods import unknown_pod
from scheduler_core.request.pod import PinClaim

S = TypeVar("S", LedgerUpdate, ReservationUpdate)
NO_RESERVATIONS: frozenset[str] = frozenset()


class ActiveReservation(NamedTuple):
    """A reservation that a ledger lists."""

    entry: LedgerEntry
    ledger: str
    reservation: ReservationUpdate

    @property
    def seats(self) -> tuple[PlannedMember, ...]:
        """The seats that take GPUs; none in a capacity hold."""
        if self.entry.phase is EntryPhase.HELD:
            return ()
        return tuple(seat for seat in self.reservation.spec.seats if seat.node is not None and seat.gpus)

    @property
    def holdings(self) -> tuple[HeldCapacity, ...]:
        """The devices held on each node, in a capacity hold."""
        return self.reservation.spec.held if self.entry.phase is EntryPhase.HELD else ()

    @property
    def nodes(self) -> set[str]:
        """The nodes on which it takes devices."""
        return {seat.node for seat in self.seats if seat.node is not None} | {each.node for each in self.holdings}


class ReservationIndex:
    """All reservations and ledgers, and the active reservations by node."""

    def __init__(self, pods: Mapping[str, PodUpdate]) -> None:
        """Create an empty index. ``pods``: a live view of all pods that request or hold GPUs, by UID."""
        self._pods = pods
        self._ledgers: dict[str, LedgerUpdate] = {}
        self._reservations: dict[str, ReservationUpdate] = {}
        self._entries: dict[str, tuple[LedgerEntry, str]] = {}  # with the ledger; by UID of the reservation
        self._active: dict[str, ActiveReservation] = {}
        self._uids_by_name: dict[str, set[str]] = {}  # name -> UIDs of reservations, in any namespace
        self._nodes_by_reservation: dict[str, dict[str, str | None]] = {}  # reservation -> pod -> node; a cache
        self._active_by_node: dict[str, set[str]] = {}  # node -> active reservations
        self._seats: dict[tuple[str, str], list[PlannedMember]] = {}  # by node and reservation
        self._holdings: dict[tuple[str, str], Counter[str]] = {}  # held devices, by node and reservation
        self._hold_priorities: dict[str, int] = {}  # of active capacity holds
        self._nodes_by_pod: dict[str, dict[str, str]] = {}  # pod -> reservation -> node
        self._bound: set[str] = set()  # pods with seats that are bound
        self._ended: set[str] = set()  # pods with seats that were shown and have ended
        self._unbound: list[tuple[Occupant, str]] = []

    @property
    def ledgers(self) -> Mapping[str, LedgerUpdate]:
        """All ledgers, by name."""
        return MappingProxyType(self._ledgers)

    @property
    def reservations(self) -> Mapping[str, ReservationUpdate]:
        """All reservations, active or not, by UID."""
        return MappingProxyType(self._reservations)

    @property
    def active(self) -> Mapping[str, ActiveReservation]:
        """The active reservations, by UID."""
        return MappingProxyType(self._active)

    @property
    def reserved_nodes(self) -> AbstractSet[str]:
        """The names of the nodes on which active reservations take devices, or did until all their pods were bound."""
        return self._active_by_node.keys()

    @property
    def unmatched_entries(self) -> Iterator[LedgerEntry]:
        """The ledger entries without a reservation of the same UID and hash."""
        return (entry for uid, (entry, _) in self._entries.items() if uid not in self._active)

    def apply_reservations(self, batch: Batch[ReservationUpdate]) -> set[str]:
        """Apply a batch of reservations. Return the nodes on which active reservations changed."""
        for uid in removed_keys(batch, self._reservations):
            self._nodes_by_reservation.pop(uid, None)
            if (known := self._reservations.get(uid)) is not None:
                self._uids_by_name[known.name].discard(uid)
                if not self._uids_by_name[known.name]:
                    del self._uids_by_name[known.name]
        for each in batch.updates:
            self._nodes_by_reservation.pop(each.key, None)
            self._uids_by_name.setdefault(each.name, set()).add(each.key)
        return self._update_active(_apply(self._reservations, batch))

    def apply_ledgers(self, batch: Batch[LedgerUpdate]) -> set[str]:
        """Apply a batch of ledgers. Return the nodes on which active reservations changed."""
        _apply(self._ledgers, batch)
        before = self._entries
        self._entries = {
            entry.uid: (entry, ledger.key) for ledger in self._ledgers.values() for entry in ledger.spec.entries
        }
        known = before.keys() | self._entries.keys()
        return self._update_active(uid for uid in known if before.get(uid) != self._entries.get(uid))

    def mark_bound(self, uid: str) -> Collection[str]:
        """Record that the pod is bound, to whatever node. Return the nodes on which it has a seat."""
        places = self._nodes_by_pod.get(uid)
        if places is None:
            return ()
        self._bound.add(uid)
        return places.values()

    def mark_ended(self, uid: str) -> None:
        """Record that the pod has ended."""
        if uid in self._nodes_by_pod:
            self._ended.add(uid)

    def pop_unbound_pods(self) -> list[tuple[Occupant, str]]:
        """Return, once each, the unbound pods of reservations that are no longer active, with their nodes.

        The pod watch may be late to show their binding. Of the pods of proposed reservations only those that were
        ungated before are returned: their plan was proposed again.
        """
        found, self._unbound = self._unbound, []
        return found

    def nodes_for(self, uid: str) -> Collection[str]:
        """Return the nodes with a seat for this unbound pod: mostly none, and at most one unless planners err."""
        places = self._nodes_by_pod.get(uid)
        return () if places is None or uid in self._bound else places.values()

    def nodes_of(self, uids: Iterable[str]) -> set[str]:
        """Return the nodes on which active reservations take devices."""
        return {node for uid in uids if uid in self._active for node in self._active[uid].nodes}

    def holds_below(self, priority: int) -> frozenset[str]:
        """Return the UIDs of capacity holds that a pod of this priority ignores: their gangs have a lower priority."""
        return frozenset(uid for uid, own in self._hold_priorities.items() if own < priority)

    def lists_pod(self, uid: str, claim: PinClaim) -> bool:
        """Return whether an active reservation, or the one that the claim names, lists the pod for the node."""
        if claim.node in self._nodes_by_pod.get(uid, {}).values():
            return True
        return any(self._naming(uid, claim))

    def has_failed(self, uid: str, claim: PinClaim) -> bool:
        """Return whether the reservation that the claim names, and that lists the pod for the node, has failed."""
        states = [each.status.state for each in self._naming(uid, claim)]
        return bool(states) and all(each is ReservationState.FAILED for each in states)

    def _naming(self, uid: str, claim: PinClaim) -> Iterator[ReservationUpdate]:
        """Yield the reservations of the claim's name that list the pod for the node."""
        for each in self._uids_by_name.get(claim.reservation, ()):
            if self._nodes_of(each).get(uid) == claim.node:
                yield self._reservations[each]

    def has_name(self, namespace: str, name: str) -> bool:
        """Return whether a reservation of that name exists, active or not."""
        return any(self._reservations[uid].namespace == namespace for uid in self._uids_by_name.get(name, ()))

    def _nodes_of(self, reservation: str) -> Mapping[str, str | None]:
        """Return the node of each pod that the reservation lists."""
        if reservation not in self._nodes_by_reservation:
            self._nodes_by_reservation[reservation] = {
                seat.uid: seat.node for seat in self._reservations[reservation].spec.seats
            }
        return self._nodes_by_reservation[reservation]

    def with_reservations(self, record: NodeRecord, excluded: Collection[str] = NO_RESERVATIONS) -> NodeRecord:
        """Return the record with the pods and devices reserved on the node. ``excluded``: UIDs of reservations."""
        on_node = self._active_by_node.get(record.name)
        active = () if on_node is None else sorted(on_node.difference(excluded))
        if not active:
            return record
        present, reserved = {pod.uid for pod in record.pods}, list[str]()
        held = Counter[str]()
        for uid in active:
            for seat in self._seats.get((record.name, uid), ()):
                if seat.uid not in self._bound:
                    reserved.append(seat.uid)
                    if seat.uid not in present:
                        record = with_pod(record, self._occupant(seat, self._active[uid]))
            held.update(self._holdings.get((record.name, uid), ()))
        free = held & _free_devices(record) if held else held
        if free:
            reserved.append(hold_uid(record.name))
            record = with_pod(record, unknown_pod(reserved[-1], "", "", sorted(free.items())))
        return msgspec.structs.replace(record, reserved=tuple(sorted(reserved))) if reserved else record

    def _occupant(self, seat: PlannedMember, active: ActiveReservation) -> Occupant:
        """Return the pod of a seat; a placeholder with the seat's devices where the pod is not known."""
        pod = self._pods.get(seat.uid)
        if pod is not None:
            return pod.occupant
        return unknown_pod(seat.uid, active.reservation.namespace, seat.name, seat.gpus)

    def _update_active(self, uids: Iterable[str]) -> set[str]:
        changed: set[str] = set()
        for uid in tuple(uids):
            before, after = self._active.pop(uid, None), self._active_reservation(uid)
            if after is not None:
                self._active[uid] = after
            if before is not None and after is not None and _reserve_the_same(before, after):
                continue
            if before is not None:
                if after is None:
                    self._unbound += self._unbound_pods(before)
                changed |= self._deactivate(before)
            if after is not None:
                changed |= self._activate(after)
        return changed

    def _active_reservation(self, uid: str) -> ActiveReservation | None:
        reservation, (entry, ledger) = self._reservations.get(uid), self._entries.get(uid, (None, ""))
        if reservation is None or entry is None or entry.hash != reservation.hash:
            return None
        return ActiveReservation(entry, ledger, reservation)

    def _activate(self, active: ActiveReservation) -> set[str]:
        uid, nodes = active.entry.uid, active.nodes
        for node in nodes:
            self._active_by_node.setdefault(node, set()).add(uid)
        if active.holdings:
            self._hold_priorities[uid] = active.reservation.spec.priority
        for each in active.holdings:
            self._holdings.setdefault((each.node, uid), Counter())[each.resource] += each.gpus
        for seat in active.seats:
            assert seat.node is not None  # of ``seats``
            self._seats.setdefault((seat.node, uid), []).append(seat)
            self._nodes_by_pod.setdefault(seat.uid, {})[uid] = seat.node
            pod = self._pods.get(seat.uid)
            if pod is not None and pod.node is not None:
                self._bound.add(seat.uid)
        return nodes

    def _unbound_pods(self, active: ActiveReservation) -> Iterator[tuple[Occupant, str]]:
        committed = active.entry.phase is EntryPhase.COMMITTED
        for seat in active.seats:
            if seat.node is None or seat.uid in self._bound or seat.uid in self._ended:
                continue
            pod = self._pods.get(seat.uid)
            if committed or (pod is not None and pod.claim is not None and pod.nominated_node == seat.node):
                yield self._occupant(seat, active), seat.node

    def _deactivate(self, active: ActiveReservation) -> set[str]:
        uid, nodes = active.entry.uid, active.nodes
        self._hold_priorities.pop(uid, None)
        for node in nodes:
            self._active_by_node[node].discard(uid)
            if not self._active_by_node[node]:
                del self._active_by_node[node]
            self._seats.pop((node, uid), None)
            self._holdings.pop((node, uid), None)
        for seat in active.seats:
            nodes_of_pod = self._nodes_by_pod.get(seat.uid, {})
            nodes_of_pod.pop(uid, None)
            if not nodes_of_pod:
                self._nodes_by_pod.pop(seat.uid, None)
                self._bound.discard(seat.uid)
                self._ended.discard(seat.uid)
        return nodes


def _apply(known: dict[str, S], batch: Batch[S]) -> set[str]:
    """Apply a batch to a mapping. Return the keys that it updates or removes."""
    removed = removed_keys(batch, known)
    for key in removed:
        known.pop(key, None)
    updated = {each.key: each for each in batch.updates}
    known.update(updated)
    return removed | updated.keys()


def _reserve_the_same(one: ActiveReservation, other: ActiveReservation) -> bool:
    """Return whether both reserve the same devices, as when a proposal is committed."""
    is_hold = one.entry.phase is EntryPhase.HELD
    return one.entry.hash == other.entry.hash and is_hold is (other.entry.phase is EntryPhase.HELD)


def _free_devices(record: NodeRecord) -> Counter[str]:
    """Return the healthy devices of each resource that no pod has."""
    free = Counter(dict(record.machine.allocatable))
    for pod in record.pods:
        free.subtract(dict(pod.profile.device_request.totals))
    return +free
