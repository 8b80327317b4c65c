"""The processes of the model check: the real code of planners and extenders, with late events, killed anywhere."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from gputopo.crd.reservations import (
    POOL,
    EntryPhase,
    ExtenderAck,
    HeldCapacity,
    PlannedEviction,
    PlannedMember,
    Preemption,
    ReservationSpec,
)
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, LedgerUpdate, NodeGpusUpdate, NodeUpdate, PodUpdate, ReservationUpdate
from scheduler_core.extender.extender import Extender, NotReadyError
from scheduler_core.extender.ledger_registration import LedgerRegistration
from scheduler_core.planner.commit import pod_patches
from scheduler_core.planner.commit.actions import (
    Action,
    CheckBudgets,
    CreateLedger,
    CreateReservation,
    DeletePod,
    DeleteReservation,
    DropRegistration,
    EvictPod,
    LedgerAction,
    ProbeExtenderPod,
    ReleasePod,
    TouchPod,
    UngateAndPin,
    WriteLedger,
    WriteStatus,
    reserved_gang,
    reserved_gangs,
)
from scheduler_core.planner.commit.eviction import is_forbidden
from scheduler_core.planner.commit.ledger import LedgerRole, active_entries, ledger_role
from scheduler_core.planner.commit.observations import BudgetCheck, with_evicted_pod
from scheduler_core.planner.commit.reconcile import reconcile
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import DEFAULT_BIND_TIMEOUT_S, GangPhase
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.leader.view import PlanFindings, PlannerView, WriteResponse
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.commit.apiserver import (
    GPU,
    SPACE,
    ApiServer,
    Json,
    Watcher,
    candidate_of,
    gpus,
    pinned,
    pod_of,
    seen_of,
)

BIND_S = 20.0  # after Filter: kube-scheduler gives up a binding that takes longer
SILENCE_S = 120.0
KINDS = (NodeUpdate, PlannerPod, NodeGpusUpdate, ReservationUpdate, LedgerUpdate)


class Planner:
    """A planner process that believes that it leads."""

    def __init__(self, server: ApiServer, me: str, terms: CommitTerms) -> None:
        self.server, self.me, self.terms = server, me, terms
        self.watcher: Watcher | None = None
        self.deposed = False
        self.view = PlannerView(Policy(), POOL, me, guarded=terms.guarded)
        self.view.apply_ledger(server.ledger, server.now)
        self._ticked_at = server.now
        self.unheld: frozenset[str] = frozenset()  # UIDs of holds that were unwanted or forbidden at the last reconcile
        self._tried = 0

    def hear(self, batch: Batch[Any]) -> None:
        self.view.apply_batch(batch, self.server.now)

    def tick(self) -> None:
        self._ticked_at = self.server.now
        self.view.advance_time(self.server.now)

    def writes(self) -> tuple[Action, ...]:
        """Return the writes that are due now."""
        view = self.view
        mine = ledger_role(view.ledger, self.me) is LedgerRole.LEAD
        if self.watcher is not None and not mine:
            self.deposed = True
        if self.deposed:
            return ()
        if mine and self.watcher is None:  # it has observed nothing before it took over
            self.watcher = Watcher(self.server, KINDS, (PlannerPod, candidate_of))
            for batch in self.watcher.lists():
                self.hear(batch)
            return self.writes()
        if self._ticked_at != self.server.now:
            self.tick()
        view.observe(self.server.now)
        self.unheld = frozenset(uid for uid, gang in self._holds().items() if gang not in self._queued())
        outlook = PlanFindings(unwanted_holds=self.unheld, estimates=dict.fromkeys(self._holds()))
        found = self._steps(outlook)
        planned = self._plan() if mine else None
        return found if planned is None else (*found, planned)

    def _steps(self, outlook: PlanFindings) -> tuple[Action, ...]:
        """Assert that reconciling only active reservations gives the same writes as reconciling all."""
        world = self.view.reconcile_input(self.server.now, self.server.now, outlook)
        (found, idle), (whole, _) = (
            reconcile(each, self.terms, POOL) for each in (world, world._replace(active=None, plans=None))
        )
        assert sorted(map(_unordered, found)) == sorted(map(_unordered, whole))
        self.unheld |= {uid for uid in self._holds() if is_forbidden(world, self.view.reservations[uid])}
        self.view.reservation_index.park(idle)
        return found

    def _plan(self) -> CreateReservation | None:
        """Plan by first fit the first waiting gang that fits; else a capacity hold for the first gang without one."""
        view = self.view
        ledger = view.ledger
        assert ledger is not None  # taken over
        if view.observations.created:
            return None
        entries, holds = active_entries(ledger.spec, view.reservations), self._holds()
        plans = [view.reservations[uid] for uid, each in entries.items() if each.phase is not EntryPhase.HELD]
        member = view.gang_members.get_member
        busy = {name for each in plans for name in reserved_gangs(each.namespace, each.spec, member)}
        waiting = sorted(self._queued() - busy)
        for name in waiting:
            members = self._queued_members(name)
            states = view.cache.snapshot_without([uid for uid, gang in holds.items() if gang == name]).states
            places = [node for node in sorted(states) for _ in range(states[node].free_devices(GPU))]
            if len(places) >= len(members):
                pairs = zip(members, places, strict=False)
                seats = tuple(PlannedMember(each.uid, each.name, place, ((GPU, 1),)) for each, place in pairs)
                timeout = members[0].gang_request.timeout_s or DEFAULT_BIND_TIMEOUT_S
                gang = "" if is_single_pod_gang(name) else name.name
                return self._created(ReservationSpec(gang, seats, timeout_s=timeout))
        gangs = (name for name in waiting if not is_single_pod_gang(name))
        unserved = next((name for name in gangs if name not in holds.values()), None)
        if unserved is None:
            return None
        held = (HeldCapacity("n0", 2), HeldCapacity("n1", 2))
        return self._created(ReservationSpec(unserved.name, held=held, preemption=self._preemption()))

    def _preemption(self) -> Preemption | None:
        """Evict pods without a gang on the held nodes, in units of two pods."""
        pods = [
            (pod.node, pod)
            for pod in sorted(self.view.cache.pods.values())
            if pod.node in {"n0", "n1"} and self.view.gang_members.get_member(pod.key) is None
        ]
        found = tuple(
            PlannedEviction(pod.key, SPACE, pod.occupant.name, node, f"{SPACE}/unit-{at // 2}", 1)
            for at, (node, pod) in enumerate(pods)
        )
        return Preemption(found, "rule", timeout_s=30.0) if found else None

    def _created(self, spec: ReservationSpec) -> CreateReservation:
        self._tried += 1
        return CreateReservation(SPACE, f"{spec.gang or 'pods'}-{self.me}-{self._tried}", spec)

    def _holds(self) -> dict[str, GangName]:
        """Return the holds' gangs, by UID."""
        found = ((uid, reserved_gang(each)) for uid, each in self.view.reservations.items() if each.spec.held)
        return {uid: gang for uid, gang in found if gang is not None}

    def _queued(self) -> set[GangName]:
        return {each.name for each in self.view.gang_members.all_gangs() if each.phase is GangPhase.QUEUED}

    def _queued_members(self, name: GangName) -> tuple[Member, ...]:
        gang = self.view.gang_members.get_gang(name)
        assert gang is not None  # the gang is queued
        return gang.ready

    def send(self, what: Action) -> Any:
        """Send a write to the API server. Raises ``Conflict``, ``NotFound``."""
        self.view.mark_writing(what)
        server = self.server
        if isinstance(what, CreateLedger):
            return server.create_ledger(what.name, what.spec)
        if isinstance(what, WriteLedger):
            return server.write_ledger(what.ledger, what.spec)
        if isinstance(what, DropRegistration):
            return server.drop(what.ledger, dict(what.status.extenders))
        if isinstance(what, CreateReservation):
            return server.create_reservation(what.name, what.spec, what.namespace)
        if isinstance(what, WriteStatus):
            return server.write_status(what.reservation, what.status, what.unless_bound)
        if isinstance(what, DeleteReservation):
            return server.delete_reservation(what.reservation.key)
        if isinstance(what, UngateAndPin):
            return server.patch_pod(pod_patches.ungate_and_pin_patch(what.member, what.seat, what.reservation))
        if isinstance(what, TouchPod):
            return server.patch_pod(pod_patches.touch_patch(what.member, what.reservation_uid))
        if isinstance(what, ReleasePod):
            return server.patch_pod(pod_patches.ungate_patch(what.member))
        if isinstance(what, EvictPod):
            return server.evict_pod(what.eviction.uid)
        assert isinstance(what, DeletePod)  # pods of ReplicaSets have no finalizer
        return server.delete_pod(what.member.uid, what.member.version)

    def answered(self, what: Action, made: Any) -> None:
        """Apply the answer of a successful write."""
        if isinstance(what, EvictPod):
            self.view.observations = with_evicted_pod(self.view.observations, what.eviction.uid, self.server.now)
        self.view.apply_write(what, _told(made), self.server.now)
        if isinstance(what, CreateLedger):
            self.view.observations = self.view.observations._replace(is_new_ledger=True)

    def refused(self, what: Action) -> None:
        """Apply a failed write: read the ledger again."""
        if isinstance(what, LedgerAction):
            self.view.apply_ledger(self.server.ledger, self.server.now)

    def budgets_counted(self, what: CheckBudgets) -> None:
        """Apply the answer: every third second the budgets forbid the first unit."""
        now = self.server.now
        blocked = {what.evictions[0].unit: "no"} if int(now) % 3 == 0 else {}
        budgets = {**self.view.observations.budgets, what.hold: BudgetCheck(now, blocked)}
        self.view.observations = self.view.observations._replace(budgets=budgets)

    def heard_of(self, what: ProbeExtenderPod, *, gone: bool) -> None:
        silent = self.view.observations.silent_extenders
        before = silent.get(what.identity)
        if before is not None:
            now = self.server.now
            after = before._replace(probed_at=now, gone_at=now if gone and before.gone_at is None else before.gone_at)
            self.view.observations = self.view.observations._replace(silent_extenders={**silent, what.identity: after})


