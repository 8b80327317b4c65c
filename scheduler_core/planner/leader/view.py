"""What a planner that leads knows: watches and the answers of its own writes, as one picture. No I/O.

What was written is known from its answer on. An event that is older than that, by resource version, undoes nothing:
watches lag behind answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from gputopo.crd.reservations import spec_hash
from gputopo.labels.gate import other_gates
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, LedgerUpdate, NodeUpdate, ReservationUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.planner.commit.actions import (
    Action,
    CreateLedger,
    CreateReservation,
    DeletePod,
    DeleteReservation,
    DropRegistration,
    ReleasePod,
    StripFinalizer,
    TouchPod,
    UngateAndPin,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.commit.ledger import active_entries
from scheduler_core.planner.commit.observations import Observations, observe_ledger, without_refused_write
from scheduler_core.planner.commit.state import ReconcileInput
from scheduler_core.planner.gang.gang import DeclaredSizes
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.members import GangMembers
from scheduler_core.planner.gang.pod_deadlines import PodDeadlines
from scheduler_core.planner.gang.pod_source import PlannerPod, fan_out
from scheduler_core.planner.leader.reservation_index import GangReservationIndex
from scheduler_core.planner.packing.anti_affinity import PlacedMember
from scheduler_core.policy.policy import Policy

TRY_S = 10.0  # what did not fit is tried again after so long, though nothing was seen to change


class WriteResponse(NamedTuple):
    """What an answer of the API server says of the object that was written."""

    uid: str
    version: str
    generation: int = 0


class OwnWrite(NamedTuple):
    """A write of ours."""

    version: int
    at: float  # seconds since 1970


class PlanFindings(NamedTuple):
    """What follows from plans, not from objects."""

    no_longer_fitting: frozenset[str] = frozenset()  # proposals for which there is no room any more
    unwanted_holds: frozenset[str] = frozenset()  # holds that are not wanted any more
    estimates: Mapping[str, float | None] = {}  # of holds: when there will be room
    has_stale_view: bool = False  # nothing more is wanted for now


NO_FINDINGS = PlanFindings()


class PlannerView:
    """For one thread, and one term of leadership."""

    def __init__(self, policy: Policy, pool: str, me: str, *, guarded: bool = False) -> None:
        """``guarded``: only planners can write their annotations on pods."""
        self.cache = ClusterCache(policy, reservations=True, bound=False, guarded=guarded)
        self.gang_members = GangMembers()
        self.reservation_index = GangReservationIndex(self.reservations, self.gang_members.get_member)
        self.deadlines = PodDeadlines()
        self.observations = Observations()
        self.rules: Mapping[str, FullNode] = {}  # another one where anything of it changes: a plan may look at it
        self._pool, self._me, self._guarded = pool, me, guarded
        # By UID: what we wrote last, until a watch has shown it; in that order.
        self._pods: dict[str, OwnWrite] = {}
        self._statuses: dict[str, OwnWrite] = {}  # of reservations
        self._created: dict[str, ReservationUpdate] = {}  # that no watch has shown yet
        self._creating: dict[tuple[str, str], str | None] = {}  # namespace and name: UID, once a watch has shown it
        self._deleted: set[str] = set()  # reservations that a watch may still show
        self._missed: set[str] = set()  # of both: that the last list did not show

    @property
    def ledger(self) -> LedgerUpdate | None:
        """As it was last read or written."""
        return self.cache.reservations.ledgers.get(self._pool)

    @property
    def reservations(self) -> Mapping[str, ReservationUpdate]:
        """By UID."""
        return self.cache.reservations.reservations

    def apply_batch(self, batch: Batch[Any], now: float) -> frozenset[GangName]:
        """What a watch delivers; ``now``: seconds since 1970. Answers the gangs that may be others by that."""
        if batch.kind is PlannerPod:
            pods, members, ends = fan_out(self._not_older(batch))
            self.cache.apply_batch(pods, now)
            self.deadlines.apply_pod_deadlines(ends)
            return self._changed(members)
        if issubclass(batch.kind, DeclaredSizes):
            self.deadlines.apply_job_deadlines(batch)
            touched = self.gang_members.apply_declared_sizes(batch)
            self.reservation_index.mark_gangs_dirty(touched)
            return touched
        if batch.kind is ReservationUpdate:
            self._keep(self._reservations(batch), now)
            return frozenset()
        if batch.kind is NodeUpdate:
            self._take_rules(batch)
        elif batch.kind is LedgerUpdate:
            batch = self._ledgers(batch)
        self.cache.apply_batch(batch, now)
        if batch.kind is LedgerUpdate and self.ledger is not None:
            self.reservation_index.mark_dirty(active_entries(self.ledger.spec, self.reservations))
        return frozenset()

    def apply_ledger(self, ledger: LedgerUpdate | None, now: float) -> None:
        """The ledger as it was asked for."""
        if ledger is None:
            self.cache.apply_batch(Batch(LedgerUpdate, (), (self._pool,)), now)
        else:
            self.apply_batch(Batch(LedgerUpdate, (ledger,)), now)

    def mark_writing(self, what: Action) -> None:
        """A write is under way."""
        if isinstance(what, CreateReservation):
            self._creating[what.namespace, what.name] = None

    def mark_not_written(self, what: Action) -> None:
        """A write was not done, or nobody knows whether it was."""
        if isinstance(what, CreateReservation):
            self._creating.pop((what.namespace, what.name), None)

    def apply_write(self, what: Action, told: WriteResponse | None, now: float) -> frozenset[GangName]:
        """A write was done. Answers the gangs that may be others by that."""
        if isinstance(what, CreateLedger | WriteLedger | DropRegistration):
            assert told is not None
            self.apply_batch(Batch(LedgerUpdate, (_ledger(what, told),)), now)
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
            self._keep(Batch(ReservationUpdate, (), (what.of.key,)), now)
        elif isinstance(what, TouchPod):
            self.mark_touched(what)
        if isinstance(what, UngateAndPin | ReleasePod | TouchPod | StripFinalizer | DeletePod):
            self.observations = without_refused_write(self.observations, type(what), what.member.uid)
            return self._wrote_pod(what, told, now)
        return frozenset()

    def mark_touched(self, what: TouchPod) -> None:
        """Nobody's earlier patch of that pod is taken any more."""
        self.observations = self.observations._replace(touched=self.observations.touched | {(what.of, what.member.uid)})

    def observe(self, monotonic: float) -> None:
        """Take note of what there is now, and since when."""
        self.observations = observe_ledger(self.observations, self.ledger, self.reservations, monotonic)

    def reconcile_input(self, monotonic: float, wall: float, outlook: PlanFindings = NO_FINDINGS) -> ReconcileInput:
        """What ``steps`` looks at."""
        return ReconcileInput(
            self._me,
            self.ledger,
            self.reservations,
            self.gang_members.get_member,
            self.gang_members.get_gang,
            self.rules,
            outlook.no_longer_fitting,
            outlook.unwanted_holds,
            outlook.estimates,
            self.observations,
            monotonic,
            wall,
            self._coming(),
            outlook.has_stale_view,
            self.reservation_index.active,
            self.reservation_index.plans,
        )

    def unshown_since(self) -> float | None:
        """When the oldest of our writes was done that no watch has shown, in seconds since 1970."""
        oldest = (next(iter(each.values()), None) for each in (self._pods, self._statuses))
        return min((each.at for each in oldest if each is not None), default=None)

    def plan_state(self, monotonic: float) -> Hashable:
        """What a plan that is made now is made on. After a while it is another: not all that lets a gang in is seen.

        Nodes that were reached in vain count again, and extenders forget whom they let in.
        """
        return self.cache.table.generation, int(monotonic // TRY_S)

    def placed_members(self) -> tuple[PlacedMember, ...]:
        """Members of gangs, and pods that were placed on their own: where they are, or are to go.

        None, where none of all refuses another: then nobody needs to know.
        """
        if not self.gang_members.has_anti_affinity:
            return ()
        kept = self.cache.reservations.active.values()
        to = {seat.uid: seat.node for each in kept for seat in each.seats}
        nodes = ((each.node or to.get(each.uid), each) for each in self.gang_members.live_members())
        return tuple(PlacedMember(node, each) for node, each in nodes if node is not None)

    def _coming(self) -> tuple[Member, ...]:
        """Return the unbound members that a planner ungated. What a pod says of itself alone proves nothing."""
        found = self.gang_members.awaiting_binding()
        if self._guarded:
            return tuple(found)
        return tuple(
            each for each in found if each.pinned_terms and self.cache.ungated_to(each.uid) == each.pinned_terms
        )

    def _create(self, what: CreateReservation, told: WriteResponse, now: float) -> None:
        if self._creating.pop((what.namespace, what.name), None) == told.uid:
            return  # a watch was faster, and may have shown since that it is gone
        seen = ReservationUpdate(
            told.uid, what.namespace, what.name, what.spec, spec_hash(what.spec), version=told.version
        )
        self.observations = self.observations._replace(made=self.observations.made | {told.uid})
        self._created[told.uid] = seen
        self._keep(Batch(ReservationUpdate, (seen,)), now)

    def _write_status(self, what: WriteStatus, told: WriteResponse, now: float) -> None:
        known = self.reservations.get(what.of.key)
        if known is None or int(known.version) >= int(told.version):
            return  # a watch was faster
        self._statuses.pop(what.of.key, None)
        self._statuses[what.of.key] = OwnWrite(int(told.version), now)
        seen = what.of._replace(status=what.status, version=told.version)
        self._keep(Batch(ReservationUpdate, (seen,)), now)

    def _keep(self, batch: Batch[ReservationUpdate], now: float) -> None:
        uids = {
            *batch.removed,
            *(each.key for each in batch.updates),
            *(self.reservations if batch.is_full_list else ()),
        }
        self.cache.apply_batch(batch, now)
        self.reservation_index.update_reservations(sorted(uids))

    def _changed(self, members: Batch[Member]) -> frozenset[GangName]:
        touched = self.gang_members.apply_members(members)
        self.reservation_index.mark_gangs_dirty(touched)
        return touched

    def _wrote_pod(
        self,
        what: UngateAndPin | ReleasePod | TouchPod | StripFinalizer | DeletePod,
        told: WriteResponse | None,
        now: float,
    ) -> frozenset[GangName]:
        known = self.gang_members.get_member(what.member.uid)
        if known is None or (told is not None and known.version and int(known.version) >= int(told.version)):
            return frozenset()  # a watch was faster
        member = member_after(what, known)
        if told is not None and known.version:
            self._pods.pop(known.uid, None)
            self._pods[known.uid] = OwnWrite(int(told.version), now)
            member = member._replace(version=told.version)
        return self._changed(Batch(Member, (member,)))

    def _not_older(self, batch: Batch[PlannerPod]) -> Batch[PlannerPod]:
        for uid in batch.removed:
            self._pods.pop(uid, None)
        if batch.is_full_list:  # it names nobody as gone
            self._pods = {each.key: self._pods[each.key] for each in batch.updates if each.key in self._pods}
        return batch._replace(updates=tuple(map(self._newer, batch.updates)))

    def _newer(self, seen: PlannerPod) -> PlannerPod:
        """As seen, or as we wrote it since."""
        ours, known = self._pods.get(seen.key), self.gang_members.get_member(seen.key)
        version = "" if seen.member is None else seen.member.version
        if ours is not None and known is not None and version and int(version) < ours.version:
            return seen._replace(member=known)
        self._pods.pop(seen.key, None)
        return seen

    def _take_rules(self, batch: Batch[NodeUpdate]) -> None:
        rules = {} if batch.is_full_list else dict(self.rules)
        for name in batch.removed:
            rules.pop(name, None)
        self.rules = rules | {each.key: each.rules for each in batch.updates if each.rules is not None}

    def _reservations(self, batch: Batch[ReservationUpdate]) -> Batch[ReservationUpdate]:
        if batch.is_full_list:
            batch = batch._replace(removed=self._unshown(batch))
        for uid in batch.removed:
            self._statuses.pop(uid, None)
            self._created.pop(uid, None)
            self._deleted.discard(uid)
        shown = [self._shown(each) for each in batch.updates if each.key not in self._deleted]
        if batch.is_full_list:
            shown += self._created.values()
        return batch._replace(updates=tuple(shown))

    def _shown(self, seen: ReservationUpdate) -> ReservationUpdate:
        """As seen, or as we wrote it since."""
        name = (seen.namespace, seen.name)
        self._created.pop(seen.key, None)
        if self._creating.get(name, seen.key) is None:
            self._creating[name] = seen.key
            self.observations = self.observations._replace(made=self.observations.made | {seen.key})
        ours = self._statuses.get(seen.key)
        if ours is not None and int(seen.version) < ours.version:
            return self.reservations.get(seen.key, seen)
        self._statuses.pop(seen.key, None)
        return seen

    def _unshown(self, batch: Batch[ReservationUpdate]) -> tuple[str, ...]:
        """What is gone by a list, which names nobody as gone: all of which something is kept and that it does not show.

        A list may have begun before a reservation was made. The list after that one had not.
        """
        shown = {each.key for each in batch.updates}
        missed = (self._created.keys() | self._deleted) - shown
        twice = missed & self._missed
        self._missed = missed - twice
        return tuple(twice | (self._statuses.keys() - shown - self._created.keys()))

    def _ledgers(self, batch: Batch[LedgerUpdate]) -> Batch[LedgerUpdate]:
        known = self.ledger
        kept = tuple(
            known
            if known is not None and each.key == known.key and each.uid == known.uid and _older(each, known)
            else each
            for each in batch.updates
        )
        return batch._replace(updates=kept)


def _older(one: LedgerUpdate, other: LedgerUpdate) -> bool:
    return int(one.version) < int(other.version)


def member_after(what: UngateAndPin | ReleasePod | TouchPod | StripFinalizer | DeletePod, member: Member) -> Member:
    """The pod as it is once that was done."""
    if isinstance(what, TouchPod):
        return member
    if isinstance(what, DeletePod):
        return member._replace(is_terminating=True, pinned_terms=None)
    if isinstance(what, StripFinalizer):
        return member._replace(finalizers=tuple(each for each in member.finalizers if each != what.finalizer))
    member = member._replace(gates=other_gates(member.gates))
    return (
        member._replace(reservation=what.reservation, pinned_terms=what.seat.node)
        if isinstance(what, UngateAndPin)
        else member
    )


def _ledger(what: CreateLedger | WriteLedger | DropRegistration, told: WriteResponse) -> LedgerUpdate:
    if isinstance(what, CreateLedger):
        return LedgerUpdate(what.name, told.uid, told.version, told.generation, what.spec)
    if isinstance(what, WriteLedger):
        return what.over._replace(version=told.version, generation=told.generation, spec=what.spec)
    return what.over._replace(version=told.version, generation=told.generation, extenders=what.status.extenders)
