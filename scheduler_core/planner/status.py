"""What a planner is doing at one moment: who waits, for what, since when. Pure; metrics and /gangs are made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gputopo.labels.reservations import Phase, State
from scheduler_core.gangs.conventions import is_alone
from scheduler_core.gangs.gang import Gang, GangPhase
from scheduler_core.gangs.member import GangName
from scheduler_core.gangs.protocol import counting
from scheduler_core.gangs.writes import gang_of
from scheduler_core.nodes import NodeTable
from scheduler_core.planner.term import Term
from scheduler_core.sightings import ReservationSeen, WatchStatus


class GangStatus(NamedTuple):
    """A gang, with what its reservation adds."""

    gang: Gang
    phase: str  # "gathering", "waiting", "queued", "held", "proposed", "committed", "rolling back", "failed", ...
    reason: str
    reservation: str | None = None
    missing: tuple[tuple[str, str], ...] = ()  # of one that fits nowhere: member, and what it is missing
    rollbacks: int = 0
    until: float | None = None  # not tried before that, in seconds since 1970


class Status(NamedTuple):
    """All of it."""

    leads: bool
    unready: str | None
    watches: tuple[WatchStatus, ...] = ()
    table: NodeTable = NodeTable()
    pods: int = 0
    gangs: tuple[GangStatus, ...] = ()
    held_gpus: int = 0  # by reservations whose members are not all bound
    gated: tuple[float, ...] = ()  # creation of each pod that our gate holds, in seconds since 1970
    epoch: int = 0
    entries: int = 0
    extenders: int = 0


def status(term: Term | None, leads: bool, unready: str | None, watches: tuple[WatchStatus, ...]) -> Status:
    """Of now."""
    if term is None or not term.leads:
        return Status(leads, unready, watches)
    view, ledger = term.view, term.view.ledger
    assert ledger is not None  # it leads
    open_ = dict(_open(term))
    gangs = tuple(view.roster.gangs())
    return Status(
        leads,
        unready,
        watches,
        view.knowledge.table,
        len(view.knowledge.pods),
        tuple(_gang(term, each, open_.get(each.name)) for each in gangs),
        sum(_held(each) for each in open_.values()),
        tuple(one.created for each in gangs for one in (*each.ready, *each.held, *each.surplus)),
        ledger.spec.epoch,
        len(ledger.spec.entries),
        len(ledger.extenders),
    )


_PHASES = {Phase.HELD: "held", Phase.PROPOSED: "proposed", Phase.COMMITTED: "committed"}


class _Open(NamedTuple):
    phase: str
    reservation: ReservationSeen


def _open(term: Term) -> Iterator[tuple[GangName, _Open]]:
    """Gangs for which a reservation counts, or has failed."""
    ledger, reservations = term.view.ledger, term.view.reservations
    assert ledger is not None  # it leads
    entries = counting(ledger.spec, reservations)
    for uid, each in reservations.items():
        state, entry = each.status.state, entries.get(uid)
        if state is State.FAILED:
            phase = "failed"
        elif entry is None:
            continue
        else:
            phase = "rolling back" if state is State.ROLLING_BACK else _PHASES[entry.phase]
        for name in _names(term, each):
            yield name, _Open(phase, each)


def _names(term: Term, reservation: ReservationSeen) -> Iterator[GangName]:
    name = gang_of(reservation)
    if name is not None:
        yield name
        return
    for seat in reservation.spec.seats:
        member = term.view.roster.member(seat.uid)
        if member is not None:
            yield member.wanted.gang


def _gang(term: Term, gang: Gang, found: _Open | None) -> GangStatus:
    waiting = term.queue.of(gang.name)
    rollbacks, until = (0, None) if waiting is None else (waiting.rollbacks, waiting.until or None)
    if found is not None and (found.phase != "failed" or gang.phase is not GangPhase.BOUND):
        reason = found.reservation.status.reason or gang.reason
        return GangStatus(gang, found.phase, reason, found.reservation.name, (), rollbacks, until)
    why = term.unplaced.get(gang.name)
    if gang.phase is GangPhase.QUEUED and why is not None:
        missing = tuple((name, getattr(each, "value", str(each))) for name, each in why.missing)
        return GangStatus(gang, gang.phase.value, why.reason, None, missing, rollbacks, until)
    return GangStatus(gang, gang.phase.value, gang.reason, None, (), rollbacks, until)


def _held(found: _Open) -> int:
    seats = sum(number for seat in found.reservation.spec.seats for _, number in seat.gpus)
    return seats + sum(each.gpus for each in found.reservation.spec.held)


def document(found: Status, now: float) -> Mapping[str, Any]:
    """As /gangs shows it."""
    return {
        "leads": found.leads,
        "unready": found.unready,
        "epoch": found.epoch,
        "entries": found.entries,
        "extenders": found.extenders,
        "held_gpus": found.held_gpus,
        "gangs": [_document(each, now) for each in found.gangs if not is_alone(each.gang.name)],
        "pods": [_document(each, now) for each in found.gangs if is_alone(each.gang.name)],
    }


def _document(each: GangStatus, now: float) -> dict[str, Any]:
    gang = each.gang
    return {
        "namespace": gang.name.namespace,
        "name": gang.name.name,
        "phase": each.phase,
        "reason": each.reason,
        "size": gang.size,
        "minimum": gang.minimum,
        "ready": len(gang.ready),
        "held": len(gang.held),
        "placed": len(gang.placed),
        "bound": sum(member.node is not None for member in gang.placed),
        "by": gang.by,
        "priority": gang.priority,
        "age_s": round(now - gang.created, 1),
        "reservation": each.reservation,
        "missing": [{"member": name, "reason": why} for name, why in each.missing],
        "rollbacks": each.rollbacks,
        "next_try_s": None if each.until is None else round(max(0.0, each.until - now), 1),
    }
