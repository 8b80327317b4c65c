"""What a planner that leads writes next: the whole of it follows from what the API server has. Pure.

``steps`` names every write that may be done now. They may be done in any order, at once, or not at all, and a planner
may end after any of them: whoever looks next finds what is left to do. What must come first is not yet written when its
turn has not come: no member is let go before the ledger shows its reservation committed and that the status has a
deadline; no reservation is deleted before the ledger has forgotten it.

    entry      members                            then
    none       all placed                         the status says Bound; it stays for the siblings of later members
    none       none placed                        listed, where this planner made it just now; else deleted
    Proposed   all gated, the extenders vouch     Committed
    Proposed   one gone, blocked, or no room      struck
    Committed  gated                              let go
    Committed  all bound                          Bound, struck
    Committed  one gone, a node gone, too late    RollingBack
    RollingBack                                   gated ones touched, others deleted, then struck; or Failed, struck
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

import msgspec

from gputopo.labels.reservations import Entry, LedgerSpec, Phase, ReservationStatus, Seat, State
from scheduler_core.assumptions import LIFETIME_S
from scheduler_core.gangs.gang import Gang
from scheduler_core.gangs.member import GangName, Member
from scheduler_core.gangs.memory import Memory
from scheduler_core.gangs.owners import replaced, stripped, to_strip
from scheduler_core.gangs.pins import gated
from scheduler_core.gangs.protocol import (
    Turn,
    Voucher,
    counting,
    entry_of,
    listing,
    striking,
    taken_over,
    turn,
    voucher,
    without_extenders,
)
from scheduler_core.gangs.writes import (
    AskForPod,
    CreateLedger,
    DeletePod,
    DeleteReservation,
    DropRegistration,
    LetGo,
    StripFinalizer,
    Touch,
    Write,
    WriteLedger,
    WriteStatus,
    gang_of,
)
from scheduler_core.sightings import LedgerSeen, ReservationSeen

ASK_S = 5.0  # an extender is silent for so long before its pod is asked after, and between two questions
BLOCKED_S = 5.0  # a proposal that is in somebody's way is given up after so long


class Rollback(Enum):
    """Which of a gang's members are deleted when not all of them could be bound in time."""

    GANG = "gang"  # all that were let go: the gang ends as a whole
    UNSTARTED = "unstarted"  # those that the kubelet has not taken note of


class Terms(NamedTuple):
    """How gangs are committed and rolled back."""

    gated: bool = False  # every GPU pod of the pool is gated: nobody needs to vouch
    extenders: int = 1  # that must be registered at least; without ``gated``
    settle_s: float = 45.0  # after the ledger was made
    rollback: Rollback = Rollback.GANG
    # One that cannot be asked after stops answering by itself once it has heard nothing for --max-silence (2 minutes),
    # and what it let in until then is bound, or lost, within ``LIFETIME_S``.
    lost_s: float = 160.0
    ended_s: float = LIFETIME_S  # the same of one whose pod was found to have ended


class World(NamedTuple):
    """What there is, as last read or written."""

    me: str
    ledger: LedgerSeen | None
    reservations: Mapping[str, ReservationSeen]  # by UID
    member: Callable[[str], Member | None]  # by UID
    gang: Callable[[GangName], Gang | None]
    nodes: Container[str]
    crowded: Container[str]  # UIDs of proposals for which there is no room any more
    unheld: Container[str]  # UIDs of holds that are not wanted any more
    estimates: Mapping[str, float | None]  # by UIDs of holds: when there will be room, in seconds since 1970
    memory: Memory
    now: float  # monotonic seconds
    wall: float  # seconds since 1970, for people


class _Step(NamedTuple):
    """What is to be done about one reservation."""

    writes: tuple[Write, ...] = ()
    phase: Phase | None = None  # the ledger shall say that of it
    strike: bool = False  # the ledger shall forget it


def steps(world: World, terms: Terms, pool: str) -> tuple[Write, ...]:
    """Every write that may be done now, for a planner that holds the Lease."""
    ledger = world.ledger
    if ledger is None:
        return (CreateLedger(pool, taken_over(LedgerSpec(), world.me)),)
    if turn(ledger, world.me) is Turn.TAKE_OVER:
        return (WriteLedger(ledger, taken_over(ledger.spec, world.me)),)
    entries = counting(ledger.spec, world.reservations)
    found = {uid: _step(world, terms, each, entries.get(uid)) for uid, each in world.reservations.items()}
    about = [write for each in found.values() for write in each.writes]
    return (*about, *_ledger(world, terms, ledger, found), *_questions(world, ledger))


