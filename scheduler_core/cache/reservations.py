"""What planners keep for pods that are not on their nodes yet: reservations that a ledger lists, node by node. Pure.

An entry of a ledger counts only while its reservation is there, with that UID and hash; so either may be shown first.
What counts changes by whole entries, and costs what these hold: never all entries, never all nodes.

A seat is used up once its pod was seen on a node. What is held for a gang that does not fit yet has no pods: it takes
of a node what nobody else has, up to a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import msgspec

from gputopo.crd.reservations import EntryPhase, Holding, LedgerEntry, Seat
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch, LedgerUpdate, PodUpdate, ReservationUpdate, removed_keys
from scheduler_core.cache.node_record import NodeRecord, hold_uid, with_pod
from scheduler_core.cache.placeholder_pods import unknown_pod
from scheduler_core.request.pod import PinClaim

S = TypeVar("S", LedgerUpdate, ReservationUpdate)
NO_RESERVATIONS: frozenset[str] = frozenset()


class ActiveReservation(NamedTuple):
    """A reservation that counts."""

    entry: LedgerEntry
    ledger: str
    reservation: ReservationUpdate

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Those that take GPUs; none while room is only held."""
        if self.entry.phase is EntryPhase.HELD:
            return ()
        return tuple(seat for seat in self.reservation.spec.seats if seat.node is not None and seat.gpus)

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """How many of the devices of which nodes are held."""
        return self.reservation.spec.held if self.entry.phase is EntryPhase.HELD else ()

    @property
    def nodes(self) -> set[str]:
        """Those on which it counts."""
        return {seat.node for seat in self.seats if seat.node is not None} | {each.node for each in self.holdings}


