"""What follows from writes that were done: for the view, the queue, for people and the metrics. No I/O."""

from __future__ import annotations

from gputopo.crd.reservations import Phase, State
from scheduler_core.cache.events import ReservationSeen
from scheduler_core.planner.commit.actions import (
    AskForPod,
    CreateLedger,
    DeletePod,
    LetGo,
    Release,
    StripFinalizer,
    Touch,
    Write,
    WriteLedger,
    WriteStatus,
    gang_of,
    whose,
)
from scheduler_core.planner.commit.members import is_bound
from scheduler_core.planner.commit.observations import with_denial, without_unanswered
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.backlog import Backlog
from scheduler_core.planner.leader.context import Given
from scheduler_core.planner.leader.events import of_not_let_go, of_release, of_status
from scheduler_core.planner.leader.view import Told, View
from scheduler_core.planner.leader.wait_times import Waits
from scheduler_core.planner.leader.writer import Answer


class Consequences:
    """For one thread, and one term of leadership."""

    def __init__(self, given: Given, view: View, backlog: Backlog, waits: Waits) -> None:
        self._given, self._view, self._backlog, self._waits = given, view, backlog, waits

    def done(self, answer: Answer) -> frozenset[GangName]:
        """A write was done. Answers the gangs that may be others by that."""
        what, found = answer.write, answer.metadata
        told = None if found is None else Told(found.uid, found.resource_version, found.generation)
        touched = self._view.wrote(what, told, self._given.clock.wall())
        if isinstance(what, CreateLedger):
            self._view.memory = self._view.memory._replace(fresh=True)
        if isinstance(what, WriteStatus):
            self._changed_state(what)
        if isinstance(what, Release):
            self._given.hands.tell(of_release(what))
            self._waits.released(what.member.wanted.gang)
        if isinstance(what, WriteLedger):
            self._struck(what)
        return touched

    def refused(self, what: Write, error: str, now: float) -> None:
        """The API server does not take a write. ``now``: monotonic seconds.

        Whom it does not let us write a predecessor cannot let go either: the room of that pod is given up.
        """
        self._denied(what, error, now, answered=True)
        if isinstance(what, Touch):
            self._view.touched(what)
        elif isinstance(what, LetGo):
            self._given.hands.tell(of_not_let_go(what, error))

    def unanswered(self, what: Write, error: str, now: float, *, elsewhere: bool) -> None:
        """Nobody answered. ``elsewhere``: nor do writes of other namespaces; ``now``: monotonic seconds.

        A webhook may fail of those pods alone. Where what is no pod is not answered either the API server is away:
        then nothing is decided, however long that takes.
        """
        if elsewhere or what.key[0] != "pod":
            self._view.memory = without_unanswered(self._view.memory)
        else:
            self._denied(what, error, now, answered=False)

    def heard_of(self, what: AskForPod, *, gone: bool, now: float) -> None:
        """Whether the pod of an extender that is silent is there. ``now``: monotonic seconds."""
        memory = self._view.memory
        silence = memory.silent.get(what.identity)
        if silence is not None:
            silence = silence._replace(asked=now, gone=now if gone and silence.gone is None else silence.gone)
            self._view.memory = memory._replace(silent={**memory.silent, what.identity: silence})

    def _denied(self, what: Write, error: str, now: float, *, answered: bool) -> None:
        if isinstance(what, LetGo | Touch | StripFinalizer | DeletePod):
            memory = self._view.memory
            self._view.memory = with_denial(memory, type(what), what.member.uid, error, now, answered=answered)

    def _changed_state(self, what: WriteStatus) -> None:
        state, name = what.status.state, gang_of(what.of)
        if state is what.of.status.state:  # its numbers or its reason did
            return
        members = (self._view.roster.member(seat.uid) for seat in what.of.spec.seats)
        for tell in of_status(what, (each for each in members if each is not None)):
            self._given.hands.tell(tell)
        if state is State.ROLLING_BACK:
            self._backlog.taken_back(what.of, what.status.reason)
        if name is not None:
            self._ended(what.of.key, state, name)
        elif state is State.ROLLING_BACK:
            self._ended_alone(what.of, "rolled back", bound=False)

    def _ended(self, uid: str, state: State | None, name: GangName) -> None:
        """An attempt of a gang, if so."""
        if state is State.BOUND:
            self._backlog.queue.started(name)
            self._waits.ended("bound", name)
        elif state is State.ROLLING_BACK:
            self._waits.taken_back(uid, name)
        elif state is State.FAILED:
            self._waits.failed(uid, name)

    def _struck(self, what: WriteLedger) -> None:
        """Single pods are told of once their batch is; a plan that was given up is not made again at once."""
        left = {each.uid for each in what.spec.entries}
        for entry in what.over.spec.entries:
            if entry.uid in left:
                continue
            self._waits.gone(entry.uid)
            reservation = self._view.reservations.get(entry.uid)
            if reservation is None:
                continue
            if entry.phase is Phase.PROPOSED:
                for name in whose(reservation.namespace, reservation.spec, self._view.roster.member):
                    self._backlog.overtaken(name, self._view.state(self._given.clock.monotonic()))
            elif entry.phase is Phase.COMMITTED and not reservation.spec.gang:
                self._ended_alone(reservation, "bound", bound=True)

    def _ended_alone(self, batch: ReservationSeen, outcome: str, *, bound: bool) -> None:
        """Those of a batch of single pods that are bound, or that are not."""
        for seat in batch.spec.seats:
            member = self._view.roster.member(seat.uid)
            if member is not None and is_bound(member) is bound:
                self._waits.ended(outcome, member.wanted.gang)
