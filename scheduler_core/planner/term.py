"""One term of leadership: what was seen and answered goes in, what is to be written or planned next comes out.

On the loop's thread, without I/O: writes and plans are handed over and their answers come back. A term begins with
nothing known: the ledger is taken over first and everything is listed after that, so what a predecessor wrote is known
before anything is done about it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Protocol

from gputopo.labels.reservations import Phase, Seat, State
from scheduler_core.gangs.conventions import is_alone
from scheduler_core.gangs.gang import Gang, GangPhase
from scheduler_core.gangs.member import GangName
from scheduler_core.gangs.planning import Levels, NodeView, Unplaced
from scheduler_core.gangs.protocol import Turn, counting, turn
from scheduler_core.gangs.queue import Pace, Queue, Waiting
from scheduler_core.gangs.steps import Terms, steps
from scheduler_core.gangs.writes import (
    AskForPod,
    CreateLedger,
    CreateReservation,
    DeleteReservation,
    DropRegistration,
    Key,
    LetGo,
    Release,
    Tell,
    Touch,
    Write,
    WriteLedger,
    WriteStatus,
    gang_of,
)
from scheduler_core.planner.holding import Held, HoldJob
from scheduler_core.planner.holds import Holds
from scheduler_core.planner.placing import Job, Names, Placing, options_of
from scheduler_core.planner.tells import of_not_let_go, of_refused, of_release, of_status, of_unplaced
from scheduler_core.planner.view import Told, View, Wanted
from scheduler_core.planner.writer import Answer, Outcome
from scheduler_core.policies import Policies
from scheduler_core.policy import Policy
from scheduler_core.registration import policy_of
from scheduler_core.request import PodRequest
from scheduler_core.sightings import Batch, LedgerSeen, ReservationSeen
from scheduler_core.vouching import Known, Voucher

PLAN_S = 1.0  # for one plan
ROOM_S = 3.0  # to find where to hold room
AVOID_S = 300.0  # nodes to which a member was sent in vain
_GATHER_S = 0.03  # what happens within so long is looked at together: a look costs the same for one and for a hundred
_AGAIN_S = 2.0  # before what did not help is tried again on the same version of an object
_REFUSED_S = 30.0  # before what the API server does not take is sent again
_AWAY_S, _LONGEST_AWAY_S = 0.2, 10.0  # after a write without an answer; doubled by each that follows
_AGAIN_UNPLACED_S = 0.5  # between two plans for those that did not fit
_BATCH = 256  # single pods in a reservation
_OUTCOMES = {State.BOUND: "bound", State.ROLLING_BACK: "rolled back", State.FAILED: "failed"}
_NOT_TAKEN = (Outcome.REFUSED, Outcome.CONFLICT, Outcome.GONE)
_log = logging.getLogger(__name__)


class Settled(NamedTuple):
    """What the operator has decided."""

    pool: str
    namespace: str  # of reservations of single pods
    terms: Terms
    pace: Pace
    levels: Levels
    release_after_s: float | None = None  # a gang that fits nowhere is released after so long; None: never
    gate_timeout_s: float | None = None  # the same of a single pod


class Clock(NamedTuple):
    """Seconds."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time  # since 1970


CLOCK = Clock()


class Hands(Protocol):
    """What does the work. Answers come back by ``Term.answered`` and ``Term.planned``."""

    def write(self, what: Write) -> None:
        """Carry it out."""
        ...

    def plan(self, job: Job) -> None:
        """Work it out."""
        ...

    def hold(self, job: HoldJob) -> None:
        """Work it out. Comes back by ``Term.found_room``."""
        ...

    def wake(self, seconds: float) -> None:
        """Call ``Term.round`` after that time, or sooner."""
        ...

    def note(self, answer: Answer) -> None:
        """A write was answered."""
        ...

    def tell(self, what: Tell) -> None:
        """Write an Event."""
        ...

    def placed(self, outcome: str, gang: Gang, seconds: float) -> None:
        """How long a gang waited: bound, rolled back, failed, released."""
        ...


class Refusal(NamedTuple):
    """A write that is not to be repeated yet."""

    version: str  # of the object that it was worked out from
    until: float  # monotonic seconds


