"""Reconcile reservations with the ledger: the writes of the leading planner, from the observed cluster alone. Pure.

``reconcile`` returns every write that may be done now, and which reservations need no step before a change. The writes
may be done in any order, at once, or not at all, and the planner may end after any of them: the next reconcile finds
what is left to do. The order that matters is in the conditions: no member is ungated before the ledger lists its
reservation as committed and the status has a deadline; no reservation is deleted while the ledger lists it.

    ledger entry  members                          next
    none          all placed                       status Bound; the reservation stays for later members of the gang
    none          one failed, gang ends with it    the other members are deleted, then the reservation
    none          none placed                      listed if this planner has just created it, else deleted
    Proposed      all gated, acknowledged          Committed
    Proposed      one gone, blocked, no fit        removed; the gang's capacity hold stays
    Held          gang waits                       stays until the gang is committed or gets another hold
    Held          gang no longer waits             removed
    Held          pods are listed to be evicted    one unit after the other is evicted (``eviction``)
    Committed     gated                            ungated and pinned
    Committed     all bound                        status Bound, removed
    Committed     member or node gone, too late    status RollingBack
    RollingBack                                    gated pods touched, others deleted, then removed; or Failed, removed

While the view may be old nothing more is listed, proposed or committed; committed reservations proceed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

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
    WriteStatus,
    reserved_gang,
    reserved_gangs,
)
from scheduler_core.planner.commit.ending import unlisted_step
from scheduler_core.planner.commit.eviction import due_evictions, is_useless, preemption_status
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
from scheduler_core.planner.commit.past_preemptions import past_preemptions
from scheduler_core.planner.commit.recovery import recreate_deleted, remaining_settle_s, was_committed
from scheduler_core.planner.commit.rollback import continue_rollback, latest_start, rollback_reason, start_rollback
from scheduler_core.planner.commit.state import CommitTerms, ReconcileInput, ReservationStep
from scheduler_core.planner.commit.status import hold_reason, pending_acknowledgement, status_write

PROBE_S = 5.0  # a silent extender's pod is probed after so long, and again at this interval
STATUS_AFTER_S = 1.0  # a proposal that waits longer for acknowledgements says so in its status
BLOCKED_S = 5.0  # a proposal that an extender blocks is withdrawn after so long


class Reconciled(NamedTuple):
    """The result of ``reconcile``."""

    writes: tuple[Action, ...]
    idle: frozenset[str] = frozenset()  # UIDs of reservations that need no step before a change: see ``_may_idle``


def reconcile(inputs: ReconcileInput, terms: CommitTerms, pool: str) -> Reconciled:
    """Return every write that may be done now by a planner that holds the Lease."""
    ledger = inputs.ledger
    if ledger is None:
        return Reconciled(
            (CreateLedger(pool, take_over_spec(LedgerSpec(), inputs.identity, terms.lease, terms.levels)),)
        )
    if ledger_role(ledger, inputs.identity) is LedgerRole.TAKE_OVER:
        spec = take_over_spec(ledger.spec, inputs.identity, terms.lease, terms.levels)
        return Reconciled((WriteLedger(ledger, spec),))
    entries = active_entries(ledger.spec, inputs.reservations)
    active = inputs.reservations if inputs.active is None else inputs.active
    found = {uid: _reservation_step(inputs, terms, inputs.reservations[uid], entries.get(uid)) for uid in active}
    writes = (
        *(write for each in found.values() for write in each.writes),
        *recreate_deleted(inputs),
        *_ledger(inputs, terms, ledger, found),
        *_extender_probes(inputs, ledger),
    )
    without_step = (inputs.reservations[uid] for uid, each in found.items() if each == _NO_STEP)
    listed = {each.uid for each in ledger.spec.entries}
    idle = (each.key for each in without_step if _may_idle(each, entries.get(each.key), listed))
    return Reconciled(writes, frozenset(idle))


_NO_STEP = ReservationStep()


def _may_idle(reservation: ReservationUpdate, entry: LedgerEntry | None, listed: Container[str]) -> bool:
    """Return whether, without a step now, only a change of what concerns this reservation can lead to one.

    That is a change of the reservation, its ledger entry, its gang, its pods, or writes of them; for a committed plan
    also a removed node, and time. Other plans wait for more. ``listed``: all UIDs in the ledger.
    """
    state = reservation.status.state
    if reservation.key not in listed:
        return state in (ReservationState.BOUND, ReservationState.FAILED)
    is_committed = entry is not None and entry.phase is EntryPhase.COMMITTED
    return is_committed and state is ReservationState.COMMITTED


def _ledger(
    inputs: ReconcileInput, terms: CommitTerms, ledger: LedgerUpdate, found: Mapping[str, ReservationStep]
) -> Iterator[Action]:
    """Yield at most one write of the ledger, with all changes."""
    counted = active_entries(ledger.spec, inputs.reservations)
    strays = {each.uid for each in ledger.spec.entries if each.uid not in counted}
    removed = strays | {uid for uid, each in found.items() if each.remove}
    new = [] if inputs.has_stale_view else list(_new_entries(inputs, found))
    removed |= _replaced_holds(inputs, counted, new)
    lost_extenders = _lost_extenders(inputs, terms)
    if lost_extenders and not terms.gated:
        yield DropRegistration(ledger, without_extenders(ledger.extenders, lost_extenders))
    elif new or removed:
        spec = msgspec.structs.replace(
            with_entries(without_entries(ledger.spec, removed), new),
            preemptions=past_preemptions(inputs, ledger.spec, new, removed),
        )
        phases = [each.phase for each in new]
        yield WriteLedger(
            ledger,
            spec,
            proposed=phases.count(EntryPhase.PROPOSED),
            committed=phases.count(EntryPhase.COMMITTED),
            held=phases.count(EntryPhase.HELD),
            withdrawn=sum(counted[uid].phase is not EntryPhase.COMMITTED for uid in removed if uid in counted),
            released=sum(counted[uid].phase is EntryPhase.COMMITTED for uid in removed if uid in counted),
            relisted=sum(each.was_listed for each in found.values()),
        )


def _replaced_holds(inputs: ReconcileInput, counted: Mapping[str, LedgerEntry], new: Sequence[LedgerEntry]) -> set[str]:
    """Return UIDs of capacity holds of gangs that the same write commits, or gives another hold.

    One write does both, so no other gang can take the capacity in between. A proposal may be withdrawn: it leaves the
    hold as it is.
    """
    held = {
        uid: reserved_gang(inputs.reservations[uid]) for uid, each in counted.items() if each.phase is EntryPhase.HELD
    }
    if not held:
        return set()
    listed = (inputs.reservations[each.uid] for each in new if each.phase is not EntryPhase.PROPOSED)
    served = {name for each in listed for name in reserved_gangs(each.namespace, each.spec, inputs.member)}
    return {uid for uid, name in held.items() if name in served}


def _new_entries(inputs: ReconcileInput, found: Mapping[str, ReservationStep]) -> Iterator[LedgerEntry]:
    return (entry_of(inputs.reservations[uid], each.phase) for uid, each in found.items() if each.phase is not None)


def _lost_extenders(inputs: ReconcileInput, terms: CommitTerms) -> frozenset[str]:
    """Return extenders that no longer answer, silent for so long that none of their admissions is under way."""
    return frozenset(
        identity
        for identity, each in inputs.observations.silent_extenders.items()
        if inputs.now - each.since >= terms.lost_s
        or (each.gone_at is not None and inputs.now - each.gone_at >= terms.ended_s)
    )


def _extender_probes(inputs: ReconcileInput, ledger: LedgerUpdate) -> Iterator[ProbeExtenderPod]:
    for identity, each in inputs.observations.silent_extenders.items():
        pod = ledger.extenders[identity].pod
        if pod and each.gone_at is None and inputs.now - max(each.since, each.probed_at or 0.0) >= PROBE_S:
            yield ProbeExtenderPod(identity, pod)


def _reservation_step(
    inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate, entry: LedgerEntry | None
) -> ReservationStep:
    if entry is None:
        return unlisted_step(inputs, terms, reservation)
    if entry.phase is EntryPhase.HELD:
        return _capacity_hold_step(inputs, reservation)
    if reservation.status.state is ReservationState.FAILED:
        return ReservationStep(remove=True)
    if reservation.status.state is ReservationState.ROLLING_BACK:
        return continue_rollback(inputs, terms, reservation)
    if entry.phase is EntryPhase.PROPOSED:
        return _proposed_step(inputs, terms, reservation)
    return _committed_step(inputs, terms, reservation)


def _capacity_hold_step(inputs: ReconcileInput, reservation: ReservationUpdate) -> ReservationStep:
    gang = find_gang(inputs, reservation)
    if reservation.key in inputs.unwanted_holds or gang is None or is_useless(inputs, reservation):
        return ReservationStep(remove=True)
    if reservation.key not in inputs.estimates:
        return ReservationStep()
    uid = reservation.key
    estimate, preemption = inputs.estimates[uid], reservation.spec.preemption
    if preemption is None:
        reason = hold_reason(reservation, estimate, inputs.hold_users.get(uid, ()))
        write = status_write(inputs, reservation, ReservationState.HELD, reason)
    else:
        write = preemption_status(inputs, reservation, preemption, estimate)
    status = msgspec.structs.replace(write.status, members=len(gang.ready))
    changed = () if status == reservation.status else (WriteStatus(reservation, status),)
    return ReservationStep((*changed, *due_evictions(inputs, reservation)))


def _proposed_step(inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> ReservationStep:
    if was_committed(inputs, reservation):
        return _reproposed_step(inputs, terms, reservation)
    uid, since = reservation.key, inputs.observations.since[reservation.key]
    is_late = (until := latest_start(reservation)) is not None and inputs.wall_time >= until
    if uid in inputs.no_longer_fitting or not is_still_gated(inputs, reservation) or is_late:
        return ReservationStep(remove=True)
    acknowledgement = _acknowledgement(inputs, terms, uid)
    if acknowledgement is Acknowledgement.CLEAR:
        return ReservationStep(phase=EntryPhase.COMMITTED)
    if acknowledgement is Acknowledgement.BLOCKED and inputs.now - since.at >= BLOCKED_S:
        return ReservationStep(remove=True)
    if inputs.now - since.at < STATUS_AFTER_S:
        return ReservationStep()
    return _unacknowledged_step(inputs, terms, reservation, acknowledgement)


def _reproposed_step(inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> ReservationStep:
    """Return the step of a proposal whose members are ungated already: commit it, or roll back."""
    uid, since = reservation.key, inputs.observations.since[reservation.key]
    acknowledgement = _acknowledgement(inputs, terms, uid)
    rollback = rollback_reason(inputs, terms, reservation, unbound_members(inputs, reservation))
    if uid in inputs.no_longer_fitting or (
        acknowledgement is Acknowledgement.BLOCKED and inputs.now - since.at >= BLOCKED_S
    ):
        rollback = rollback or "the ledger had lost it, and its places have been taken since"
    if rollback is not None:
        return start_rollback(inputs, reservation, rollback)
    return (
        ReservationStep(phase=EntryPhase.COMMITTED)
        if acknowledgement is Acknowledgement.CLEAR and remaining_settle_s(inputs, terms) <= 0
        else ReservationStep()
    )


def _acknowledgement(inputs: ReconcileInput, terms: CommitTerms, uid: str) -> Acknowledgement:
    assert inputs.ledger is not None  # it lists it
    if terms.gated:
        return Acknowledgement.CLEAR
    return acknowledgement_of(uid, inputs.observations.since[uid].generation, inputs.ledger.extenders)


def _unacknowledged_step(
    inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate, acknowledgement: Acknowledgement
) -> ReservationStep:
    """Write what the proposal waits for. A status that differs only in its time is not written again."""
    reason, until = pending_acknowledgement(inputs, terms, reservation, acknowledgement)
    known = reservation.status
    if known.state is ReservationState.PROPOSED and (known.reason or "").startswith(reason):
        return ReservationStep()
    return ReservationStep((status_write(inputs, reservation, ReservationState.PROPOSED, reason + until),))


def _committed_step(inputs: ReconcileInput, terms: CommitTerms, reservation: ReservationUpdate) -> ReservationStep:
    open_, status = unbound_members(inputs, reservation), reservation.status
    rollback = rollback_reason(inputs, terms, reservation, open_)
    if rollback is not None:
        return start_rollback(inputs, reservation, rollback)
    if not open_:
        if status.state is ReservationState.BOUND or not reservation.spec.gang:
            return ReservationStep(remove=True)
        return ReservationStep((status_write(inputs, reservation, ReservationState.BOUND),))
    if status.state is ReservationState.BOUND:  # written by a successor, which has seen later pods: this one is deposed
        return ReservationStep()
    if status.state is not ReservationState.COMMITTED:
        write = status_write(inputs, reservation, ReservationState.COMMITTED, timeout_s=terms.timeout_of(reservation))
        return ReservationStep((write,))
    return ReservationStep(
        tuple(
            [
                UngateAndPin(member, seat, reservation.name)
                for seat, member in open_
                if is_gated(member) and ("pod", member.uid) not in inputs.in_flight  # else it is submitted already
            ]
        )
    )
