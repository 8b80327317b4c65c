"""What a planner that leads knows: watches and the answers of its own writes, as one picture. No I/O.

What was written is known from its answer on. An event that is older than that, by resource version, undoes nothing:
watches lag behind answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from gputopo.crd.reservations import spec_hash
from gputopo.labels.gate import others
from scheduler_core.cache.cluster_cache import Knowledge
from scheduler_core.cache.events import Batch, LedgerSeen, NodeSeen, ReservationSeen
from scheduler_core.cache.kube_scheduler_filters import StockNode
from scheduler_core.planner.commit.actions import (
    CreateLedger,
    CreateReservation,
    DeletePod,
    DeleteReservation,
    DropRegistration,
    LetGo,
    Release,
    StripFinalizer,
    Touch,
    Write,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.commit.ledger import counting
from scheduler_core.planner.commit.observations import Memory, noted, without_denial
from scheduler_core.planner.commit.state import World
from scheduler_core.planner.gang.gang import Declared
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.members import Roster
from scheduler_core.planner.gang.pod_deadlines import Ends
from scheduler_core.planner.gang.pod_source import Candidate, split
from scheduler_core.planner.leader.reservation_index import Shelf
from scheduler_core.planner.packing.anti_affinity import There
from scheduler_core.policy.policy import Policy

TRY_S = 10.0  # what did not fit is tried again after so long, though nothing was seen to change


class Told(NamedTuple):
    """What an answer of the API server says of the object that was written."""

    uid: str
    version: str
    generation: int = 0


class Written(NamedTuple):
    """A write of ours."""

    version: int
    at: float  # seconds since 1970


class Outlook(NamedTuple):
    """What follows from plans, not from objects."""

    crowded: frozenset[str] = frozenset()  # proposals for which there is no room any more
    unheld: frozenset[str] = frozenset()  # holds that are not wanted any more
    estimates: Mapping[str, float | None] = {}  # of holds: when there will be room
    blind: bool = False  # nothing more is wanted for now


NOTHING = Outlook()


class View:
    """For one thread, and one term of leadership."""

    def __init__(self, policy: Policy, pool: str, me: str, *, guarded: bool = False) -> None:
        """``guarded``: only planners can write their annotations on pods."""
        self.knowledge = Knowledge(policy, reservations=True, bound=False, guarded=guarded)
        self.roster = Roster()
        self.shelf = Shelf(self.reservations, self.roster.member)
        self.ends = Ends()
        self.memory = Memory()
        self.rules: Mapping[str, StockNode] = {}  # another one where anything of it changes: a plan may look at it
        self._pool, self._me, self._guarded = pool, me, guarded
        # By UID: what we wrote last, until a watch has shown it; in that order.
        self._pods: dict[str, Written] = {}
        self._statuses: dict[str, Written] = {}  # of reservations
        self._created: dict[str, ReservationSeen] = {}  # that no watch has shown yet
        self._creating: dict[tuple[str, str], str | None] = {}  # namespace and name: UID, once a watch has shown it
        self._deleted: set[str] = set()  # reservations that a watch may still show
        self._missed: set[str] = set()  # of both: that the last list did not show

    @property
    def ledger(self) -> LedgerSeen | None:
        """As it was last read or written."""
        return self.knowledge.reserved.ledgers.get(self._pool)

    @property
    def reservations(self) -> Mapping[str, ReservationSeen]:
        """By UID."""
        return self.knowledge.reserved.reservations

    def take(self, batch: Batch[Any], now: float) -> frozenset[GangName]:
        """What a watch delivers; ``now``: seconds since 1970. Answers the gangs that may be others by that."""
        if batch.kind is Candidate:
            pods, members, ends = split(self._not_older(batch))
            self.knowledge.take(pods, now)
            self.ends.take(ends)
            return self._changed(members)
        if issubclass(batch.kind, Declared):
            self.ends.take_makers(batch)
            touched = self.roster.take_sizes(batch)
            self.shelf.stir(touched)
            return touched
        if batch.kind is ReservationSeen:
            self._keep(self._reservations(batch), now)
            return frozenset()
        if batch.kind is NodeSeen:
            self._take_rules(batch)
        elif batch.kind is LedgerSeen:
            batch = self._ledgers(batch)
        self.knowledge.take(batch, now)
        if batch.kind is LedgerSeen and self.ledger is not None:
            self.shelf.wake(counting(self.ledger.spec, self.reservations))
        return frozenset()

    def read(self, ledger: LedgerSeen | None, now: float) -> None:
        """The ledger as it was asked for."""
        if ledger is None:
            self.knowledge.take(Batch(LedgerSeen, (), (self._pool,)), now)
        else:
            self.take(Batch(LedgerSeen, (ledger,)), now)

    def writes(self, what: Write) -> None:
        """A write is under way."""
        if isinstance(what, CreateReservation):
            self._creating[what.namespace, what.name] = None

    def unwritten(self, what: Write) -> None:
        """A write was not done, or nobody knows whether it was."""
        if isinstance(what, CreateReservation):
            self._creating.pop((what.namespace, what.name), None)

    def wrote(self, what: Write, told: Told | None, now: float) -> frozenset[GangName]:
        """A write was done. Answers the gangs that may be others by that."""
        if isinstance(what, CreateLedger | WriteLedger | DropRegistration):
            assert told is not None
            self.take(Batch(LedgerSeen, (_ledger(what, told),)), now)
        elif isinstance(what, CreateReservation):
            assert told is not None
            self._create(what, told, now)
        elif isinstance(what, WriteStatus):
            assert told is not None
            self._write_status(what, told, now)
        elif isinstance(what, DeleteReservation):
            if what.of.key in self.reservations:  # else a watch was faster
                self._deleted.add(what.of.key)
            self._created.pop(what.of.key, None)
            self._keep(Batch(ReservationSeen, (), (what.of.key,)), now)
        elif isinstance(what, Touch):
            self.touched(what)
        if isinstance(what, LetGo | Release | Touch | StripFinalizer | DeletePod):
            self.memory = without_denial(self.memory, type(what), what.member.uid)
            return self._wrote_pod(what, told, now)
        return frozenset()

    def touched(self, what: Touch) -> None:
        """Nobody's earlier patch of that pod is taken any more."""
        self.memory = self.memory._replace(touched=self.memory.touched | {(what.of, what.member.uid)})

    def look(self, monotonic: float) -> None:
        """Take note of what there is now, and since when."""
        self.memory = noted(self.memory, self.ledger, self.reservations, monotonic)

    def world(self, monotonic: float, wall: float, outlook: Outlook = NOTHING) -> World:
        """What ``steps`` looks at."""
        return World(
            self._me,
            self.ledger,
            self.reservations,
            self.roster.member,
            self.roster.gang,
            self.rules,
            outlook.crowded,
            outlook.unheld,
            outlook.estimates,
            self.memory,
            monotonic,
            wall,
            self._coming(),
            outlook.blind,
            self.shelf.awake,
            self.shelf.plans,
        )

    def unshown_since(self) -> float | None:
        """When the oldest of our writes was done that no watch has shown, in seconds since 1970."""
        oldest = (next(iter(each.values()), None) for each in (self._pods, self._statuses))
        return min((each.at for each in oldest if each is not None), default=None)

    def state(self, monotonic: float) -> Hashable:
        """What a plan that is made now is made on. After a while it is another: not all that lets a gang in is seen.

        Nodes that were reached in vain count again, and extenders forget whom they let in.
        """
        return self.knowledge.table.generation, int(monotonic // TRY_S)

    def there(self) -> tuple[There, ...]:
        """Members of gangs, and pods that were placed on their own: where they are, or are to go.

        None, where none of all refuses another: then nobody needs to know.
        """
        if not self.roster.refuses:
            return ()
        kept = self.knowledge.reserved.counting.values()
        to = {seat.uid: seat.node for each in kept for seat in each.seats}
        nodes = ((each.node or to.get(each.uid), each) for each in self.roster.living())
        return tuple(There(node, each) for node, each in nodes if node is not None)

    def _coming(self) -> tuple[Member, ...]:
        """Return the unbound members that a planner ungated. What a pod says of itself alone proves nothing."""
        found = self.roster.coming()
        if self._guarded:
            return tuple(found)
        return tuple(each for each in found if each.pin and self.knowledge.ungated_to(each.uid) == each.pin)

    def _create(self, what: CreateReservation, told: Told, now: float) -> None:
        if self._creating.pop((what.namespace, what.name), None) == told.uid:
            return  # a watch was faster, and may have shown since that it is gone
        seen = ReservationSeen(
            told.uid, what.namespace, what.name, what.spec, spec_hash(what.spec), version=told.version
        )
        self.memory = self.memory._replace(made=self.memory.made | {told.uid})
        self._created[told.uid] = seen
        self._keep(Batch(ReservationSeen, (seen,)), now)

    def _write_status(self, what: WriteStatus, told: Told, now: float) -> None:
        known = self.reservations.get(what.of.key)
        if known is None or int(known.version) >= int(told.version):
            return  # a watch was faster
        self._statuses.pop(what.of.key, None)
        self._statuses[what.of.key] = Written(int(told.version), now)
        seen = what.of._replace(status=what.status, version=told.version)
        self._keep(Batch(ReservationSeen, (seen,)), now)

    def _keep(self, batch: Batch[ReservationSeen], now: float) -> None:
        uids = {*batch.gone, *(each.key for each in batch.seen), *(self.reservations if batch.complete else ())}
        self.knowledge.take(batch, now)
        self.shelf.file(sorted(uids))

    def _changed(self, members: Batch[Member]) -> frozenset[GangName]:
        touched = self.roster.take(members)
        self.shelf.stir(touched)
        return touched

    def _wrote_pod(
        self, what: LetGo | Release | Touch | StripFinalizer | DeletePod, told: Told | None, now: float
    ) -> frozenset[GangName]:
        known = self.roster.member(what.member.uid)
        if known is None or (told is not None and known.version and int(known.version) >= int(told.version)):
            return frozenset()  # a watch was faster
        member = after(what, known)
        if told is not None and known.version:
            self._pods.pop(known.uid, None)
            self._pods[known.uid] = Written(int(told.version), now)
            member = member._replace(version=told.version)
        return self._changed(Batch(Member, (member,)))

    def _not_older(self, batch: Batch[Candidate]) -> Batch[Candidate]:
        for uid in batch.gone:
            self._pods.pop(uid, None)
        if batch.complete:  # it names nobody as gone
            self._pods = {each.key: self._pods[each.key] for each in batch.seen if each.key in self._pods}
        return batch._replace(seen=tuple(map(self._newer, batch.seen)))

    def _newer(self, seen: Candidate) -> Candidate:
        """As seen, or as we wrote it since."""
        ours, known = self._pods.get(seen.key), self.roster.member(seen.key)
        version = "" if seen.member is None else seen.member.version
        if ours is not None and known is not None and version and int(version) < ours.version:
            return seen._replace(member=known)
        self._pods.pop(seen.key, None)
        return seen

    def _take_rules(self, batch: Batch[NodeSeen]) -> None:
        rules = {} if batch.complete else dict(self.rules)
        for name in batch.gone:
            rules.pop(name, None)
        self.rules = rules | {each.key: each.rules for each in batch.seen if each.rules is not None}

    def _reservations(self, batch: Batch[ReservationSeen]) -> Batch[ReservationSeen]:
        if batch.complete:
            batch = batch._replace(gone=self._unshown(batch))
        for uid in batch.gone:
            self._statuses.pop(uid, None)
            self._created.pop(uid, None)
            self._deleted.discard(uid)
        shown = [self._shown(each) for each in batch.seen if each.key not in self._deleted]
        if batch.complete:
            shown += self._created.values()
        return batch._replace(seen=tuple(shown))

    def _shown(self, seen: ReservationSeen) -> ReservationSeen:
        """As seen, or as we wrote it since."""
        name = (seen.namespace, seen.name)
        self._created.pop(seen.key, None)
        if self._creating.get(name, seen.key) is None:
            self._creating[name] = seen.key
            self.memory = self.memory._replace(made=self.memory.made | {seen.key})
        ours = self._statuses.get(seen.key)
        if ours is not None and int(seen.version) < ours.version:
            return self.reservations.get(seen.key, seen)
        self._statuses.pop(seen.key, None)
        return seen

    def _unshown(self, batch: Batch[ReservationSeen]) -> tuple[str, ...]:
        """What is gone by a list, which names nobody as gone: all of which something is kept and that it does not show.

        A list may have begun before a reservation was made. The list after that one had not.
        """
        shown = {each.key for each in batch.seen}
        missed = (self._created.keys() | self._deleted) - shown
        twice = missed & self._missed
        self._missed = missed - twice
        return tuple(twice | (self._statuses.keys() - shown - self._created.keys()))

    def _ledgers(self, batch: Batch[LedgerSeen]) -> Batch[LedgerSeen]:
        known = self.ledger
        kept = tuple(
            known
            if known is not None and each.key == known.key and each.uid == known.uid and _older(each, known)
            else each
            for each in batch.seen
        )
        return batch._replace(seen=kept)


def _older(one: LedgerSeen, other: LedgerSeen) -> bool:
    return int(one.version) < int(other.version)


def after(what: LetGo | Release | Touch | StripFinalizer | DeletePod, member: Member) -> Member:
    """The pod as it is once that was done."""
    if isinstance(what, Touch):
        return member
    if isinstance(what, DeletePod):
        return member._replace(ending=True, pin=None)
    if isinstance(what, StripFinalizer):
        return member._replace(finalizers=tuple(each for each in member.finalizers if each != what.finalizer))
    member = member._replace(gates=others(member.gates))
    return member._replace(reservation=what.reservation, pin=what.seat.node) if isinstance(what, LetGo) else member


def _ledger(what: CreateLedger | WriteLedger | DropRegistration, told: Told) -> LedgerSeen:
    if isinstance(what, CreateLedger):
        return LedgerSeen(what.name, told.uid, told.version, told.generation, what.spec)
    if isinstance(what, WriteLedger):
        return what.over._replace(version=told.version, generation=told.generation, spec=what.spec)
    return what.over._replace(version=told.version, generation=told.generation, extenders=what.status.extenders)