class Term:
    """From taking over the ledger until another does, or the Lease is lost."""

    def __init__(
        self, settled: Settled, policies: Callable[[], Policies], me: str, hands: Hands, clock: Clock = CLOCK
    ) -> None:
        self.view = View(policies().common, settled.pool, me)
        self.queue = Queue(settled.pace)
        self.unplaced: dict[GangName, Unplaced] = {}
        self.deposed = False
        self.leads = False  # the ledger is ours
        self._settled, self._policies, self._me, self._hands = settled, policies, me, hands
        self._clock = clock
        self._ledger_read = False
        self._busy: dict[Key, Write] = {}
        self._refused: dict[tuple[type[Any], Key], Refusal] = {}
        self._planning = False
        self._voucher = Voucher()
        self._holds = Holds(self.view, self.queue)
        self._touched: set[GangName] = set()  # that may be others since the last round
        self._avoid: dict[GangName, dict[str, float]] = {}  # gang -> node -> until, monotonic seconds
        self._away = 0  # pauses in a row
        self._away_in: list[str] = []  # namespaces of writes in a row that nobody answered; "": of none
        self._pause = 0.0  # monotonic: nothing is written before
        self._next_plan = 0.0  # monotonic: not before, for those that did not fit
        self._tried: object = None
        self._let_off: set[GangName] = set()  # whose release is counted: pods are released one by one

    def take(self, batch: Batch[Any]) -> None:
        """What a watch saw."""
        self._touched |= self.view.take(batch, self._clock.wall())
        self._hands.wake(_GATHER_S)

    def tick(self) -> None:
        """Let time pass."""
        self.view.knowledge.tick(self._clock.wall())
        self._hands.wake(0.0)

    def read(self, ledger: LedgerSeen | None) -> None:
        """The ledger as it is at the beginning."""
        self.view.read(ledger, self._clock.wall())
        if ledger is not None and _is_new(ledger, self._settled.terms.settle_s, self._clock.wall()):
            self.view.memory = self.view.memory._replace(fresh=True)
        self._ledger_read = True
        self._hands.wake(0.0)

    def round(self) -> None:
        """Hand over all that is to be done now."""
        now = self._clock.monotonic()
        if not self._ledger_read or self.deposed or now < self._pause:
            return
        view = self.view
        ledger = view.ledger
        mine = turn(ledger, self._me) is Turn.LEAD
        if self.leads and not mine:
            self.deposed = True
            _log.warning("deposed", extra={"fields": {"planner": ledger.spec.planner if ledger else None}})
            return
        self.leads = mine
        if mine and not view.knowledge.synced:
            return
        self._put()
        view.look(now)
        wanted = Wanted(self._crowded(), self._holds.unheld(now), self._holds.estimates(now))
        for write in steps(view.world(now, self._clock.wall(), wanted), *self._rules()):
            self._submit(write, now)
        if mine:
            for write in self._released():
                self._submit(write, now)
            self._plan(now)

    def answered(self, answer: Answer) -> None:
        """What became of a write."""
        what, outcome, now = answer.write, answer.outcome, self._clock.monotonic()
        self._busy.pop(what.key, None)
        self._hands.note(answer)
        if outcome is not Outcome.DONE:
            self.view.unwritten(what)
        if isinstance(what, CreateReservation) and outcome in _NOT_TAKEN:
            self._set_back(what, answer.error)
        if outcome is Outcome.AWAY:
            self._unanswered(what, answer.error, now)
            return
        if outcome is not Outcome.DEPOSED:
            self._away = 0
            self._away_in.clear()
        if isinstance(what, AskForPod):
            self._heard_of(what, gone=outcome is Outcome.GONE, now=now)
        elif outcome is Outcome.DONE:
            self._done(answer)
        elif what.key[0] == "ledger":
            self.view.read(answer.ledger, self._clock.wall())
        if outcome is Outcome.REFUSED:
            self._not_taken(what, answer.error)
        if outcome is not Outcome.DONE or not isinstance(what, WriteLedger):
            self._refuse(what, now + (_REFUSED_S if outcome is Outcome.REFUSED else _AGAIN_S))
        self._hands.wake(_GATHER_S if what.key[0] == "pod" and self._busy else 0.0)

    def planned(self, found: Placing) -> None:
        """What came of a plan."""
        self._planning = False
        now = self._clock.monotonic()
        for name, why in found.unplaced.items():
            self.unplaced[name] = why
            self.queue.unplaced(name, self._tried)
            if (gang := self.view.roster.gang(name)) is not None:
                for tell in of_unplaced(gang, why):
                    self._hands.tell(tell)
        for name in found.gangs:
            self.unplaced.pop(name, None)
        for write in found.created:
            self._submit(write, now)
        if not found.created:
            self._next_plan = now + _AGAIN_UNPLACED_S
        self._hands.wake(0.0)

    def _unanswered(self, what: Write, error: str, now: float) -> None:
        """In one namespace a webhook may fail that others know nothing of; else nobody is asked for a while."""
        self._away_in.append(namespace_of(what))
        if "" in self._away_in or len(set(self._away_in)) > 1:
            self._pause = now + min(_LONGEST_AWAY_S, _AWAY_S * 2.0 ** min(self._away, 10))
            self._away += 1
            self._hands.wake(self._pause - now)
            return
        self._refuse(what, now + _AGAIN_S)
        if isinstance(what, CreateReservation):
            self._set_back(what, error)
        self._hands.wake(_AGAIN_S)

    def _not_taken(self, what: Write, error: str) -> None:
        """Whom the API server does not let us write a predecessor cannot let go either: its room is given up."""
        if isinstance(what, Touch):
            self.view.touched(what)
        elif isinstance(what, LetGo):
            self._hands.tell(of_not_let_go(what, error))

    def _set_back(self, what: CreateReservation, error: str) -> None:
        """Its next plan would be refused like this one, and whoever is behind it would wait for ever."""
        if what.spec.held:
            return  # ``Holds`` waits by itself
        why = Unplaced(f"the API server does not take its reservation: {error}")
        names = {GangName(what.namespace, what.spec.gang)} if what.spec.gang else set(self._of_seats(what.spec.seats))
        for name in names:
            self.queue.rolled_back(name, self._clock.wall())
            self.unplaced[name] = why
            if (gang := self.view.roster.gang(name)) is not None:
                for tell in of_unplaced(gang, why):
                    self._hands.tell(tell)

    def _rules(self) -> tuple[Terms, str]:
        return self._settled.terms, self._settled.pool

    def _put(self) -> None:
        """What became of gangs, once for all that happened since the last round: it costs what they are large."""
        touched, self._touched = self._touched, set()
        for name in touched:
            gang = self.view.roster.gang(name)
            if gang is None or not gang.placed:  # those that were released have gone
                self._let_off.discard(name)
            if gang is None:
                self.queue.forget(name)
                self.unplaced.pop(name, None)
            else:
                self.queue.put(gang)
                if gang.phase is GangPhase.REFUSED:
                    for tell in of_refused(gang):
                        self._hands.tell(tell)

    def _submit(self, what: Write, now: float) -> None:
        if what.key in self._busy:
            return
        refusal = self._refused.get((type(what), what.key))
        if refusal is not None and refusal.version == version_of(what) and now < refusal.until:
            self._hands.wake(refusal.until - now)
            return
        self._busy[what.key] = what
        self.view.writes(what)
        self._hands.write(what)

    def _refuse(self, what: Write, until: float) -> None:
        """The same is not done again at once: its consequences may not have been seen yet."""
        if len(self._refused) > 10_000:
            self._refused = {key: each for key, each in self._refused.items() if each.until > self._clock.monotonic()}
        self._refused[type(what), what.key] = Refusal(version_of(what), until)

    def _done(self, answer: Answer) -> None:
        what, found = answer.write, answer.metadata
        told = None if found is None else Told(found.uid, found.resource_version, found.generation)
        self._touched |= self.view.wrote(what, told, self._clock.wall())
        if isinstance(what, CreateLedger):
            self.view.memory = self.view.memory._replace(fresh=True)
        if isinstance(what, WriteStatus):
            self._changed_state(what)
        if isinstance(what, Release):
            self._hands.tell(of_release(what))
            if what.member.wanted.gang not in self._let_off:
                self._let_off.add(what.member.wanted.gang)
                self._waited("released", what.member.wanted.gang)
        if isinstance(what, WriteLedger):
            self._struck(what)

    def _changed_state(self, what: WriteStatus) -> None:
        state, name = what.status.state, gang_of(what.of)
        members = (self.view.roster.member(seat.uid) for seat in what.of.spec.seats)
        if state is not what.of.status.state:
            for tell in of_status(what, (each for each in members if each is not None)):
                self._hands.tell(tell)
        if state is State.ROLLING_BACK:
            self._taken_back(what.of)
        elif state is State.BOUND and name is not None:
            self.queue.started(name)
        if name is not None and state in _OUTCOMES:
            self._waited(_OUTCOMES[state], name)

    def _struck(self, what: WriteLedger) -> None:
        """Single pods are bound once their batch is struck; a plan that was given up is not made again at once."""
        left = {each.uid for each in what.spec.entries}
        for entry in what.over.spec.entries:
            reservation = self.view.reservations.get(entry.uid)
            if entry.uid in left or reservation is None:
                continue
            for name in self._names(reservation):
                if entry.phase is Phase.PROPOSED:
                    self.unplaced[name] = Unplaced("there was a place, and others were faster")
                    self.queue.unplaced(name, self.view.knowledge.table.generation)
                elif entry.phase is Phase.COMMITTED and not reservation.spec.gang:
                    self._waited("bound", name)

    def _names(self, reservation: ReservationSeen) -> Iterator[GangName]:
        """Whose it is."""
        if (name := gang_of(reservation)) is not None:
            yield name
            return
        yield from self._of_seats(reservation.spec.seats)

    def _of_seats(self, seats: Iterable[Seat]) -> Iterator[GangName]:
        members = (self.view.roster.member(seat.uid) for seat in seats)
        yield from (each.wanted.gang for each in members if each is not None)

    def _waited(self, outcome: str, name: GangName) -> None:
        gang = self.view.roster.gang(name)
        if gang is not None and gang.created:  # nobody knows since when, once none of its pods is left
            self._hands.placed(outcome, gang, max(0.0, self._clock.wall() - gang.created))

    def _taken_back(self, reservation: ReservationSeen) -> None:
        """Its gang waits, and does without the nodes that nobody reached."""
        now = self._clock.monotonic()
        until = now + AVOID_S
        # Kept while its gang has no member at all: a rollback deletes them, and they come again.
        self._avoid = {name: nodes for name, nodes in self._avoid.items() if max(nodes.values()) > now}
        for seat in reservation.spec.seats:
            member = self.view.roster.member(seat.uid)
            name = gang_of(reservation) or (member.wanted.gang if member is not None and member.node is None else None)
            if name is None:
                continue
            if seat.node is not None and member is not None and member.node is None:
                self._avoid.setdefault(name, {})[seat.node] = until
            if not reservation.spec.gang:
                self.queue.rolled_back(name, self._clock.wall())
        if (name := gang_of(reservation)) is not None:
            self.queue.rolled_back(name, self._clock.wall())

    def _heard_of(self, what: AskForPod, *, gone: bool, now: float) -> None:
        memory = self.view.memory
        silence = memory.silent.get(what.identity)
        if silence is not None:
            silence = silence._replace(asked=now, gone=now if gone and silence.gone is None else silence.gone)
            self.view.memory = memory._replace(silent={**memory.silent, what.identity: silence})

    def _released(self) -> Iterator[Release]:
        """Pods that waited in vain for as long as they may."""
        if not self.unplaced:
            return
        gangs, pods = self._spoken_for()
        now = self._clock.wall()
        for each in self.queue.order():
            alone = is_alone(each.gang.name)
            limit = self._settled.gate_timeout_s if alone else self._settled.release_after_s
            if (
                each.misfit is None
                or limit is None
                or now - each.gang.newest < limit
                or not _is_free(each.gang, gangs, pods)
            ):
                continue
            known = self.unplaced.get(each.gang.name)
            why = f"no place within {limit:g} s" if known is None else f"{known.reason}, for {limit:g} s"
            policy = "gate-timeout" if alone else "unplaceable"
            yield from (Release(member, why, policy) for member in each.gang.ready)

    def _crowded(self) -> frozenset[str]:
        """Proposals for which there is no room any more, as far as is known here."""
        view, ledger = self.view, self.view.ledger
        if ledger is None or all(each.phase is not Phase.PROPOSED for each in ledger.spec.entries):
            return frozenset()
        policies = self._policies()
        known = Known(view.knowledge.table, view.knowledge.pods, ())
        said = self._voucher.vouch(ledger, view.knowledge.reserved, known, partial(policy_of, policies), "")
        self._voucher.keep(view.knowledge.reserved.counting)
        return frozenset(said.blocked)

    def _plan(self, now: float) -> None:
        """Have the next of the queue planned, unless something planned is still to be listed."""
        if (
            self._planning
            or self.view.memory.made
            or any(isinstance(each, CreateReservation) for each in self._busy.values())
        ):
            return
        if self._hold(now):
            return
        gangs, pods = self._spoken_for()
        if not self.queue.has(lambda gang: _is_free(gang, gangs, pods)):
            return  # what the nodes look like need not be worked out
        state = self.view.knowledge.table.generation
        batches = tuple(
            batch
            for each in self.queue.batches(self._clock.wall(), state, _BATCH)
            if (batch := tuple(one for one in each if _is_free(one.gang, gangs, pods)))
        )
        if not batches:
            due = self.queue.next_due(self._clock.wall())
            if due is not None:
                self._hands.wake(max(0.0, due - self._clock.wall()))
            return
        if now < self._next_plan and all(one.misfit is not None for each in batches for one in each):
            self._hands.wake(self._next_plan - now)
            return
        self._planning, self._tried = True, state
        self._hands.plan(self._job(batches, now))

    def _hold(self, now: float) -> bool:
        """Have room sought, where it is to be."""
        wall, until = self._clock.wall(), now + ROOM_S
        sought = self._holds.sought(wall, now)
        if sought is None:
            return False
        self._planning = True
        gang = sought.waiting.gang
        job = HoldJob(
            gang,
            sought.held,
            self._node_view(),
            sought.endings,
            options_of(gang, self.view.seats(), self._settled.levels)._replace(
                avoid=self._avoided(gang.name, now), there=self.view.there()
            ),
            self._new_names(),
            wall,
            self._policies().common,
            lambda: self._clock.monotonic() > until,
        )
        self._hands.hold(job)
        return True

    def found_room(self, found: Held) -> None:
        """Where room is to be held."""
        self._planning = False
        now = self._clock.monotonic()
        self._holds.found(found, now)
        if found.create is not None:
            self._submit(found.create, now)
        self._hands.wake(0.0)

    def _job(self, batches: tuple[tuple[Waiting, ...], ...], now: float) -> Job:
        view, until = self.view, now + PLAN_S
        return Job(
            batches,
            self._node_view(),
            self._holds.tables(batches),
            view.seats(),
            {name: self._avoided(name, now) for name in self._avoid},
            self._settled.levels,
            self._new_names(),
            lambda: self._clock.monotonic() > until,
            view.there(),
        )

    def _node_view(self) -> NodeView:
        policies = self._policies()

        def judged_by(request: PodRequest) -> Policy:
            return policies.placement(request).policy

        return NodeView(self.view.knowledge.table, dict(self.view.rules), judged_by)

    def _new_names(self) -> Names:
        return Names(self._settled.namespace, lambda: secrets.token_hex(3))

    def _avoided(self, name: GangName, now: float) -> frozenset[str]:
        return frozenset(node for node, end in self._avoid.get(name, {}).items() if end > now)

    def _entries(self) -> list[tuple[Any, ReservationSeen]]:
        ledger, reservations = self.view.ledger, self.view.reservations
        assert ledger is not None  # nothing is planned before
        return [(entry, reservations[uid]) for uid, entry in counting(ledger.spec, reservations).items()]

    def _spoken_for(self) -> tuple[frozenset[GangName], frozenset[str]]:
        """Gangs and pods for which something is under way."""
        open_ = [each for entry, each in self._entries() if entry.phase is not Phase.HELD]
        open_ += [each for each in self.view.reservations.values() if each.status.state is State.FAILED]
        gangs = frozenset(name for each in open_ if (name := gang_of(each)) is not None)
        return gangs, frozenset(seat.uid for each in open_ if not each.spec.gang for seat in each.spec.seats)


def _is_free(gang: Gang, gangs: AbstractSet[GangName], pods: AbstractSet[str]) -> bool:
    return gang.name not in gangs and not any(each.uid in pods for each in gang.ready)


def _is_new(ledger: LedgerSeen, settle_s: float, now: float) -> bool:
    """Whether extenders may not know of it yet: by two clocks, so with a minute between them."""
    made = None if ledger.created is None else datetime.fromisoformat(ledger.created).timestamp()
    return made is not None and now - made < settle_s + 60.0


def version_of(what: Write) -> str:
    """Of the object that it was worked out from; "" where there was none."""
    for field in ("over", "of", "member"):
        found = getattr(what, field, None)
        if found is not None and not isinstance(found, str):
            return str(found.version)
    return ""


def namespace_of(what: Write) -> str:
    """Of the object that is written; "" where it has none."""
    if isinstance(what, CreateReservation):
        return what.namespace
    if isinstance(what, WriteStatus | DeleteReservation):
        return what.of.namespace
    return "" if isinstance(what, CreateLedger | WriteLedger | DropRegistration | AskForPod) else what.member.namespace
