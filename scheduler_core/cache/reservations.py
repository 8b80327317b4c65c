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

from gputopo.crd.reservations import Entry, Holding, Phase, Seat
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch, LedgerSeen, PodSeen, ReservationSeen, ended
from scheduler_core.cache.node_record import NodeRecord, held_on, with_pod
from scheduler_core.cache.placeholder_pods import unknown
from scheduler_core.request.pod import PinClaim

S = TypeVar("S", LedgerSeen, ReservationSeen)
NOBODY: frozenset[str] = frozenset()


class Counting(NamedTuple):
    """A reservation that counts."""

    entry: Entry
    ledger: str
    reservation: ReservationSeen

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Those that take GPUs; none while room is only held."""
        if self.entry.phase is Phase.HELD:
            return ()
        return tuple(seat for seat in self.reservation.spec.seats if seat.node is not None and seat.gpus)

    @property
    def held(self) -> tuple[Holding, ...]:
        """How many of the devices of which nodes are held."""
        return self.reservation.spec.held if self.entry.phase is Phase.HELD else ()

    @property
    def nodes(self) -> set[str]:
        """Those on which it counts."""
        return {seat.node for seat in self.seats if seat.node is not None} | {each.node for each in self.held}


class Reserved:
    """All reservations and ledgers, and what follows for nodes."""

    def __init__(self, pods: Mapping[str, PodSeen]) -> None:
        """``pods``: all that want or hold GPUs, by UID, as they are whenever something is asked."""
        self._pods = pods
        self._ledgers: dict[str, LedgerSeen] = {}
        self._reservations: dict[str, ReservationSeen] = {}
        self._entries: dict[str, tuple[Entry, str]] = {}  # by UID of the reservation; and by which ledger
        self._counting: dict[str, Counting] = {}
        self._named: dict[str, set[str]] = {}  # name -> UIDs of the reservations of that name, in any namespace
        self._seated: dict[str, dict[str, str | None]] = {}  # reservation -> pod -> node; made when it is asked for
        self._on: dict[str, set[str]] = {}  # node -> reservations that count there
        self._seats: dict[tuple[str, str], list[Seat]] = {}  # node and reservation
        self._room: dict[tuple[str, str], Counter[str]] = {}  # devices that are held, by the same
        self._places: dict[str, dict[str, str]] = {}  # pod -> reservation -> node
        self._arrived: set[str] = set()  # pods with seats that were seen on a node
        self._ended: set[str] = set()  # pods with seats that were seen and are gone
        self._left: list[tuple[Occupant, str]] = []

    @property
    def ledgers(self) -> Mapping[str, LedgerSeen]:
        """All, by name."""
        return MappingProxyType(self._ledgers)

    @property
    def reservations(self) -> Mapping[str, ReservationSeen]:
        """All, by UID, whether they count or not."""
        return MappingProxyType(self._reservations)

    @property
    def counting(self) -> Mapping[str, Counting]:
        """Those that count, by UID."""
        return MappingProxyType(self._counting)

    @property
    def unseen(self) -> Iterator[Entry]:
        """Entries whose reservation is not there, or not as they say."""
        return (entry for uid, (entry, _) in self._entries.items() if uid not in self._counting)

    def take_reservations(self, batch: Batch[ReservationSeen]) -> set[str]:
        """What their watch delivers. Answers the nodes on which something else counts now."""
        for uid in ended(batch, self._reservations):
            self._seated.pop(uid, None)
            if (known := self._reservations.get(uid)) is not None:
                self._named[known.name].discard(uid)
                if not self._named[known.name]:
                    del self._named[known.name]
        for each in batch.seen:
            self._seated.pop(each.key, None)
            self._named.setdefault(each.name, set()).add(each.key)
        return self._settle(_update(self._reservations, batch))

    def take_ledgers(self, batch: Batch[LedgerSeen]) -> set[str]:
        """What their watch delivers. Answers the nodes on which something else counts now."""
        _update(self._ledgers, batch)
        before = self._entries
        self._entries = {
            entry.uid: (entry, ledger.key) for ledger in self._ledgers.values() for entry in ledger.spec.entries
        }
        known = before.keys() | self._entries.keys()
        return self._settle(uid for uid in known if before.get(uid) != self._entries.get(uid))

    def arrive(self, uid: str) -> Collection[str]:
        """That pod is on a node, wherever. Answers the nodes on which a seat was kept for it."""
        places = self._places.get(uid)
        if places is None:
            return ()
        self._arrived.add(uid)
        return places.values()

    def end(self, uid: str) -> None:
        """That pod is gone."""
        if uid in self._places:
            self._ended.add(uid)

    def left(self) -> list[tuple[Occupant, str]]:
        """Pods and their nodes, committed until just now, that were not seen there: two watches, one of which is late.

        Of what was only proposed, those that were ungated before: their plan was proposed again.

        Each is told once.
        """
        found, self._left = self._left, []
        return found

    def places(self, uid: str) -> Collection[str]:
        """The nodes on which a seat is kept for that pod: mostly none, and one at the most unless planners err."""
        places = self._places.get(uid)
        return () if places is None or uid in self._arrived else places.values()

    def lists(self, uid: str, claim: PinClaim) -> bool:
        """Whether a reservation lists that pod for that node: one that counts, or the one that the pod names."""
        if claim.node in self._places.get(uid, {}).values():
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

    def on(self, node: str) -> Iterator[Counting]:
        """What counts on a node."""
        return (self._counting[uid] for uid in sorted(self._on.get(node, ())))

    def occupied(self, record: NodeRecord, besides: Collection[str] = NOBODY) -> NodeRecord:
        """A node with what is kept there. ``besides``: without what those reservations keep, by their UIDs."""
        uids = self._on.get(record.name)
        counting = () if uids is None else sorted(uids.difference(besides))
        if not counting:
            return record
        there, seats = {pod.uid for pod in record.pods}, list[str]()
        for uid in counting:
            for seat in self._seats.get((record.name, uid), ()):
                if seat.uid not in self._arrived:
                    seats.append(seat.uid)
                    if seat.uid not in there:
                        record = with_pod(record, self._occupant(seat, self._counting[uid]))
        held = sum((self._room[record.name, uid] for uid in counting if (record.name, uid) in self._room), Counter())
        free = held & _free(record) if held else held
        if free:
            seats.append(held_on(record.name))
            record = with_pod(record, unknown(seats[-1], "", "", sorted(free.items())))
        return msgspec.structs.replace(record, reserved=tuple(sorted(seats))) if seats else record

    def _occupant(self, seat: Seat, counting: Counting) -> Occupant:
        """The pod as it is known; of one that was not shown only what it takes is."""
        pod = self._pods.get(seat.uid)
        if pod is not None:
            return pod.occupant
        return unknown(seat.uid, counting.reservation.namespace, seat.name, seat.gpus)

    def _settle(self, uids: Iterable[str]) -> set[str]:
        touched: set[str] = set()
        for uid in tuple(uids):
            before, after = self._counting.pop(uid, None), self._counts(uid)
            if after is not None:
                self._counting[uid] = after
            if before is not None and after is not None and _alike(before, after):
                continue
            if before is not None:
                if after is None:
                    self._left += self._on_their_way(before)
                touched |= self._leave(before)
            if after is not None:
                touched |= self._enter(after)
        return touched

    def _counts(self, uid: str) -> Counting | None:
        reservation, (entry, ledger) = self._reservations.get(uid), self._entries.get(uid, (None, ""))
        if reservation is None or entry is None or entry.hash != reservation.hash:
            return None
        return Counting(entry, ledger, reservation)

    def _enter(self, counting: Counting) -> set[str]:
        uid, nodes = counting.entry.uid, counting.nodes
        for node in nodes:
            self._on.setdefault(node, set()).add(uid)
        for each in counting.held:
            self._room.setdefault((each.node, uid), Counter())[each.resource] += each.gpus
        for seat in counting.seats:
            assert seat.node is not None  # of ``seats``
            self._seats.setdefault((seat.node, uid), []).append(seat)
            self._places.setdefault(seat.uid, {})[uid] = seat.node
            pod = self._pods.get(seat.uid)
            if pod is not None and pod.node is not None:
                self._arrived.add(seat.uid)
        return nodes

    def _on_their_way(self, counting: Counting) -> Iterator[tuple[Occupant, str]]:
        committed = counting.entry.phase is Phase.COMMITTED
        for seat in counting.seats:
            if seat.node is None or seat.uid in self._arrived or seat.uid in self._ended:
                continue
            pod = self._pods.get(seat.uid)
            if committed or (pod is not None and pod.claim is not None and pod.nominated == seat.node):
                yield self._occupant(seat, counting), seat.node

    def _leave(self, counting: Counting) -> set[str]:
        uid, nodes = counting.entry.uid, counting.nodes
        for node in nodes:
            self._on[node].discard(uid)
            if not self._on[node]:
                del self._on[node]
            self._seats.pop((node, uid), None)
            self._room.pop((node, uid), None)
        for seat in counting.seats:
            places = self._places.get(seat.uid, {})
            places.pop(uid, None)
            if not places:
                self._places.pop(seat.uid, None)
                self._arrived.discard(seat.uid)
                self._ended.discard(seat.uid)
        return nodes


def _update(known: dict[str, S], batch: Batch[S]) -> set[str]:
    """Take a batch in. Answers the keys that it speaks of."""
    gone = ended(batch, known)
    for key in gone:
        known.pop(key, None)
    seen = {each.key: each for each in batch.seen}
    known.update(seen)
    return gone | seen.keys()


def _alike(one: Counting, other: Counting) -> bool:
    """Whether they keep the same: a proposal that is committed does."""
    held = Phase.HELD
    return one.entry.hash == other.entry.hash and (one.entry.phase is held) is (other.entry.phase is held)


def _free(record: NodeRecord) -> Counter[str]:
    """Healthy devices of each resource that nobody has."""
    free = Counter(dict(record.machine.allocatable))
    for pod in record.pods:
        free.subtract(dict(pod.profile.ask.totals))
    return +free
