"""What a planner that leads writes next: the whole of it follows from what the API server has. Pure.

``steps`` names every write that may be done now. They may be done in any order, at once, or not at all, and a planner
may end after any of them: whoever looks next finds what is left to do. What must come first is not yet written when its
turn has not come: no member is let go before the ledger shows its reservation committed and that the status has a
deadline; no reservation is deleted before the ledger has forgotten it.

    entry      members                            then
    none       all placed                         the status says Bound; it stays for the siblings of later members
    none       none placed                        listed, where this planner made it just now; else deleted
    Proposed   all gated, the extenders vouch     Committed
    Proposed   one gone, blocked, or no room      struck; what was held for its gang is held still
    Held       waits                              held, until its gang's places are committed or it is held others
    Held       does not wait any more             struck
    Committed  gated                              let go
    Committed  all bound                          Bound, struck
    Committed  one gone, a node gone, too late    RollingBack
    RollingBack                                   gated ones touched, others deleted, then struck; or Failed, struck

Where what is known may be old nothing more is listed, proposed or committed; what is committed goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gputopo.crd.reservations import Entry, LedgerSpec, Phase, State
from scheduler_core.cache.events import LedgerSeen, ReservationSeen
from scheduler_core.planner.commit.actions import (
    AskForPod,
    CreateLedger,
    DropRegistration,
    LetGo,
    Write,
    WriteLedger,
    gang_of,
    whose,
)
from scheduler_core.planner.commit.ledger import (
    Assent,
    Turn,
    assent,
    counting,
    entry_of,
    listing,
    striking,
    taken_over,
    turn,
    without_extenders,
)
from scheduler_core.planner.commit.members import gang_for, is_gated, is_waiting, open_of
from scheduler_core.planner.commit.recovery import settles_for, unlisted, vanished, was_committed
from scheduler_core.planner.commit.rollback import rolling_back, taken_back, trouble_with
from scheduler_core.planner.commit.state import Step, Terms, World
from scheduler_core.planner.commit.status import room_reason, status_of, waits_for

ASK_S = 5.0  # an extender is silent for so long before its pod is asked after, and between two questions
BLOCKED_S = 5.0  # a proposal that is in somebody's way is given up after so long


def steps(world: World, terms: Terms, pool: str) -> tuple[Write, ...]:
    """Every write that may be done now, for a planner that holds the Lease."""
    ledger = world.ledger
    if ledger is None:
        return (CreateLedger(pool, taken_over(LedgerSpec(), world.me, terms.lease, terms.levels)),)
    if turn(ledger, world.me) is Turn.TAKE_OVER:
        return (WriteLedger(ledger, taken_over(ledger.spec, world.me, terms.lease, terms.levels)),)
    entries = counting(ledger.spec, world.reservations)
    awake = world.reservations if world.awake is None else world.awake
    found = {uid: _step(world, terms, world.reservations[uid], entries.get(uid)) for uid in awake}
    about = [write for each in found.values() for write in each.writes]
    return (*about, *vanished(world), *_ledger(world, terms, ledger, found), *_questions(world, ledger))


def resting(world: World, terms: Terms) -> frozenset[str]:
    """UIDs of the awake about which nothing is to be done before they, a member or the ledger are others."""
    assert world.ledger is not None  # ``steps`` made it
    awake = world.reservations if world.awake is None else world.awake
    listed = {each.uid for each in world.ledger.spec.entries}
    ended = (uid for uid in awake if uid not in listed and world.reservations[uid].status.state in _ENDED)
    return frozenset(uid for uid in ended if unlisted(world, terms, world.reservations[uid]) == Step())


_ENDED = (State.BOUND, State.FAILED)  # of what the ledger does not list any more: time alone changes nothing


def _ledger(world: World, terms: Terms, ledger: LedgerSeen, found: Mapping[str, Step]) -> Iterator[Write]:
    """One write, with all that is to be changed."""
    counted = counting(ledger.spec, world.reservations)
    strays = {each.uid for each in ledger.spec.entries if each.uid not in counted}
    struck = strays | {uid for uid, each in found.items() if each.strike}
    new = [] if world.blind else list(_listed(world, found))
    struck |= _exchanged(world, counted, new)
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
            again=sum(each.again for each in found.values()),
        )


def _exchanged(world: World, counted: Mapping[str, Entry], new: Sequence[Entry]) -> set[str]:
    """What was held for those whose places are committed, or for whom others are held, by this very write.

    Nobody gets between. What is only proposed may come to nothing: then all is as it was.
    """
    held = {uid: gang_of(world.reservations[uid]) for uid, each in counted.items() if each.phase is Phase.HELD}
    if not held:
        return set()
    listed = (world.reservations[each.uid] for each in new if each.phase is not Phase.PROPOSED)
    served = {name for each in listed for name in whose(each.namespace, each.spec, world.member)}
    return {uid for uid, name in held.items() if name in served}


def _listed(world: World, found: Mapping[str, Step]) -> Iterator[Entry]:
    return (entry_of(world.reservations[uid], each.phase) for uid, each in found.items() if each.phase is not None)


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


def _step(world: World, terms: Terms, reservation: ReservationSeen, entry: Entry | None) -> Step:
    if entry is None:
        return unlisted(world, terms, reservation)
    if entry.phase is Phase.HELD:
        return _held_room(world, reservation)
    if reservation.status.state is State.FAILED:
        return Step(strike=True)
    if reservation.status.state is State.ROLLING_BACK:
        return rolling_back(world, terms, reservation)
    if entry.phase is Phase.PROPOSED:
        return _proposed(world, terms, reservation)
    return _committed(world, reservation)


def _held_room(world: World, reservation: ReservationSeen) -> Step:
    gang = gang_for(world, reservation)
    if reservation.key in world.unheld or gang is None:
        return Step(strike=True)
    if reservation.key not in world.estimates:
        return Step()
    write = status_of(world, reservation, State.HELD, room_reason(reservation, world.estimates[reservation.key]))
    write = write._replace(status=msgspec.structs.replace(write.status, members=len(gang.ready)))
    return Step() if write.status == reservation.status else Step((write,))


def _proposed(world: World, terms: Terms, reservation: ReservationSeen) -> Step:
    if was_committed(world, reservation):
        return _proposed_again(world, terms, reservation)
    uid, since = reservation.key, world.memory.since[reservation.key]
    if uid in world.crowded or not is_waiting(world, reservation):
        return Step(strike=True)
    said = _said(world, terms, uid)
    if said is Assent.CLEAR:
        return Step(phase=Phase.COMMITTED)
    if said is Assent.BLOCKED and world.now - since.at >= BLOCKED_S:
        return Step(strike=True)
    return _told(world, terms, reservation, said) if world.now - since.at >= 1.0 else Step()  # for people: not each one


def _proposed_again(world: World, terms: Terms, reservation: ReservationSeen) -> Step:
    """Its members are on their way: it is committed, or they are taken back."""
    uid, since = reservation.key, world.memory.since[reservation.key]
    said = _said(world, terms, uid)
    trouble = trouble_with(world, reservation, open_of(world, reservation))
    if uid in world.crowded or (said is Assent.BLOCKED and world.now - since.at >= BLOCKED_S):
        trouble = trouble or "the ledger had lost it, and others have its places since"
    if trouble is not None:
        return taken_back(world, reservation, trouble)
    return Step(phase=Phase.COMMITTED) if said is Assent.CLEAR and settles_for(world, terms) <= 0 else Step()


def _said(world: World, terms: Terms, uid: str) -> Assent:
    assert world.ledger is not None  # it lists it
    if terms.gated:
        return Assent.CLEAR
    return assent(uid, world.memory.since[uid].generation, world.ledger.extenders)


def _told(world: World, terms: Terms, reservation: ReservationSeen, said: Assent) -> Step:
    """For whom it waits. Not written again because a time that is told is another by the jitter of clocks."""
    whom, until = waits_for(world, terms, reservation, said)
    known = reservation.status
    if known.state is State.PROPOSED and (known.reason or "").startswith(whom):
        return Step()
    return Step((status_of(world, reservation, State.PROPOSED, whom + until),))


def _committed(world: World, reservation: ReservationSeen) -> Step:
    open_, status = open_of(world, reservation), reservation.status
    trouble = trouble_with(world, reservation, open_)
    if trouble is not None:
        return taken_back(world, reservation, trouble)
    if not open_:
        if status.state is State.BOUND or not reservation.spec.gang:
            return Step(strike=True)
        return Step((status_of(world, reservation, State.BOUND),))
    if status.state is State.BOUND:  # by a planner that has seen more of the pods: this one stood still, and is deposed
        return Step()
    if status.state is not State.COMMITTED:
        return Step((status_of(world, reservation, State.COMMITTED),))
    return Step(tuple(LetGo(member, seat, reservation.name) for seat, member in open_ if is_gated(member)))