def _ledger(world: World, terms: Terms, ledger: LedgerSeen, found: Mapping[str, _Step]) -> Iterator[Write]:
    """One write, with all that is to be changed."""
    counted = counting(ledger.spec, world.reservations)
    strays = {each.uid for each in ledger.spec.entries if each.uid not in counted}
    struck = strays | {uid for uid, each in found.items() if each.strike}
    new = [entry_of(world.reservations[uid], each.phase) for uid, each in found.items() if each.phase is not None]
    served = {gang_of(world.reservations[each.uid]) for each in new} - {None}
    struck |= {  # in the same write: nobody gets between what is held for a gang and its places
        uid for uid, each in counted.items() if each.phase is Phase.HELD and gang_of(world.reservations[uid]) in served
    }
    lost = _lost(world, terms)
    if lost and not terms.gated:
        yield DropRegistration(ledger, without_extenders(ledger.extenders, lost))
    elif new or struck:
        spec = listing(striking(ledger.spec, struck), new)
        phases = [each.phase for each in new]
        yield WriteLedger(
            ledger,
            spec,
            proposed=phases.count(Phase.PROPOSED),
            committed=phases.count(Phase.COMMITTED),
            held=phases.count(Phase.HELD),
            withdrawn=sum(counted[uid].phase is not Phase.COMMITTED for uid in struck if uid in counted),
            released=sum(counted[uid].phase is Phase.COMMITTED for uid in struck if uid in counted),
        )


def _lost(world: World, terms: Terms) -> frozenset[str]:
    """The extenders that answer no more, and of which nothing is under way any more."""
    return frozenset(
        identity
        for identity, each in world.memory.silent.items()
        if world.now - each.since >= terms.lost_s or (each.gone is not None and world.now - each.gone >= terms.ended_s)
    )


def _questions(world: World, ledger: LedgerSeen) -> Iterator[AskForPod]:
    for identity, each in world.memory.silent.items():
        pod = ledger.extenders[identity].pod
        if pod and each.gone is None and world.now - max(each.since, each.asked or 0.0) >= ASK_S:
            yield AskForPod(identity, pod)


def _step(world: World, terms: Terms, reservation: ReservationSeen, entry: Entry | None) -> _Step:
    if entry is None:
        return _unlisted(world, terms, reservation)
    if entry.phase is Phase.HELD:
        return _held_room(world, reservation)
    if entry.phase is Phase.PROPOSED:
        return _proposed(world, terms, reservation)
    if reservation.status.state is State.FAILED:
        return _Step(strike=True)
    if reservation.status.state is State.ROLLING_BACK:
        return _rolling_back(world, terms, reservation)
    return _committed(world, reservation)


def _held_room(world: World, reservation: ReservationSeen) -> _Step:
    gang = _gang(world, reservation)
    if reservation.key in world.unheld or gang is None:
        return _Step(strike=True)
    if reservation.key not in world.estimates:
        return _Step()
    write = _status(world, reservation, State.HELD, _held_reason(reservation, world.estimates[reservation.key]))
    write = write._replace(status=msgspec.structs.replace(write.status, members=len(gang.ready)))
    return _Step() if write.status == reservation.status else _Step((write,))


def _held_reason(reservation: ReservationSeen, estimate: float | None) -> str:
    """The same as long as nothing changes."""
    until = "when their pods end nobody can say" if estimate is None else f"their pods end by {_time(estimate)}"
    nodes = _names([each.node for each in reservation.spec.held])
    return f"does not fit yet; what becomes free on {nodes} is held: {until}"


def _unlisted(world: World, terms: Terms, reservation: ReservationSeen) -> _Step:
    placed = [member for _, member in _seats(world, reservation) if member is not None and _is_placed(member)]
    state = reservation.status.state
    if placed and reservation.spec.gang:
        if all(_bound(member) for member in placed):
            return _Step() if state is State.BOUND else _Step((_status(world, reservation, State.BOUND),))
        reason = reservation.status.reason or "the ledger does not list it"
        return _Step() if state is State.FAILED else _Step((_status(world, reservation, State.FAILED, reason),))
    if reservation.key not in world.memory.made or world.ledger is None or not _may_be_listed(world, reservation):
        return _Step((DeleteReservation(reservation),))
    if reservation.spec.held:
        return _Step(phase=Phase.HELD)
    return _Step(phase=Phase.COMMITTED if terms.gated else Phase.PROPOSED) if _settled(world, terms) else _Step()