class ReservationIndex:
    """All reservations and ledgers, and what follows for nodes."""

    def __init__(self, pods: Mapping[str, PodUpdate]) -> None:
        """``pods``: all that want or hold GPUs, by UID, as they are whenever something is asked."""
        self._pods = pods
        self._ledgers: dict[str, LedgerUpdate] = {}
        self._reservations: dict[str, ReservationUpdate] = {}
        self._entries: dict[str, tuple[LedgerEntry, str]] = {}  # by UID of the reservation; and by which ledger
        self._active: dict[str, ActiveReservation] = {}
        self._named: dict[str, set[str]] = {}  # name -> UIDs of the reservations of that name, in any namespace
        self._seated: dict[str, dict[str, str | None]] = {}  # reservation -> pod -> node; made when it is asked for
        self._on: dict[str, set[str]] = {}  # node -> reservations that count there
        self._seats: dict[tuple[str, str], list[Seat]] = {}  # node and reservation
        self._holdings: dict[tuple[str, str], Counter[str]] = {}  # devices that are held, by the same
        self._nodes_by_pod: dict[str, dict[str, str]] = {}  # pod -> reservation -> node
        self._bound: set[str] = set()  # pods with seats that were seen on a node
        self._ended: set[str] = set()  # pods with seats that were seen and are gone
        self._unbound: list[tuple[Occupant, str]] = []

    @property
    def ledgers(self) -> Mapping[str, LedgerUpdate]:
        """All, by name."""
        return MappingProxyType(self._ledgers)

    @property
    def reservations(self) -> Mapping[str, ReservationUpdate]:
        """All, by UID, whether they count or not."""
        return MappingProxyType(self._reservations)

    @property
    def active(self) -> Mapping[str, ActiveReservation]:
        """Those that count, by UID."""
        return MappingProxyType(self._active)

    @property
    def unmatched_entries(self) -> Iterator[LedgerEntry]:
        """Entries whose reservation is not there, or not as they say."""
        return (entry for uid, (entry, _) in self._entries.items() if uid not in self._active)

    def apply_reservations(self, batch: Batch[ReservationUpdate]) -> set[str]:
        """What their watch delivers. Answers the nodes on which something else counts now."""
        for uid in removed_keys(batch, self._reservations):
            self._seated.pop(uid, None)
            if (known := self._reservations.get(uid)) is not None:
                self._named[known.name].discard(uid)
                if not self._named[known.name]:
                    del self._named[known.name]
        for each in batch.updates:
            self._seated.pop(each.key, None)
            self._named.setdefault(each.name, set()).add(each.key)
        return self._update_active(_update(self._reservations, batch))

    def apply_ledgers(self, batch: Batch[LedgerUpdate]) -> set[str]:
        """What their watch delivers. Answers the nodes on which something else counts now."""
        _update(self._ledgers, batch)
        before = self._entries
        self._entries = {
            entry.uid: (entry, ledger.key) for ledger in self._ledgers.values() for entry in ledger.spec.entries
        }
        known = before.keys() | self._entries.keys()
        return self._update_active(uid for uid in known if before.get(uid) != self._entries.get(uid))

    def mark_bound(self, uid: str) -> Collection[str]:
        """That pod is on a node, wherever. Answers the nodes on which a seat was kept for it."""
        places = self._nodes_by_pod.get(uid)
        if places is None:
            return ()
        self._bound.add(uid)
        return places.values()

    def mark_ended(self, uid: str) -> None:
        """That pod is gone."""
        if uid in self._nodes_by_pod:
            self._ended.add(uid)

    def take_unbound(self) -> list[tuple[Occupant, str]]:
        """Pods and their nodes, committed until just now, that were not seen there: two watches, one of which is late.

        Of what was only proposed, those that were ungated before: their plan was proposed again.

        Each is told once.
        """
        found, self._unbound = self._unbound, []
        return found

    def nodes_for(self, uid: str) -> Collection[str]:
        """The nodes on which a seat is kept for that pod: mostly none, and one at the most unless planners err."""
        places = self._nodes_by_pod.get(uid)
        return () if places is None or uid in self._bound else places.values()

    def lists(self, uid: str, claim: PinClaim) -> bool:
        """Whether a reservation lists that pod for that node: one that counts, or the one that the pod names."""
        if claim.node in self._nodes_by_pod.get(uid, {}).values():
            return True
        return any(self._nodes_of(each).get(uid) == claim.node for each in self._named.get(claim.reservation, ()))

    def has(self, namespace: str, name: str) -> bool:
        """Whether there is a reservation of that name, whether it counts or not."""
        return any(self._reservations[uid].namespace == namespace for uid in self._named.get(name, ()))

    def _nodes_of(self, reservation: str) -> Mapping[str, str | None]:
        """Return the node of each pod that the reservation lists."""
        if reservation not in self._seated:
            self._seated[reservation] = {seat.uid: seat.node for seat in self._reservations[reservation].spec.seats}
        return self._seated[reservation]

    def active_on(self, node: str) -> Iterator[ActiveReservation]:
        """What counts on a node."""
        return (self._active[uid] for uid in sorted(self._on.get(node, ())))

    def with_reservations(self, record: NodeRecord, besides: Collection[str] = NO_RESERVATIONS) -> NodeRecord:
        """A node with what is kept there. ``besides``: without what those reservations keep, by their UIDs."""
        uids = self._on.get(record.name)
        counting = () if uids is None else sorted(uids.difference(besides))
        if not counting:
            return record
        there, seats = {pod.uid for pod in record.pods}, list[str]()
        for uid in counting:
            for seat in self._seats.get((record.name, uid), ()):
                if seat.uid not in self._bound:
                    seats.append(seat.uid)
                    if seat.uid not in there:
                        record = with_pod(record, self._occupant(seat, self._active[uid]))
        held = sum(
            (self._holdings[record.name, uid] for uid in counting if (record.name, uid) in self._holdings), Counter()
        )
        free = held & _free(record) if held else held
        if free:
            seats.append(hold_uid(record.name))
            record = with_pod(record, unknown_pod(seats[-1], "", "", sorted(free.items())))
        return msgspec.structs.replace(record, reserved=tuple(sorted(seats))) if seats else record

    def _occupant(self, seat: Seat, counting: ActiveReservation) -> Occupant:
        """The pod as it is known; of one that was not shown only what it takes is."""
        pod = self._pods.get(seat.uid)
        if pod is not None:
            return pod.occupant
        return unknown_pod(seat.uid, counting.reservation.namespace, seat.name, seat.gpus)

    def _update_active(self, uids: Iterable[str]) -> set[str]:
        touched: set[str] = set()
        for uid in tuple(uids):
            before, after = self._active.pop(uid, None), self._active_reservation(uid)
            if after is not None:
                self._active[uid] = after
            if before is not None and after is not None and _alike(before, after):
                continue
            if before is not None:
                if after is None:
                    self._unbound += self._unbound_pods(before)
                touched |= self._leave(before)
            if after is not None:
                touched |= self._enter(after)
        return touched

    def _active_reservation(self, uid: str) -> ActiveReservation | None:
        reservation, (entry, ledger) = self._reservations.get(uid), self._entries.get(uid, (None, ""))
        if reservation is None or entry is None or entry.hash != reservation.hash:
            return None
        return ActiveReservation(entry, ledger, reservation)

    def _enter(self, counting: ActiveReservation) -> set[str]:
        uid, nodes = counting.entry.uid, counting.nodes
        for node in nodes:
            self._on.setdefault(node, set()).add(uid)
        for each in counting.holdings:
            self._holdings.setdefault((each.node, uid), Counter())[each.resource] += each.gpus
        for seat in counting.seats:
            assert seat.node is not None  # of ``seats``
            self._seats.setdefault((seat.node, uid), []).append(seat)
            self._nodes_by_pod.setdefault(seat.uid, {})[uid] = seat.node
            pod = self._pods.get(seat.uid)
            if pod is not None and pod.node is not None:
                self._bound.add(seat.uid)
        return nodes

    def _unbound_pods(self, counting: ActiveReservation) -> Iterator[tuple[Occupant, str]]:
        committed = counting.entry.phase is EntryPhase.COMMITTED
        for seat in counting.seats:
            if seat.node is None or seat.uid in self._bound or seat.uid in self._ended:
                continue
            pod = self._pods.get(seat.uid)
            if committed or (pod is not None and pod.claim is not None and pod.nominated == seat.node):
                yield self._occupant(seat, counting), seat.node

    def _leave(self, counting: ActiveReservation) -> set[str]:
        uid, nodes = counting.entry.uid, counting.nodes
        for node in nodes:
            self._on[node].discard(uid)
            if not self._on[node]:
                del self._on[node]
            self._seats.pop((node, uid), None)
            self._holdings.pop((node, uid), None)
        for seat in counting.seats:
            places = self._nodes_by_pod.get(seat.uid, {})
            places.pop(uid, None)
            if not places:
                self._nodes_by_pod.pop(seat.uid, None)
                self._bound.discard(seat.uid)
                self._ended.discard(seat.uid)
        return nodes


def _update(known: dict[str, S], batch: Batch[S]) -> set[str]:
    """Take a batch in. Answers the keys that it speaks of."""
    gone = removed_keys(batch, known)
    for key in gone:
        known.pop(key, None)
    seen = {each.key: each for each in batch.updates}
    known.update(seen)
    return gone | seen.keys()


def _alike(one: ActiveReservation, other: ActiveReservation) -> bool:
    """Whether they keep the same: a proposal that is committed does."""
    held = EntryPhase.HELD
    return one.entry.hash == other.entry.hash and (one.entry.phase is held) is (other.entry.phase is held)


def _free(record: NodeRecord) -> Counter[str]:
    """Healthy devices of each resource that nobody has."""
    free = Counter(dict(record.machine.allocatable))
    for pod in record.pods:
        free.subtract(dict(pod.profile.device_request.totals))
    return +free
