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

from gputopo.crd.reservations import EntryPhase, LedgerEntry, LedgerSpec, ReservationState
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.actions import (
    Action,
    CreateLedger,
    DropRegistration,
    ProbeExtenderPod,
    UngateAndPin,
    WriteLedger,
    reserved_gang,
    reserved_gangs,
)
from scheduler_core.planner.commit.ledger import (
    Acknowledgement,
    LedgerRole,
    acknowledgement_of,
    active_entries,
    entry_of,
    ledger_role,
    take_over_spec,
    with_entries,
    without_entries,
    without_extenders,
)
from scheduler_core.planner.commit.members import find_gang, is_gated, is_still_gated, unbound_members
from scheduler_core.planner.commit.recovery import recover_unlisted, recreate_deleted, remaining_settle_s, was_committed
from scheduler_core.planner.commit.rollback import continue_rollback, rollback_reason, start_rollback
from scheduler_core.planner.commit.state import CommitTerms, ReconcileInput, ReservationStep
from scheduler_core.planner.commit.status import hold_reason, pending_acknowledgement, status_write

PROBE_S = 5.0  # an extender is silent for so long before its pod is asked after, and between two questions
BLOCKED_S = 5.0  # a proposal that is in somebody's way is given up after so long


def reconcile(world: ReconcileInput, terms: CommitTerms, pool: str) -> tuple[Action, ...]:
    """Every write that may be done now, for a planner that holds the Lease."""
    ledger = world.ledger
    if ledger is None:
        return (CreateLedger(pool, take_over_spec(LedgerSpec(), world.identity, terms.lease, terms.levels)),)
    if ledger_role(ledger, world.identity) is LedgerRole.TAKE_OVER:
        return (WriteLedger(ledger, take_over_spec(ledger.spec, world.identity, terms.lease, terms.levels)),)
    entries = active_entries(ledger.spec, world.reservations)
    awake = world.reservations if world.active is None else world.active
    found = {uid: _reservation_step(world, terms, world.reservations[uid], entries.get(uid)) for uid in awake}
    about = [write for each in found.values() for write in each.writes]
    return (*about, *recreate_deleted(world), *_ledger(world, terms, ledger, found), *_extender_probes(world, ledger))


def idle_reservations(world: ReconcileInput, terms: CommitTerms) -> frozenset[str]:
    """UIDs of the awake about which nothing is to be done before they, a member or the ledger are others."""
    assert world.ledger is not None  # ``steps`` made it
    awake = world.reservations if world.active is None else world.active
    listed = {each.uid for each in world.ledger.spec.entries}
    ended = (uid for uid in awake if uid not in listed and world.reservations[uid].status.state in _ENDED_STATES)
    return frozenset(
        uid for uid in ended if recover_unlisted(world, terms, world.reservations[uid]) == ReservationStep()
    )


_ENDED_STATES = (
    ReservationState.BOUND,
    ReservationState.FAILED,
)  # of what the ledger does not list any more: time alone changes nothing


def _ledger(
    world: ReconcileInput, terms: CommitTerms, ledger: LedgerUpdate, found: Mapping[str, ReservationStep]
) -> Iterator[Action]:
    """One write, with all that is to be changed."""
    counted = active_entries(ledger.spec, world.reservations)
    strays = {each.uid for each in ledger.spec.entries if each.uid not in counted}
    struck = strays | {uid for uid, each in found.items() if each.strike}
    new = [] if world.has_stale_view else list(_new_entries(world, found))
    struck |= _replaced_holds(world, counted, new)
    lost = _lost_extenders(world, terms)
    if lost and not terms.gated:
        yield DropRegistration(ledger, without_extenders(ledger.extenders, lost))
    elif new or struck:
        spec = with_entries(without_entries(ledger.spec, struck), new)
        phases = [each.phase for each in new]
        yield WriteLedger(
            ledger,
            spec,
            proposed=phases.count(EntryPhase.PROPOSED),
            committed=phases.count(EntryPhase.COMMITTED),
            held=phases.count(EntryPhase.HELD),
            withdrawn=sum(counted[uid].phase is not EntryPhase.COMMITTED for uid in struck if uid in counted),
            released=sum(counted[uid].phase is EntryPhase.COMMITTED for uid in struck if uid in counted),
            again=sum(each.was_listed for each in found.values()),
        )


def _replaced_holds(world: ReconcileInput, counted: Mapping[str, LedgerEntry], new: Sequence[LedgerEntry]) -> set[str]:
    """What was held for those whose places are committed, or for whom others are held, by this very write.

    Nobody gets between. What is only proposed may come to nothing: then all is as it was.
    """
    held = {
        uid: reserved_gang(world.reservations[uid]) for uid, each in counted.items() if each.phase is EntryPhase.HELD
    }
    if not held:
        return set()
    listed = (world.reservations[each.uid] for each in new if each.phase is not EntryPhase.PROPOSED)
    served = {name for each in listed for name in reserved_gangs(each.namespace, each.spec, world.member)}
    return {uid for uid, name in held.items() if name in served}


def _new_entries(world: ReconcileInput, found: Mapping[str, ReservationStep]) -> Iterator[LedgerEntry]:
    return (entry_of(world.reservations[uid], each.phase) for uid, each in found.items() if each.phase is not None)