def _may_be_listed(world: World, reservation: ReservationSeen) -> bool:
    """Whether the plan still is what its members need."""
    if reservation.spec.held:
        return reservation.key not in world.unheld
    return _waiting(world, reservation) and reservation.key not in world.crowded


def _settled(world: World, terms: Terms) -> bool:
    """Whether every extender has had the time to see that there is a ledger."""
    memory = world.memory
    return terms.gated or not memory.fresh or memory.ledger is None or world.now - memory.ledger >= terms.settle_s


def _proposed(world: World, terms: Terms, reservation: ReservationSeen) -> _Step:
    uid, since = reservation.key, world.memory.since[reservation.key]
    if uid in world.crowded or not _waiting(world, reservation):
        return _Step(strike=True)
    assert world.ledger is not None  # it lists it
    said = Voucher.CLEAR if terms.gated else voucher(uid, since.generation, world.ledger.extenders, terms.extenders)
    if said is Voucher.CLEAR:
        return _Step(phase=Phase.COMMITTED)
    if said is Voucher.BLOCKED and world.now - since.at >= BLOCKED_S:
        return _Step(strike=True)
    if reservation.status.state is not State.PROPOSED and world.now - since.at >= 1.0:  # for people: not each one
        return _Step((_status(world, reservation, State.PROPOSED, _AWAITED[said]),))
    return _Step()


_AWAITED = {
    Voucher.AWAITED: "waits for an extender to vouch for it",
    Voucher.BLOCKED: "an extender has let in a pod that it conflicts with",
}


def _committed(world: World, reservation: ReservationSeen) -> _Step:
    trouble, status = _trouble(world, reservation), reservation.status
    open_ = _open(world, reservation)
    if trouble is not None:
        write = _status(world, reservation, State.ROLLING_BACK, trouble)
        return _Step((write._replace(unless_changed=open_[0][1] if open_ else None),))
    if not open_:
        if status.state is State.BOUND or not reservation.spec.gang:
            return _Step(strike=True)
        return _Step((_status(world, reservation, State.BOUND),))
    if status.state is not State.COMMITTED:
        return _Step((_status(world, reservation, State.COMMITTED),))
    return _Step(tuple(LetGo(member, seat, reservation.name) for seat, member in open_ if _held(member)))


def _trouble(world: World, reservation: ReservationSeen) -> str | None:
    """Why it is taken back; None: all is well so far."""
    open_ = _open(world, reservation)
    if reservation.spec.gang:
        if not _enough(world, reservation):
            lost = [seat.name for seat, member in _seats(world, reservation) if _is_lost(member, reservation)]
            return f"{_names(lost)} went away before all were bound"
        nowhere = [seat for seat, _ in open_ if seat.node is not None and seat.node not in world.nodes]
        if nowhere:
            return f"node {nowhere[0].node}, where {nowhere[0].name} was to go, is gone"
    if open_ and world.now - world.memory.since[reservation.key].at >= reservation.spec.timeout_s:
        return f"{_names([seat.name for seat, _ in open_])} not bound within {reservation.spec.timeout_s:g} s"
    return None


def _enough(world: World, reservation: ReservationSeen) -> bool:
    """Whether without those that went away there still are as many members as it can start with."""
    seats = _seats(world, reservation)
    left = sum(not _is_lost(member, reservation) for _, member in seats)
    if left == len(seats):
        return True
    gang = _gang(world, reservation)
    if gang is None or gang.minimum is None:
        return False
    own = {seat.uid for seat in reservation.spec.seats}
    siblings = sum(member.uid not in own for member in (*gang.placed, *gang.succeeded))
    return left + siblings >= gang.minimum


