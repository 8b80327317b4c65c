"""Everything that the leading planner knows: the watches, with its own answered writes on top. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from copy import copy
from itertools import chain
from typing import Any, NamedTuple

from gputopo.crd.reservations import EntryPhase, LedgerEntry, spec_hash
from scheduler_core.cache.change_log import ChangeLog
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, LedgerUpdate, NodeUpdate, ReservationUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.cache.pod_loads import PodLoads
from scheduler_core.planner.commit.actions import (
    Action,
    CreateReservation,
    DeleteReservation,
    LedgerAction,
    PodAction,
    TouchPod,
    WriteStatus,
    reserved_gang,
)
from scheduler_core.planner.commit.ending import ends_gang
from scheduler_core.planner.commit.ledger import active_entries
from scheduler_core.planner.commit.observations import Observations, observe_ledger, without_refused_write
from scheduler_core.planner.commit.state import ReconcileInput
from scheduler_core.planner.gang.disruption import Disruptions
from scheduler_core.planner.gang.gang import DeclaredSizes
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.members import GangMembers
from scheduler_core.planner.gang.pod_deadlines import PodDeadlines
from scheduler_core.planner.gang.pod_source import PlannerPod, fan_out, split_loads
from scheduler_core.planner.gang.volumes import VOLUME_KINDS, VolumeIndex, with_volume_rules
from scheduler_core.planner.leader.changed_nodes import PlanState
from scheduler_core.planner.leader.in_progress import InProgress
from scheduler_core.planner.leader.own_writes import OwnWrite, OwnWrites, newest_ledgers
from scheduler_core.planner.leader.reservation_index import GangReservationIndex
from scheduler_core.planner.packing.model import NodeView, TableVariant, ViewChanges
from scheduler_core.planner.packing.placed_pods import PlacedMember, PlacedPods
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import Policies

TRY_S = 10.0  # a gang that did not fit is planned again after this time, even if no change was seen


class WriteResponse(NamedTuple):
    """The written object, as the API server answered."""

    uid: str
    version: str
    generation: int = 0


class PlanFindings(NamedTuple):
    """Inputs of a reconcile that follow from plans, not from objects."""

    no_longer_fitting: frozenset[str] = frozenset()  # UIDs of proposals that do not fit any more
    unwanted_holds: frozenset[str] = frozenset()  # UIDs
    estimates: Mapping[str, float | None] = {}  # of holds: when their capacity will be free
    hold_users: Mapping[str, tuple[str, ...]] = {}  # of holds: pods of a higher priority that use their capacity
    may_evict: bool = True  # the policy allows that further units are evicted
    has_stale_view: bool = False  # nothing more is committed for now


NO_FINDINGS = PlanFindings()
_NO_PODS = PlacedPods()


class SeenNodes(NamedTuple):
    """The nodes of an earlier view, and the positions of the change logs at that time."""

    snapshot: ClusterSnapshot
    mark: int
    rules_mark: int


class PlannerView:
    """The state of the cluster in one term of leadership. For one thread."""

    def __init__(
        self, policy: Policy, pool: str, identity: str, *, guarded: bool = False, heartbeats: bool = False
    ) -> None:
        """``guarded``: only planners can write their annotations on pods. ``heartbeats``: see ``ClusterCache``."""
        self.cache = ClusterCache(
            policy, heartbeats=heartbeats, reservations=True, report_bound_pods=False, guarded=guarded
        )
        self.gang_members = GangMembers()
        self.reservation_index = GangReservationIndex(self.reservations)
        self.deadlines = PodDeadlines()
        self.disruptions = Disruptions()
        self.observations = Observations()
        self._volumes = VolumeIndex()
        self.rules: Mapping[str, FullNode] = {}  # replaced, never changed in place: a plan may read it
        self.loads = PodLoads()
        self._rules_changed = 0  # how often
        self._rules_log = ChangeLog()  # names of nodes whose rules or loads may have changed
        self._pool, self._identity, self._guarded = pool, identity, guarded
        self._own_writes = OwnWrites()

    @property
    def ledger(self) -> LedgerUpdate | None:
        """The ledger as last read or written."""
        return self.cache.reservations.ledgers.get(self._pool)

    @property
    def reservations(self) -> Mapping[str, ReservationUpdate]:
        """All reservations by UID."""
        return self.cache.reservations.reservations

    def apply_batch(self, batch: Batch[Any], now: float) -> frozenset[GangName]:
        """Apply events of a watch. Return the gangs that may have changed. ``now``: seconds since 1970."""
        if batch.kind is PlannerPod:
            loads, planned = split_loads(batch, self.loads.__contains__, self.is_known_pod)
            self._rules_log.add_names(self.loads.apply_batch(loads))
            return self._apply_pods(planned, now)
        if issubclass(batch.kind, DeclaredSizes):
            self.deadlines.apply_job_deadlines(batch)
            self.disruptions.apply_owners(
                batch, {each.key: each.disruption for each in batch.updates if each.disruption is not None}
            )
            touched = self.gang_members.apply_declared_sizes(batch)
            self.reservation_index.mark_gangs_dirty(touched)
            return touched
        if batch.kind in VOLUME_KINDS:
            return self._apply_volumes(batch)
        if batch.kind is ReservationUpdate:
            newest, unanswered = self._own_writes.newest_reservations(batch, self.reservations)
            if unanswered:
                self._mark_made(unanswered)
            self._apply_reservations(newest, now)
            return frozenset()
        if batch.kind is LedgerUpdate:
            self._apply_ledgers(newest_ledgers(batch, self.ledger), now)
            return frozenset()
        if batch.kind is NodeUpdate:
            self._apply_rules(batch)
        self.cache.apply_batch(batch, now)
        return frozenset()

    def advance_time(self, now: float) -> None:
        """Let time pass, which is an input of the step of each reservation in the ledger."""
        self.cache.advance_time(now)
        self.reservation_index.mark_dirty(self.entries())

    def is_known_pod(self, uid: str) -> bool:
        """Return whether the pod uses GPUs or is in a gang."""
        return uid in self.cache.pods or self.gang_members.get_member(uid) is not None

    def apply_ledger(self, ledger: LedgerUpdate | None, now: float) -> None:
        """Apply the ledger as read; None: it does not exist."""
        if ledger is None:
            self._apply_ledgers(Batch(LedgerUpdate, (), (self._pool,)), now)
        else:
            self.apply_batch(Batch(LedgerUpdate, (ledger,)), now)

    def mark_writing(self, action: Action) -> None:
        """Record that a write was sent."""
        if isinstance(action, CreateReservation):
            self._own_writes.mark_creating(action.namespace, action.name)

    def mark_not_written(self, action: Action) -> None:
        """Record that a write failed, or that its outcome is unknown."""
        if isinstance(action, CreateReservation):
            self._own_writes.unmark_creating(action.namespace, action.name)

    def apply_write(self, action: Action, response: WriteResponse | None, now: float) -> frozenset[GangName]:
        """Apply a successful write. Return the gangs that may have changed."""
        if isinstance(action, LedgerAction):
            assert response is not None
            ledger = action.ledger_after(response.uid, response.version, response.generation)
            self.apply_batch(Batch(LedgerUpdate, (ledger,)), now)
        elif isinstance(action, CreateReservation):
            assert response is not None
            self._apply_created(action, response, now)
        elif isinstance(action, WriteStatus):
            assert response is not None
            self._apply_status(action, response, now)
        elif isinstance(action, DeleteReservation):
            uid = action.reservation.key
            self._own_writes.record_deleted(uid, is_known=uid in self.reservations)
            self._apply_reservations(Batch(ReservationUpdate, (), (uid,)), now)
        elif isinstance(action, TouchPod):
            self.mark_touched(action)
        if isinstance(action, PodAction):
            self.observations = without_refused_write(self.observations, type(action), action.member.uid)
            return self._apply_pod_write(action, response, now)
        return frozenset()

    def mark_touched(self, action: TouchPod) -> None:
        """Record that earlier patches of this pod, by any planner, can succeed no more."""
        touched = self.observations.touched | {(action.reservation_uid, action.member.uid)}
        self.observations = self.observations._replace(touched=touched)

    def observe(self, monotonic: float) -> None:
        """Record since when the ledger is as it is."""
        self.observations = observe_ledger(self.observations, self.ledger, self.reservations, monotonic)

    def reconcile_input(self, monotonic: float, wall: float, findings: PlanFindings = NO_FINDINGS) -> ReconcileInput:
        """Return the input of ``reconcile``."""
        return ReconcileInput(
            identity=self._identity,
            ledger=self.ledger,
            reservations=self.reservations,
            member=self.gang_members.get_member,
            gang=self.gang_members.get_gang,
            nodes=self.rules,
            no_longer_fitting=findings.no_longer_fitting,
            unwanted_holds=findings.unwanted_holds,
            estimates=findings.estimates,
            hold_users=findings.hold_users,
            exists=lambda uid: uid in self.cache.pods,
            gone_by=self.gone_by,
            observations=self.observations,
            now=monotonic,
            wall_time=wall,
            awaiting_binding=self._awaiting_binding(),
            may_evict=findings.may_evict,
            has_stale_view=findings.has_stale_view,
            active=self.reservation_index.active,
            plans=self.reservation_index.plans,
        )

    def gone_by(self, uid: str) -> float | None:
        """Return when the grace period of a terminating pod ends, in seconds since 1970; None: of other pods."""
        pod = self.disruptions.pod(uid)
        return None if pod is None else pod.gone_by

    def oldest_unseen_write_at(self) -> float | None:
        """Return when the oldest own write that no watch has shown was answered, in seconds since 1970."""
        return self._own_writes.oldest_at()

    def plan_state(self, monotonic: float) -> PlanState:
        """Return the state that a plan made now depends on. Time is part of it: not everything else is visible."""
        snapshot, period = self.cache.snapshot, int(monotonic // TRY_S)
        return PlanState(snapshot.generation, self._rules_changed, self.loads.times_freed, period)

    def node_view(self, policies: Policies, before: SeenNodes | None = None) -> tuple[NodeView, SeenNodes]:
        """Return the present nodes, with the changes since ``before``, and the ``before`` of the next call.

        The snapshot of each view is an object of its own, by which readers know the view: its rules and the loads of
        its nodes may differ from those of another view with the same snapshot.
        """
        snapshot, log = copy(self.cache.snapshot), self.cache.change_log
        changes = ViewChanges(snapshot, None)
        if before is not None:
            nodes, rules = log.names_since(before.mark), self._rules_log.names_since(before.rules_mark)
            if nodes is not None and rules is not None:
                changes = ViewChanges(snapshot, before.snapshot, frozenset(nodes | rules))
        seen = SeenNodes(snapshot, log.mark, self._rules_log.mark)
        return NodeView(snapshot, self.rules, policies.policy_for, changes, self.loads.by_node), seen

    def variant_without(self, reservations: frozenset[str]) -> TableVariant:
        """Return the snapshot without these reservations (UIDs)."""
        nodes = frozenset(self.cache.reservations.nodes_of(reservations))
        return TableVariant(self.cache.snapshot_without(reservations), nodes, reservations)

    def placed_members(self) -> PlacedPods:
        """Return the members that anti-affinity concerns, and single pods, with their present or future nodes."""
        if not self.gang_members.has_anti_affinity:
            return _NO_PODS
        active = self.cache.reservations.active.values()
        planned = {seat.uid: seat.node for each in active for seat in each.seats}
        members = self.gang_members.live_members_concerned_by_anti_affinity()
        nodes = ((each.node or planned.get(each.uid), each) for each in members)
        return PlacedPods(PlacedMember(node, each) for node, each in nodes if node is not None)

    def in_progress(self) -> InProgress:
        """Return gangs and pods with a listed plan, for which nothing else may be started."""
        plans = [self.reservations[uid] for uid, entry in self.entries().items() if entry.phase is not EntryPhase.HELD]
        gangs = frozenset(name for each in plans if (name := reserved_gang(each)) is not None) | self._ending_gangs()
        single = (seat.uid for each in plans if not each.spec.gang for seat in each.spec.seats)
        return InProgress(gangs, frozenset(single), Counter(chain.from_iterable(map(self._namespaces_of, plans))))

    def _namespaces_of(self, plan: ReservationUpdate) -> AbstractSet[str]:
        """Return the namespaces of the pods of a plan: a plan of single pods may have several."""
        if plan.spec.gang:
            return {plan.namespace}
        members = (self.gang_members.get_member(seat.uid) for seat in plan.spec.seats)
        return {each.namespace for each in members if each is not None}

    def _ending_gangs(self) -> frozenset[GangName]:
        """Return the gangs that end because a member failed: nothing of them is planned until all members are gone."""
        members = self.gang_members
        return frozenset(
            each.gang_request.gang
            for each in members.failed_members_that_end_gangs()
            if each.uid in self.reservation_index.seats((each.gang_request.gang,))
            and ends_gang(each, members.get_gang(each.gang_request.gang))
        )

    def _awaiting_binding(self) -> tuple[Member, ...]:
        """Return the unbound members that a planner ungated. A claim in a pod's annotations alone proves nothing."""
        found = self.gang_members.awaiting_binding()
        if self._guarded:
            return tuple(found)
        return tuple(
            each for each in found if each.pinned_terms and self.cache.ungated_to(each.uid) == each.pinned_terms
        )

    def _apply_pods(self, batch: Batch[PlannerPod], now: float) -> frozenset[GangName]:
        if not (batch.updates or batch.removed or batch.is_full_list):
            return frozenset()
        pods, members, deadlines, disruptions = fan_out(
            self._own_writes.newest_pods(batch, self.gang_members.get_member)
        )
        self.cache.apply_batch(pods, now)
        self.deadlines.apply_pod_deadlines(deadlines)
        self.disruptions.apply_pods(disruptions)
        return self._apply_members(members)

    def _mark_made(self, uids: frozenset[str]) -> None:
        self.observations = self.observations._replace(created=self.observations.created | uids)

    def _apply_created(self, action: CreateReservation, response: WriteResponse, now: float) -> None:
        if self._own_writes.unmark_creating(action.namespace, action.name) == response.uid:
            return  # a watch was faster, and may have shown the end of the reservation since
        spec = action.spec
        created = ReservationUpdate(
            response.uid, action.namespace, action.name, spec, spec_hash(spec), version=response.version
        )
        self._mark_made(frozenset({response.uid}))
        self._own_writes.record_created(created)
        self._apply_reservations(Batch(ReservationUpdate, (created,)), now)

    def _apply_status(self, action: WriteStatus, response: WriteResponse, now: float) -> None:
        known = self.reservations.get(action.reservation.key)
        if known is None or int(known.version) >= int(response.version):
            return  # a watch was faster
        self._own_writes.record_status(known.key, OwnWrite(int(response.version), now))
        written = action.reservation._replace(status=action.status, version=response.version)
        self._apply_reservations(Batch(ReservationUpdate, (written,)), now)

    def _apply_reservations(self, batch: Batch[ReservationUpdate], now: float) -> None:
        listed = self.reservations if batch.is_full_list else ()
        uids = {*batch.removed, *(each.key for each in batch.updates), *listed}
        self.cache.apply_batch(batch, now)
        self.reservation_index.update_reservations(sorted(uids))

    def _apply_volumes(self, batch: Batch[Any]) -> frozenset[GangName]:
        """Apply volume claims, volumes or storage classes: the nodes that members with such claims can use."""
        claims = self._volumes.apply_batch(batch)
        affected = tuple(
            each
            for each in self.gang_members.members_with_claims()
            if claims is None or any(f"{each.namespace}/{name}" in claims for name in each.claims)
        )
        return self._apply_members(Batch(Member, affected)) if affected else frozenset()

    def _apply_members(self, members: Batch[Member]) -> frozenset[GangName]:
        if any(each.claims for each in members.updates):
            members = members._replace(
                updates=tuple(with_volume_rules(each, self._volumes) for each in members.updates)
            )
        self.reservation_index.mark_pods_dirty(self.gang_members.changed_uids(members))
        touched = self.gang_members.apply_members(members)
        self.reservation_index.mark_gangs_dirty(touched)
        return touched

    def _apply_pod_write(self, action: PodAction, response: WriteResponse | None, now: float) -> frozenset[GangName]:
        known = self.gang_members.get_member(action.member.uid)
        if known is None or (response is not None and known.version and int(known.version) >= int(response.version)):
            return frozenset()  # a watch was faster
        member = action.member_after(known)
        if response is not None and known.version:
            self._own_writes.record_pod(known.uid, OwnWrite(int(response.version), now))
            member = member._replace(version=response.version)
        return self._apply_members(Batch(Member, (member,)))

    def _apply_rules(self, batch: Batch[NodeUpdate]) -> None:
        before = self.rules
        rules = {} if batch.is_full_list else dict(before)
        for name in batch.removed:
            rules.pop(name, None)
        self.rules = rules | {each.key: each.rules for each in batch.updates if each.rules is not None}
        self._rules_changed += any(before.get(each.key) != each.rules for each in batch.updates)
        self.loads.apply_nodes(batch)
        self._rules_log.add_names({*batch.removed, *(each.key for each in batch.updates)})
        if batch.is_full_list:
            self._rules_log.add_names(before.keys() - self.rules.keys())
        if batch.is_full_list or batch.removed:
            self.reservation_index.mark_dirty(self.entries())  # a node of a plan may be gone

    def _apply_ledgers(self, batch: Batch[LedgerUpdate], now: float) -> None:
        before = self.entries()
        self.cache.apply_batch(batch, now)
        after = self.entries()
        uids = before.keys() | after.keys()
        self.reservation_index.mark_dirty(sorted(uid for uid in uids if before.get(uid) != after.get(uid)))

    def entries(self) -> dict[str, LedgerEntry]:
        """Return the entries of the ledger that count, by UID of the reservation."""
        return {} if self.ledger is None else active_entries(self.ledger.spec, self.reservations)
