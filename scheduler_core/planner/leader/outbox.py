"""Sends writes, and applies their answers: to the view, the backlog, Events and metrics. No I/O: ``Executor`` sends.

Each object has at most one write in flight. A write that failed, or was not answered, is not sent again at once: its
consequences may not have been seen yet, or nothing has changed that makes another answer likely.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

from gputopo.crd.reservations import EntryPhase, ReservationState
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import (
    Action,
    CheckBudgets,
    CreateLedger,
    CreateReservation,
    DeletePod,
    EndPod,
    EvictPod,
    Key,
    PodAction,
    ProbeExtenderPod,
    ReleasePod,
    RequestNodes,
    StripFinalizer,
    TouchPod,
    UngateAndPin,
    WriteLedger,
    WriteStatus,
    reserved_gang,
    reserved_gangs,
)
from scheduler_core.planner.commit.members import is_bound
from scheduler_core.planner.commit.observations import (
    BudgetCheck,
    with_evicted_pod,
    with_refused_write,
    without_refused_write,
    without_unanswered_writes,
)
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.backlog import GangBacklog
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.events import (
    end_event,
    eviction_events,
    failed_ungate_event,
    node_request_event,
    release_event,
    status_events,
    stuck_event,
)
from scheduler_core.planner.leader.preemptions import Preemptions
from scheduler_core.planner.leader.view import PlannerView, WriteResponse
from scheduler_core.planner.leader.writer import WriteAnswer, WriteOutcome

UNGATING_DELAY_S = 0.1  # until the next round while pods are ungated and bound: it has nothing to do before the last
_RETRY_S = 2.0  # until a failed write for the same version of an object is sent again
_MAX_RETRY_S = 16.0  # of writes without an answer: each further one doubles the time
_RENEWED_S = 5.0  # a Lease that was renewed within this time shows that the API server answers; it is renewed every 2 s
_REFUSED_S = 30.0  # until a refused write is sent again
_EVICTION_S = 10.0  # until a refused eviction is sent again, as the API server asks for (Retry-After)
_PAUSE_S, _MAX_PAUSE_S = 0.2, 10.0  # of all writes while the API server does not answer; doubled by each further one
_MIN_PRUNED = 256  # backed-off writes; expired ones are removed when their number has doubled


class BackedOffWrite(NamedTuple):
    """A write that is not to be sent again yet."""

    version: str  # of the object that the write is based on
    until: float  # monotonic seconds
    seconds: float


class Outbox:
    """Writes of one term of leadership. For one thread."""

    def __init__(
        self, context: TermContext, view: PlannerView, backlog: GangBacklog, preemptions: Preemptions | None = None
    ) -> None:
        self._context, self._view, self._backlog = context, view, backlog
        self._preemptions = preemptions
        self._in_flight: dict[Key, Action] = {}
        self._creating: set[Key] = set()  # those that create reservations
        self._backed_off: dict[tuple[type[Any], Key], BackedOffWrite] = {}
        self._prune_at = _MIN_PRUNED
        self._pauses = 0  # in a row
        self._unanswered_in: set[str] = set()  # namespaces of unanswered writes in a row; "": cluster-scoped
        self._paused_until = 0.0  # monotonic seconds

    @property
    def is_busy(self) -> bool:
        """True if any write is in flight."""
        return bool(self._in_flight)

    @property
    def is_writing_plan(self) -> bool:
        """True if a reservation is being created."""
        return bool(self._creating)

    @property
    def in_flight(self) -> Container[Key]:
        """The keys of the writes in flight."""
        return self._in_flight.keys()

    def is_paused(self, now: float) -> bool:
        """Return True if writes are paused."""
        return now < self._paused_until

    def submit_action(self, action: Action, now: float) -> None:
        """Send a write, unless another write of the object is in flight, or the same write failed a moment ago."""
        if action.key in self._in_flight:
            return
        backed_off = self._backed_off_write(action)
        if backed_off is not None and now < backed_off.until:
            self._context.executor.schedule_round(backed_off.until - now)
            return
        self._in_flight[action.key] = action
        if isinstance(action, CreateReservation):
            self._creating.add(action.key)
        self._view.mark_writing(action)
        self._context.executor.execute_action(action)

    def apply_answer(self, answer: WriteAnswer) -> frozenset[GangName]:
        """Apply the answer to a write. Return the gangs that may have changed."""
        action, outcome, now = answer.write, answer.outcome, self._context.clock.monotonic()
        executor, touched = self._context.executor, frozenset[GangName]()
        executor.count_answer(answer)
        is_rejected = self.record_outcome(action, outcome, now)
        if is_rejected and isinstance(action, CreateReservation):
            self._backlog.mark_refused(action, answer.error)
        if outcome is WriteOutcome.UNANSWERED:
            self._apply_unanswered(action, answer.error, now, is_unavailable=not is_rejected)
        if outcome in (WriteOutcome.UNANSWERED, WriteOutcome.DEPOSED):  # nothing is known about the object
            return touched
        if outcome is WriteOutcome.REFUSED:
            self._apply_refused(action, answer.error, now)
        if isinstance(action, RequestNodes) and outcome is not WriteOutcome.CONFLICT:  # else it exists
            executor.write_event(node_request_event(action, None if outcome is WriteOutcome.DONE else answer.error))
        if isinstance(action, ProbeExtenderPod):
            self._apply_probe(action, gone=outcome is WriteOutcome.GONE, now=now)
        elif isinstance(action, CheckBudgets):
            self._apply_budgets(action, answer, now)
        elif outcome is WriteOutcome.DONE:
            touched = self._apply_done(answer)
        elif isinstance(action, EvictPod) and outcome is not WriteOutcome.REFUSED:  # another pod has its name, or none
            self._apply_evicted(action)
        elif action.key[0] == "ledger":
            self._view.apply_ledger(answer.ledger, self._context.clock.wall())
        executor.schedule_round(UNGATING_DELAY_S if action.key[0] == "pod" and self.is_busy else 0.0)
        return touched

    def record_outcome(self, action: Action, outcome: WriteOutcome, now: float) -> bool:
        """Record the outcome of a write, and back off or pause.

        Return whether this write failed for reasons of its own, and not because the API server is unavailable.
        """
        self._in_flight.pop(action.key, None)
        self._creating.discard(action.key)
        if isinstance(action, PodAction):  # it may have to be written again
            self._view.reservation_index.mark_pods_dirty((action.member.uid,))
        if outcome is not WriteOutcome.DONE:
            self._view.mark_not_written(action)
        if outcome is WriteOutcome.UNANSWERED:
            return self._record_unanswered(action, now)
        if outcome is not WriteOutcome.DEPOSED:
            self._pauses = 0
            self._unanswered_in.clear()
        # The next dry run for a gang counts other pods.
        is_dry_run = isinstance(action, CheckBudgets) and action.dry_run_for is not None
        if outcome is not WriteOutcome.DONE or not (isinstance(action, WriteLedger) or is_dry_run):
            refused_s = _EVICTION_S if isinstance(action, EvictPod) else _REFUSED_S
            self._back_off(action, now, refused_s if outcome is WriteOutcome.REFUSED else _RETRY_S)
        return outcome in (WriteOutcome.REFUSED, WriteOutcome.CONFLICT, WriteOutcome.GONE)

    def _record_unanswered(self, action: Action, now: float) -> bool:
        """Pause all writes if the API server is unavailable. Else back off: a webhook for these pods may fail."""
        self._unanswered_in.add(action.namespace)
        if self._is_api_server_unavailable(now):
            if now >= self._paused_until:  # writes that were in flight when the pause began do not make it longer
                self._paused_until = now + min(_MAX_PAUSE_S, _PAUSE_S * 2.0 ** min(self._pauses, 10))
                self._pauses += 1
            self._context.executor.schedule_round(self._paused_until - now)
            return False
        before = self._backed_off_write(action)
        seconds = _RETRY_S if before is None else min(_MAX_RETRY_S, 2 * before.seconds)
        self._back_off(action, now, seconds)
        self._context.executor.schedule_round(seconds)
        return True

    def _is_api_server_unavailable(self, now: float) -> bool:
        """Return whether the ledger, or objects in several namespaces, cannot be written, and no Lease either.

        Without the Lease, failing webhooks for the pods of two namespaces would stop the writes of all namespaces.
        """
        return "" in self._unanswered_in or (len(self._unanswered_in) > 1 and not self._is_lease_renewed(now))

    def _is_lease_renewed(self, now: float) -> bool:
        return now - self._context.executor.lease_renewed_at() <= _RENEWED_S

    def _backed_off_write(self, action: Action) -> BackedOffWrite | None:
        """Return the back-off of the same write, based on the same version of the object."""
        found = self._backed_off.get((type(action), action.key))
        return found if found is not None and found.version == action.version else None

    def _back_off(self, action: Action, now: float, seconds: float) -> None:
        """Do not send the same write again at once: the consequences of its answer may not have been seen yet."""
        if len(self._backed_off) >= self._prune_at:
            self._backed_off = {key: each for key, each in self._backed_off.items() if each.until > now}
            self._prune_at = max(_MIN_PRUNED, 2 * len(self._backed_off))
        self._backed_off[type(action), action.key] = BackedOffWrite(action.version, now + seconds, seconds)

    def _apply_done(self, answer: WriteAnswer) -> frozenset[GangName]:
        action, metadata = answer.write, answer.metadata
        response = (
            None if metadata is None else WriteResponse(metadata.uid, metadata.resource_version, metadata.generation)
        )
        touched = self._view.apply_write(action, response, self._context.clock.wall())
        if isinstance(action, CreateLedger):
            self._view.observations = self._view.observations._replace(is_new_ledger=True)
        elif isinstance(action, WriteStatus):
            self._apply_status(action)
        elif isinstance(action, ReleasePod):
            self._context.executor.write_event(release_event(action))
            self._backlog.mark_released(action.member.gang_request.gang)
        elif isinstance(action, WriteLedger):
            self._apply_removed_entries(action)
        elif isinstance(action, EndPod):
            self._context.executor.write_event(end_event(action))
        elif isinstance(action, EvictPod):
            self._apply_accepted_eviction(action)
        return touched

    def _apply_accepted_eviction(self, action: EvictPod) -> None:
        """Count and report an eviction, once for each pod: it may be repeated."""
        is_repeated = action.eviction.uid in self._view.observations.evicted
        self._apply_evicted(action)
        if is_repeated:
            return
        preemptions, now = self._preemptions, self._context.clock.monotonic()
        again = preemptions is not None and preemptions.mark_evicted(action, now)
        self._context.executor.count_eviction(again=again)
        unit = None if preemptions is None else preemptions.chosen_unit(action)
        for draft in eviction_events(action, unit):
            self._context.executor.write_event(draft)

    def _apply_evicted(self, action: EvictPod) -> None:
        """Record that a pod is evicted, or is gone already."""
        uid, now = action.eviction.uid, self._context.clock.monotonic()
        observations = without_refused_write(self._view.observations, EvictPod, uid)
        self._view.observations = with_evicted_pod(observations, uid, now)

    def _apply_refused(self, action: Action, error: str, now: float) -> None:
        """Record a refused write.

        If a pod cannot be touched, a predecessor's patch cannot ungate it either: its capacity can be given up.
        """
        self._record_refused_write(action, error, now, answered=True)
        if isinstance(action, TouchPod):
            self._view.mark_touched(action)
        elif isinstance(action, UngateAndPin):
            self._context.executor.write_event(failed_ungate_event(action, error))

    def _apply_unanswered(self, action: Action, error: str, now: float, *, is_unavailable: bool) -> None:
        """Record an unanswered write of a pod: a webhook for these pods may fail, or large budgets make it slow.

        If other objects or other namespaces are not answered either, and no Lease, the API server is unavailable: then
        nothing is decided, however long that takes.
        """
        if is_unavailable or (action.key[0] != "pod" and not self._is_lease_renewed(now)):
            self._view.observations = without_unanswered_writes(self._view.observations)
        elif action.key[0] in ("pod", "eviction"):
            self._record_refused_write(action, error, now, answered=False)

    def _record_refused_write(self, action: Action, error: str, now: float, *, answered: bool) -> None:
        if isinstance(action, UngateAndPin | TouchPod | StripFinalizer | DeletePod | EvictPod):
            uid = action.eviction.uid if isinstance(action, EvictPod) else action.member.uid
            self._view.observations = with_refused_write(
                self._view.observations, type(action), uid, error, now, answered=answered
            )

    def _apply_probe(self, action: ProbeExtenderPod, *, gone: bool, now: float) -> None:
        """Record whether the pod of a silent extender exists."""
        observations = self._view.observations
        silent = observations.silent_extenders.get(action.identity)
        if silent is not None:
            silent = silent._replace(probed_at=now, gone_at=now if gone and silent.gone_at is None else silent.gone_at)
            self._view.observations = observations._replace(
                silent_extenders={**observations.silent_extenders, action.identity: silent}
            )

    def _apply_budgets(self, action: CheckBudgets, answer: WriteAnswer, now: float) -> None:
        """Record which units may be evicted. If the budgets or the nodes cannot be read, none may."""
        blocked = answer.blocked
        if answer.outcome is not WriteOutcome.DONE:
            error = f"PodDisruptionBudgets, or the pods of its node, cannot be read: {answer.error}"
            blocked = {each.unit: error for each in action.evictions}
        if action.dry_run_for is not None:
            if self._preemptions is not None:
                check = BudgetCheck(now, blocked, answer.forbidden, answer.insufficient_nodes)
                self._preemptions.apply_dry_run_check(action.dry_run_for, check, now)
            return
        observations = self._view.observations
        check = BudgetCheck(now, blocked, answer.forbidden, answer.insufficient_nodes)
        self._view.observations = observations._replace(budgets={**observations.budgets, action.hold: check})

    def _apply_status(self, action: WriteStatus) -> None:
        """Write Events and count waiting times when the state of a reservation changed."""
        reservation, state, name = action.reservation, action.status.state, reserved_gang(action.reservation)
        intent = reservation.spec.preemption
        if intent is not None and action.status.evicting and not reservation.status.evicting:
            self._context.executor.count_preemption("begun", intent)
        if intent is not None and action.status.stuck and not reservation.status.stuck:
            self._context.executor.count_preemption("stuck", intent)
            self._context.executor.write_event(stuck_event(action))
        if state is reservation.status.state:  # only its numbers or its reason changed
            return
        members = (self._view.gang_members.get_member(seat.uid) for seat in reservation.spec.seats)
        for draft in status_events(action, (each for each in members if each is not None)):
            self._context.executor.write_event(draft)
        if state is ReservationState.ROLLING_BACK:
            self._backlog.mark_rolled_back(reservation, action.status.reason)
            if name is None:
                self._end_single_waits(reservation, "rolled back", bound=False)
            else:
                self._backlog.mark_rolling_back(reservation.key, name)
        elif state is ReservationState.BOUND and name is not None:
            self._backlog.queue.mark_started(name)
            self._backlog.end_wait("bound", name)
        elif state is ReservationState.FAILED and name is not None:
            self._backlog.mark_failed(reservation.key, name)

    def _apply_removed_entries(self, action: WriteLedger) -> None:
        """Mark withdrawn proposals, and count the waiting times of single pods and rollbacks that ended."""
        kept = {each.uid for each in action.spec.entries}
        for entry in action.ledger.spec.entries:
            if entry.uid in kept:
                continue
            self._backlog.mark_removed(entry.uid)
            reservation = self._view.reservations.get(entry.uid)
            if reservation is None:
                continue
            if entry.phase is EntryPhase.PROPOSED:
                state = self._view.plan_state(self._context.clock.monotonic())
                nodes = frozenset(seat.node for seat in reservation.spec.seats if seat.node is not None)
                for name in reserved_gangs(reservation.namespace, reservation.spec, self._view.gang_members.get_member):
                    self._backlog.mark_withdrawn(name, nodes, state)
            elif entry.phase is EntryPhase.COMMITTED and not reservation.spec.gang:
                self._end_single_waits(reservation, "bound", bound=True)

    def _end_single_waits(self, batch: ReservationUpdate, outcome: str, *, bound: bool) -> None:
        """Count the waiting times of the bound, or the unbound, single pods of a reservation."""
        for seat in batch.spec.seats:
            member = self._view.gang_members.get_member(seat.uid)
            if member is not None and is_bound(member) is bound:
                self._backlog.end_wait(outcome, member.gang_request.gang)