def _rolling_back(world: World, terms: Terms, reservation: ReservationSeen) -> _Step:
    seats = [(seat, member) for seat, member in _seats(world, reservation) if member is not None]
    doomed = [member for member in _doomed(world, terms, reservation) if not member.ending]
    kept = [member.name for member in doomed if not replaced(member)]
    if kept and reservation.spec.gang:
        reason = f"{reservation.status.reason}; nobody would make {_names(kept)} again, so all are left as they are"
        return _Step((_status(world, reservation, State.FAILED, reason),))
    gone = tuple(_deletion(member) for member in doomed if replaced(member))
    waiting = [member for _, member in seats if _held(member)]
    untouched = [each for each in waiting if (reservation.key, each.uid) not in world.memory.touched]
    touches = tuple(Touch(member, reservation.key) for member in untouched)
    return _Step((*gone, *touches), strike=not gone and not touches)


def _doomed(world: World, terms: Terms, reservation: ReservationSeen) -> list[Member]:
    """Those that were let go by it and are to go."""
    let_go = [
        member
        for _, member in _seats(world, reservation)
        if member is not None and not _held(member) and member.reservation == reservation.name and not _over(member)
    ]
    if not reservation.spec.gang or _bound_enough(world, reservation):
        return [member for member in let_go if stripped(member) or not _bound(member)]
    whole = terms.rollback is Rollback.GANG
    return [member for member in let_go if whole or stripped(member) or not member.started]


def _bound_enough(world: World, reservation: ReservationSeen) -> bool:
    """Whether as many have their nodes as it can start with."""
    gang = _gang(world, reservation)
    if gang is None or gang.minimum is None:
        return False
    return sum(_bound(member) for member in (*gang.placed, *gang.succeeded)) >= gang.minimum


def _deletion(member: Member) -> StripFinalizer | DeletePod:
    finalizer = to_strip(member)
    return DeletePod(member) if finalizer is None else StripFinalizer(member, finalizer)


def _status(world: World, reservation: ReservationSeen, state: State, reason: str | None = None) -> WriteStatus:
    seats, held = _seats(world, reservation), reservation.spec.held
    deadline, estimate = reservation.status.deadline, world.estimates.get(reservation.key)
    if state is State.COMMITTED:
        deadline = _time(world.wall + reservation.spec.timeout_s)
    status = ReservationStatus(
        state=state,
        reason=reason,
        bound=sum(member is not None and _bound(member) for _, member in seats),
        members=len(seats),
        nodes=len({seat.node for seat, _ in seats if seat.node is not None} | {each.node for each in held}),
        gpus=sum(number for seat, _ in seats for _, number in seat.gpus) + sum(each.gpus for each in held),
        deadline=deadline,
        estimate=None if estimate is None else _time(estimate),
    )
    return WriteStatus(reservation, status)


def _seats(world: World, reservation: ReservationSeen) -> list[tuple[Seat, Member | None]]:
    return [(seat, world.member(seat.uid)) for seat in reservation.spec.seats]


def _open(world: World, reservation: ReservationSeen) -> list[tuple[Seat, Member]]:
    """Those that are to be bound yet."""
    return [
        (seat, member)
        for seat, member in _seats(world, reservation)
        if member is not None and not _is_lost(member, reservation) and not _bound(member)
    ]


def _waiting(world: World, reservation: ReservationSeen) -> bool:
    """Whether its members still are as they were planned: of single pods whether any is."""
    held = [member is not None and _held(member) and not member.ending for _, member in _seats(world, reservation)]
    return all(held) if reservation.spec.gang else any(held)


def _gang(world: World, reservation: ReservationSeen) -> Gang | None:
    name = gang_of(reservation)
    return None if name is None else world.gang(name)


def _held(member: Member) -> bool:
    return gated(member.gates)


def _bound(member: Member) -> bool:
    """Whether it got its node. One that has done its work did."""
    return member.phase == "Succeeded" or (member.node is not None and not _over(member))


def _is_placed(member: Member) -> bool:
    """Whether it was let go and stays."""
    return not _held(member) and not member.ending and member.phase != "Failed"


def _over(member: Member) -> bool:
    return member.phase in ("Succeeded", "Failed")


def _is_lost(member: Member | None, reservation: ReservationSeen) -> bool:
    """Whether it will not be bound by that plan: it is gone, failed, or somebody else took its gate away."""
    if member is None or member.ending or member.phase == "Failed":
        return True
    return not _held(member) and not _bound(member) and member.reservation != reservation.name


def _names(names: Collection[str]) -> str:
    """The first of them."""
    first = next(iter(sorted(names)), "a member")
    return first if len(names) < 2 else f"{first} and {len(names) - 1} more"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