def _unordered(what: Action) -> str:
    """Return a write as text, with ledger entries sorted."""
    if isinstance(what, WriteLedger):
        entries = tuple(sorted(what.spec.entries, key=lambda each: each.uid))
        what = msgspec.structs.replace(what, spec=msgspec.structs.replace(what.spec, entries=entries))
    return repr(what)


def _told(made: Any) -> WriteResponse | None:
    if isinstance(made, LedgerUpdate):
        return WriteResponse(made.uid, made.version, made.generation)
    if isinstance(made, ReservationUpdate):
        return WriteResponse(made.key, made.version)
    return None if made is None else WriteResponse(made["metadata"]["uid"], made["metadata"]["resourceVersion"])


class Flags(NamedTuple):
    """Parts of an extender that a mutant leaves out."""

    registers: bool = True
    acknowledges_late: bool = True
    remembers: bool = True


class Answering:
    """An extender process."""

    def __init__(self, server: ApiServer, me: str, flags: Flags, pod: str = "") -> None:
        """``pod``: of a previous process, whose container restarted."""
        self.server, self.me, self.flags = server, me, flags
        self.pod = pod or f"{SPACE}/{me}"
        self.silent_since: float | None = None  # cut off from the API server
        self.said: list[ExtenderAck | None] = []  # on the way to the API server
        self.cluster_cache = ClusterCache(Policy(), reservations=True)
        self.extender = Extender(self.cluster_cache, Policy(), lambda: self.server.now, lambda _: None)
        settle = ASSUMED_POD_LIFETIME_S if flags.acknowledges_late else 0.0
        self.registration = LedgerRegistration(me, self.pod, self.cluster_cache, self._say, lambda: server.now, settle)
        self.watcher = Watcher(server, KINDS, (PodUpdate, seen_of))
        for batch in self.watcher.lists():
            self.hear(batch)

    def _say(self, _: LedgerUpdate, what: ExtenderAck | None) -> None:
        self.said = [*self.said[:1], what]  # the first is being written; of the others only the last counts

    def hear(self, batch: Batch[Any]) -> None:
        self.cluster_cache.apply_batch(batch, self.server.now)

    def tick(self) -> None:
        self.cluster_cache.advance_time(self.server.now)

    def look(self) -> None:
        self.cluster_cache.advance_time(self.server.now)
        self.registration.update(BUILT_IN, answering=self._fit(), urgent=True)
        self.extender.settling = self.registration.settling

    def filter(self, pod: Json, names: frozenset[str]) -> tuple[str, ...]:
        """Return the answer; nothing for a 503."""
        self.look()
        if not self._fit() or (self.flags.registers and self.registration.not_ready_reason is not None):
            return ()
        try:
            nodes = self.extender.filter(pod_of(pod), names).nodes
        except NotReadyError:
            return ()
        if not self.flags.remembers:
            self.cluster_cache.forget_assumed_pod(pod["metadata"]["uid"])
        return nodes

    def _fit(self) -> bool:
        return self.silent_since is None or self.server.now - self.silent_since <= SILENCE_S