def _lost_extenders(world: ReconcileInput, terms: CommitTerms) -> frozenset[str]:
    """The extenders that answer no more, and of which nothing is under way any more."""
    return frozenset(
        identity
        for identity, each in world.observations.silent_extenders.items()
        if world.now - each.since >= terms.lost_s or (each.gone is not None and world.now - each.gone >= terms.ended_s)
    )


def _extender_probes(world: ReconcileInput, ledger: LedgerUpdate) -> Iterator[ProbeExtenderPod]:
    for identity, each in world.observations.silent_extenders.items():
        pod = ledger.extenders[identity].pod
        if pod and each.gone is None and world.now - max(each.since, each.asked or 0.0) >= PROBE_S:
            yield ProbeExtenderPod(identity, pod)


def _reservation_step(
    world: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate, entry: LedgerEntry | None
) -> ReservationStep:
    if entry is None:
        return recover_unlisted(world, terms, reservation)
    if entry.phase is EntryPhase.HELD:
        return _capacity_hold_step(world, reservation)
    if reservation.status.state is ReservationState.FAILED:
        return ReservationStep(strike=True)
    if reservation.status.state is ReservationState.ROLLING_BACK:
        return continue_rollback(world, terms, reservation)
    if entry.phase is EntryPhase.PROPOSED:
        return _proposed_step(world, terms, reservation)
    return _committed_step(world, reservation)


def _capacity_hold_step(world: ReconcileInput, reservation: ReservationUpdate) -> ReservationStep:
    gang = find_gang(world, reservation)
    if reservation.key in world.unwanted_holds or gang is None:
        return ReservationStep(strike=True)
    if reservation.key not in world.estimates:
        return ReservationStep()
    write = status_write(
        world, reservation, ReservationState.HELD, hold_reason(reservation, world.estimates[reservation.key])
    )
    write = write._replace(status=msgspec.structs.replace(write.status, members=len(gang.ready)))
    return ReservationStep() if write.status == reservation.status else ReservationStep((write,))


def _proposed_step(world: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> ReservationStep:
    if was_committed(world, reservation):
        return _reproposed_step(world, terms, reservation)
    uid, since = reservation.key, world.observations.since[reservation.key]
    if uid in world.no_longer_fitting or not is_still_gated(world, reservation):
        return ReservationStep(strike=True)
    said = _acknowledgement(world, terms, uid)
    if said is Acknowledgement.CLEAR:
        return ReservationStep(phase=EntryPhase.COMMITTED)
    if said is Acknowledgement.BLOCKED and world.now - since.at >= BLOCKED_S:
        return ReservationStep(strike=True)
    return (
        _unacknowledged_step(world, terms, reservation, said) if world.now - since.at >= 1.0 else ReservationStep()
    )  # for people: not each one


def _reproposed_step(world: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> ReservationStep:
    """Its members are on their way: it is committed, or they are taken back."""
    uid, since = reservation.key, world.observations.since[reservation.key]
    said = _acknowledgement(world, terms, uid)
    trouble = rollback_reason(world, reservation, unbound_members(world, reservation))
    if uid in world.no_longer_fitting or (said is Acknowledgement.BLOCKED and world.now - since.at >= BLOCKED_S):
        trouble = trouble or "the ledger had lost it, and others have its places since"
    if trouble is not None:
        return start_rollback(world, reservation, trouble)
    return (
        ReservationStep(phase=EntryPhase.COMMITTED)
        if said is Acknowledgement.CLEAR and remaining_settle_s(world, terms) <= 0
        else ReservationStep()
    )


def _acknowledgement(world: ReconcileInput, terms: CommitTerms, uid: str) -> Acknowledgement:
    assert world.ledger is not None  # it lists it
    if terms.gated:
        return Acknowledgement.CLEAR
    return acknowledgement_of(uid, world.observations.since[uid].generation, world.ledger.extenders)


def _unacknowledged_step(
    world: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate, said: Acknowledgement
) -> ReservationStep:
    """For whom it waits. Not written again because a time that is told is another by the jitter of clocks."""
    whom, until = pending_acknowledgement(world, terms, reservation, said)
    known = reservation.status
    if known.state is ReservationState.PROPOSED and (known.reason or "").startswith(whom):
        return ReservationStep()
    return ReservationStep((status_write(world, reservation, ReservationState.PROPOSED, whom + until),))


def _committed_step(world: ReconcileInput, reservation: ReservationUpdate) -> ReservationStep:
    open_, status = unbound_members(world, reservation), reservation.status
    trouble = rollback_reason(world, reservation, open_)
    if trouble is not None:
        return start_rollback(world, reservation, trouble)
    if not open_:
        if status.state is ReservationState.BOUND or not reservation.spec.gang:
            return ReservationStep(strike=True)
        return ReservationStep((status_write(world, reservation, ReservationState.BOUND),))
    if (
        status.state is ReservationState.BOUND
    ):  # by a planner that has seen more of the pods: this one stood still, and is deposed
        return ReservationStep()
    if status.state is not ReservationState.COMMITTED:
        return ReservationStep((status_write(world, reservation, ReservationState.COMMITTED),))
    return ReservationStep(
        tuple(UngateAndPin(member, seat, reservation.name) for seat, member in open_ if is_gated(member))
    )
