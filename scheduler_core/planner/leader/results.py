"""What follows from writes that were done: for the view, the queue, for people and the metrics. No I/O."""

from __future__ import annotations

from gputopo.crd.reservations import EntryPhase, ReservationState
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import (
    Action,
    CreateLedger,
    DeletePod,
    ProbeExtenderPod,
    ReleasePod,
    StripFinalizer,
    TouchPod,
    UngateAndPin,
    WriteLedger,
    WriteStatus,
    reserved_gang,
    reserved_gangs,
)
from scheduler_core.planner.commit.members import is_bound
from scheduler_core.planner.commit.observations import with_refused_write, without_unanswered_writes
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.backlog import GangBacklog
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.events import failed_ungate_event, release_event, status_events
from scheduler_core.planner.leader.view import PlannerView, WriteResponse
from scheduler_core.planner.leader.wait_times import WaitTimes
from scheduler_core.planner.leader.writer import WriteAnswer


class WriteResults:
    """For one thread, and one term of leadership."""

    def __init__(self, given: TermContext, view: PlannerView, backlog: GangBacklog, waits: WaitTimes) -> None:
        self._given, self._view, self._backlog, self._waits = given, view, backlog, waits

    def apply_done(self, answer: WriteAnswer) -> frozenset[GangName]:
        """A write was done. Answers the gangs that may be others by that."""
        what, found = answer.write, answer.metadata
        told = None if found is None else WriteResponse(found.uid, found.resource_version, found.generation)
        touched = self._view.apply_write(what, told, self._given.clock.wall())
        if isinstance(what, CreateLedger):
            self._view.observations = self._view.observations._replace(is_new_ledger=True)
        if isinstance(what, WriteStatus):
            self._changed_state(what)
        if isinstance(what, ReleasePod):
            self._given.executor.write_event(release_event(what))
            self._waits.mark_released(what.member.gang_request.gang)
        if isinstance(what, WriteLedger):
            self._struck(what)
        return touched

    def apply_refused(self, what: Action, error: str, now: float) -> None:
        """The API server does not take a write. ``now``: monotonic seconds.

        Whom it does not let us write a predecessor cannot let go either: the room of that pod is given up.
        """
        self._denied(what, error, now, answered=True)
        if isinstance(what, TouchPod):
            self._view.mark_touched(what)
        elif isinstance(what, UngateAndPin):
            self._given.executor.write_event(failed_ungate_event(what, error))

    def apply_unanswered(self, what: Action, error: str, now: float, *, elsewhere: bool) -> None:
        """Nobody answered. ``elsewhere``: nor do writes of other namespaces; ``now``: monotonic seconds.

        A webhook may fail of those pods alone. Where what is no pod is not answered either the API server is away:
        then nothing is decided, however long that takes.
        """
        if elsewhere or what.key[0] != "pod":
            self._view.observations = without_unanswered_writes(self._view.observations)
        else:
            self._denied(what, error, now, answered=False)

    def apply_probe(self, what: ProbeExtenderPod, *, gone: bool, now: float) -> None:
        """Whether the pod of an extender that is silent is there. ``now``: monotonic seconds."""
        memory = self._view.observations
        silence = memory.silent_extenders.get(what.identity)
        if silence is not None:
            silence = silence._replace(asked=now, gone=now if gone and silence.gone is None else silence.gone)
            self._view.observations = memory._replace(
                silent_extenders={**memory.silent_extenders, what.identity: silence}
            )

    def _denied(self, what: Action, error: str, now: float, *, answered: bool) -> None:
        if isinstance(what, UngateAndPin | TouchPod | StripFinalizer | DeletePod):
            memory = self._view.observations
            self._view.observations = with_refused_write(
                memory, type(what), what.member.uid, error, now, answered=answered
            )

    def _changed_state(self, what: WriteStatus) -> None:
        state, name = what.status.state, reserved_gang(what.of)
        if state is what.of.status.state:  # its numbers or its reason did
            return
        members = (self._view.gang_members.get_member(seat.uid) for seat in what.of.spec.seats)
        for tell in status_events(what, (each for each in members if each is not None)):
            self._given.executor.write_event(tell)
        if state is ReservationState.ROLLING_BACK:
            self._backlog.mark_rolled_back(what.of, what.status.reason)
        if name is not None:
            self._ended(what.of.key, state, name)
        elif state is ReservationState.ROLLING_BACK:
            self._ended_alone(what.of, "rolled back", bound=False)

    def _ended(self, uid: str, state: ReservationState | None, name: GangName) -> None:
        """An attempt of a gang, if so."""
        if state is ReservationState.BOUND:
            self._backlog.queue.mark_started(name)
            self._waits.end_wait("bound", name)
        elif state is ReservationState.ROLLING_BACK:
            self._waits.mark_rolling_back(uid, name)
        elif state is ReservationState.FAILED:
            self._waits.mark_failed(uid, name)

    def _struck(self, what: WriteLedger) -> None:
        """Single pods are told of once their batch is; a plan that was given up is not made again at once."""
        left = {each.uid for each in what.spec.entries}
        for entry in what.over.spec.entries:
            if entry.uid in left:
                continue
            self._waits.mark_removed(entry.uid)
            reservation = self._view.reservations.get(entry.uid)
            if reservation is None:
                continue
            if entry.phase is EntryPhase.PROPOSED:
                for name in reserved_gangs(reservation.namespace, reservation.spec, self._view.gang_members.get_member):
                    self._backlog.mark_overtaken(name, self._view.plan_state(self._given.clock.monotonic()))
            elif entry.phase is EntryPhase.COMMITTED and not reservation.spec.gang:
                self._ended_alone(reservation, "bound", bound=True)

    def _ended_alone(self, batch: ReservationUpdate, outcome: str, *, bound: bool) -> None:
        """Those of a batch of single pods that are bound, or that are not."""
        for seat in batch.spec.seats:
            member = self._view.gang_members.get_member(seat.uid)
            if member is not None and is_bound(member) is bound:
                self._waits.end_wait(outcome, member.gang_request.gang)