class Scheduler:
    """kube-scheduler's cache: pods that it has seen bound, and its own assumed pods."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.bound: dict[str, Json] = {}
        self.assumed: dict[str, tuple[str, int]] = {}
        self.watcher = Watcher(server, (PlannerPod,), (dict, dict))
        for batch in self.watcher.lists():
            self.hear(batch)

    def hear(self, batch: Batch[Any]) -> None:
        for uid in batch.removed:
            self.bound.pop(uid, None)
            self.assumed.pop(uid, None)
        for pod in batch.updates:
            if pod["spec"].get("nodeName"):
                self.bound[pod["metadata"]["uid"]] = pod
                self.assumed.pop(pod["metadata"]["uid"], None)

    def tick(self) -> None:
        """Nothing expires here."""

    def feasible(self, pod: Json, own: frozenset[str]) -> frozenset[str]:
        """Return nodes with enough GPUs: of a member its pinned node, of other pods the scheduler's own nodes."""
        node = pinned(pod)
        return frozenset(name for name in ({node} if node else own) if self._free(name) >= gpus(pod))

    def _free(self, node: str) -> int:
        taken = sum(gpus(each) for each in self.bound.values() if each["spec"]["nodeName"] == node)
        return self.server.nodes[node] - taken - sum(number for where, number in self.assumed.values() if where == node)
