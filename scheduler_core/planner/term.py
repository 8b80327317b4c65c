"""One term of leadership: what was seen and answered goes in, what is to be written or planned next comes out.

On the loop's thread, without I/O: writes and plans are handed over and their answers come back. A term begins with
nothing known: the ledger is taken over first and everything is listed after that, so what a predecessor wrote is known
before anything is done about it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Protocol

from gputopo.labels.reservations import Phase, State
from scheduler_core.gangs.conventions import is_alone
from scheduler_core.gangs.gang import Gang, GangPhase
from scheduler_core.gangs.hold import endings
from scheduler_core.gangs.member import GangName
from scheduler_core.gangs.planning import Levels, NodeView, Unplaced
from scheduler_core.gangs.protocol import Turn, counting, turn
from scheduler_core.gangs.queue import Pace, Queue, Waiting
from scheduler_core.gangs.steps import Terms, steps
from scheduler_core.gangs.writes import (
    AskForPod,
    CreateLedger,
    CreateReservation,
    Key,
    LetGo,
    Release,
    Tell,
    Write,
    WriteLedger,
    WriteStatus,
    gang_of,
)
from scheduler_core.nodes import NodeTable
from scheduler_core.planner.holding import Held, HoldJob
from scheduler_core.planner.placing import Job, Names, Placing, options_of
from scheduler_core.planner.tells import of_refused, of_release, of_status, of_unplaced
from scheduler_core.planner.view import Told, View, Wanted
from scheduler_core.planner.writer import Answer, Outcome
from scheduler_core.policies import Policies
from scheduler_core.policy import Policy
from scheduler_core.registration import policy_of
from scheduler_core.request import PodRequest
from scheduler_core.sightings import Batch, LedgerSeen, ReservationSeen
from scheduler_core.vouching import Known, Voucher

PLAN_S = 1.0  # for one plan
AVOID_S = 300.0  # nodes to which a member was sent in vain
_GATHER_S = 0.03  # what happens within so long is looked at together: a look costs the same for one and for a hundred
_AGAIN_S = 2.0  # before what did not help is tried again on the same version of an object
_REFUSED_S = 30.0  # before what the API server does not take is sent again
_AWAY_S, _LONGEST_AWAY_S = 0.2, 10.0  # after a write without an answer; doubled by each that follows
_AGAIN_HELD_S = 30.0  # between two looks for room for the same gang
_AGAIN_UNPLACED_S = 0.5  # between two plans for those that did not fit
_BATCH = 256  # single pods in a reservation
_OUTCOMES = {State.BOUND: "bound", State.ROLLING_BACK: "rolled back", State.FAILED: "failed"}
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

    def __init__(self, settled: Settled, policies: Callable[[], Policies], me: str, hands: Hands) -> None:
        self.view = View(policies().common, settled.pool, me)
        self.queue = Queue(settled.pace)
        self.unplaced: dict[GangName, Unplaced] = {}
        self.deposed = False
        self.leads = False  # the ledger is ours
        self._settled, self._policies, self._me, self._hands = settled, policies, me, hands
        self._ledger_read = False
        self._busy: dict[Key, Write] = {}
        self._refused: dict[tuple[type[Any], Key], Refusal] = {}
        self._planning = False
        self._voucher = Voucher()
        self._room: dict[str, float | None] = {}  # by the name of a hold that is being written
        self._estimates: dict[str, float | None] = {}  # by the UID of one that was
        self._next_hold: dict[GangName, float] = {}  # when to look for room again, in seconds since 1970
        self._avoid: dict[GangName, dict[str, float]] = {}  # gang -> node -> until, monotonic seconds
        self._away = 0  # writes in a row that nobody answered
        self._pause = 0.0  # monotonic: nothing is written before
        self._next_plan = 0.0  # monotonic: not before, for those that did not fit
        self._tried: object = None

    def take(self, batch: Batch[Any]) -> None:
        """What a watch saw."""
        self._put(self.view.take(batch, time.time()))
        self._hands.wake(_GATHER_S)

    def tick(self) -> None:
        """Let time pass."""
        self.view.knowledge.tick(time.time())
        self._hands.wake(0.0)

    def read(self, ledger: LedgerSeen | None) -> None:
        """The ledger as it is at the beginning."""
        self.view.read(ledger, time.time())
        if ledger is not None and _is_new(ledger, self._settled.terms.settle_s):
            self.view.memory = self.view.memory._replace(fresh=True)
        self._ledger_read = True
        self._hands.wake(0.0)

    def round(self) -> None:
        """Hand over all that is to be done now."""
        now = time.monotonic()
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
        view.look(now)
        wanted = Wanted(self._crowded(), self._unheld(), self._estimates)
        for write in steps(view.world(now, time.time(), wanted), *self._rules()):
            self._submit(write, now)
        if mine:
            for write in self._released():
                self._submit(write, now)
            self._plan(now)

    def answered(self, answer: Answer) -> None:
        """What became of a write."""
        what, outcome, now = answer.write, answer.outcome, time.monotonic()
        self._busy.pop(what.key, None)
        self._hands.note(answer)
        if outcome is not Outcome.DONE:
            self.view.unwritten(what)
        if outcome is Outcome.AWAY:
            self._pause = now + min(_LONGEST_AWAY_S, _AWAY_S * 2.0 ** min(self._away, 10))
            self._away += 1
            self._hands.wake(self._pause - now)
            return
        if outcome is not Outcome.DEPOSED:
            self._away = 0
        if isinstance(what, AskForPod):
            self._heard_of(what, gone=outcome is Outcome.GONE, now=now)
        elif outcome is Outcome.DONE:
            self._done(answer)
        elif what.key[0] == "ledger":
            self.view.read(answer.ledger, time.time())
        if outcome is not Outcome.DONE or not isinstance(what, WriteLedger):
            self._refuse(what, now + (_REFUSED_S if outcome is Outcome.REFUSED else _AGAIN_S))
        self._hands.wake(_GATHER_S if isinstance(what, LetGo) else 0.0)

    def planned(self, found: Placing) -> None:
        """What came of a plan."""
        self._planning = False
        now = time.monotonic()
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

    def _rules(self) -> tuple[Terms, str]:
        return self._settled.terms, self._settled.pool

    def _put(self, touched: AbstractSet[GangName]) -> None:
        for name in touched:
            gang = self.view.roster.gang(name)
            if gang is None:
                self.queue.forget(name)
                self.unplaced.pop(name, None)
                self._avoid.pop(name, None)
                self._next_hold.pop(name, None)
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
            self._refused = {key: each for key, each in self._refused.items() if each.until > time.monotonic()}
        self._refused[type(what), what.key] = Refusal(version_of(what), until)

    def _done(self, answer: Answer) -> None:
        what, found = answer.write, answer.metadata
        told = None if found is None else Told(found.uid, found.resource_version, found.generation)
        self._put(self.view.wrote(what, told, time.time()))
        if isinstance(what, CreateLedger):
            self.view.memory = self.view.memory._replace(fresh=True)
        if isinstance(what, WriteStatus):
            self._changed_state(what)
        if isinstance(what, CreateReservation) and what.name in self._room and told is not None:
            self._estimates[told.uid] = self._room.pop(what.name)
        if isinstance(what, Release):
            self._hands.tell(of_release(what))
            self._waited("released", what.member.wanted.gang)
        if isinstance(what, WriteLedger):
            self._struck(what)

    def _changed_state(self, what: WriteStatus) -> None:
        state, name = what.status.state, gang_of(what.of)
        members = (self.view.roster.member(seat.uid) for seat in what.of.spec.seats)
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
        members = (self.view.roster.member(seat.uid) for seat in reservation.spec.seats)
        yield from (each.wanted.gang for each in members if each is not None)

    def _waited(self, outcome: str, name: GangName) -> None:
        gang = self.view.roster.gang(name)
        if gang is not None:
            self._hands.placed(outcome, gang, max(0.0, time.time() - gang.created))

    def _taken_back(self, reservation: ReservationSeen) -> None:
        """Its gang waits, and does without the nodes that nobody reached."""
        until = time.monotonic() + AVOID_S
        for seat in reservation.spec.seats:
            member = self.view.roster.member(seat.uid)
            name = gang_of(reservation) or (member.wanted.gang if member is not None and member.node is None else None)
            if name is None:
                continue
            if seat.node is not None and member is not None and member.node is None:
                self._avoid.setdefault(name, {})[seat.node] = until
            if not reservation.spec.gang:
                self.queue.rolled_back(name, time.time())
        if (name := gang_of(reservation)) is not None:
            self.queue.rolled_back(name, time.time())

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
        now = time.time()
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

    def _unheld(self) -> frozenset[str]:
        """Holds that nobody waits for any more, or whose nodes have gone."""
        view = self.view
        holds = [each for each in view.reservations.values() if each.spec.held]
        if not holds:
            return frozenset()
        planned = {gang_of(each) for uid, each in view.reservations.items() if each.spec.seats and self._is_open(uid)}
        return frozenset(
            each.key
            for each in holds
            if (name := gang_of(each)) is None
            or self.queue.of(name) is None
            or name in planned
            or any(one.node not in view.rules for one in each.spec.held)
        )

    def _is_open(self, uid: str) -> bool:
        """Whether that plan counts, or is about to."""
        ledger = self.view.ledger
        assert ledger is not None  # it is ours
        return uid in self.view.memory.made or any(each.uid == uid for each in ledger.spec.entries)

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
        gangs, pods = self._spoken_for()
        if not self.queue.has(lambda gang: _is_free(gang, gangs, pods)):
            return  # what the nodes look like need not be worked out
        state = self.view.knowledge.table.generation
        batches = tuple(
            batch
            for each in self.queue.batches(time.time(), state, _BATCH)
            if (batch := tuple(one for one in each if _is_free(one.gang, gangs, pods)))
        )
        if not batches and self._hold():
            return
        if not batches:
            due = self.queue.next_due(time.time())
            if due is not None:
                self._hands.wake(max(0.0, due - time.time()))
            return
        if now < self._next_plan and all(one.misfit is not None for each in batches for one in each):
            self._hands.wake(self._next_plan - now)
            return
        self._planning, self._tried = True, state
        self._hands.plan(self._job(batches, now))

    def _hold(self) -> bool:
        """Have room sought for one that waited long enough and has none held yet."""
        view, wall = self.view, time.time()
        holds = [each for each in view.reservations.values() if each.spec.held]
        having = {gang_of(each) for each in holds}
        for each in self.queue.entitled(wall):
            if each.gang.name in having or wall < self._next_hold.get(each.gang.name, 0.0):
                continue
            self._next_hold[each.gang.name] = wall + _AGAIN_HELD_S
            taken = {one.node for hold in holds for one in hold.spec.held}
            nodes = [name for name in view.rules if name in view.knowledge.table.records and name not in taken]
            self._planning = True
            self._hands.hold(
                HoldJob(
                    each,
                    self._node_view(),
                    endings(nodes, view.knowledge.pods.values(), view.ends),
                    options_of(each.gang, view.seats(), self._settled.levels),
                    self._new_names(),
                    wall,
                    self._policies().common,
                )
            )
            return True
        return False

    def found_room(self, found: Held | None) -> None:
        """Where room is to be held."""
        self._planning = False
        if found is not None:
            self._room[found.create.name] = found.estimate
            self._submit(found.create, time.monotonic())
        self._hands.wake(0.0)

    def _job(self, batches: tuple[tuple[Waiting, ...], ...], now: float) -> Job:
        view, until = self.view, now + PLAN_S
        return Job(
            batches,
            self._node_view(),
            self._unheld_tables(),
            view.seats(),
            {name: {node for node, end in nodes.items() if end > now} for name, nodes in self._avoid.items()},
            self._settled.levels,
            self._new_names(),
            lambda: time.monotonic() > until,
        )

    def _node_view(self) -> NodeView:
        policies = self._policies()

        def judged_by(request: PodRequest) -> Policy:
            return policies.placement(request).policy

        return NodeView(self.view.knowledge.table, dict(self.view.rules), judged_by)

    def _new_names(self) -> Names:
        return Names(self._settled.namespace, lambda: secrets.token_hex(3))

    def _unheld_tables(self) -> dict[GangName, NodeTable]:
        """The cluster as those see it for whom something is held."""
        held = {
            name: entry.uid
            for entry, reservation in self._entries()
            if entry.phase is Phase.HELD and (name := gang_of(reservation)) is not None
        }
        return {name: self.view.knowledge.without({uid}) for name, uid in held.items()}

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


def _is_new(ledger: LedgerSeen, settle_s: float) -> bool:
    """Whether extenders may not know of it yet: by two clocks, so with a minute between them."""
    made = None if ledger.created is None else datetime.fromisoformat(ledger.created).timestamp()
    return made is not None and time.time() - made < settle_s + 60.0


def version_of(what: Write) -> str:
    """Of the object that it was worked out from; "" where there was none."""
    for field in ("over", "of", "member"):
        found = getattr(what, field, None)
        if found is not None and not isinstance(found, str):
            return str(found.version)
    return ""
