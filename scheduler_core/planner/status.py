"""What a planner is doing at one moment: who waits, for what, since when. Pure; metrics and /gangs are made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scheduler_core.cache.events import ReservationUpdate, WatchStatus
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.cache.reservations import ActiveReservation
from scheduler_core.planner.commit.progress import Progress, gang_progress, reservations_by_gang
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.term import LeaderTerm


class QueuedGangStatus(NamedTuple):
    """A gang, with what its reservation adds."""

    gang: Gang
    phase: str  # "gathering", "waiting", "queued", "held", "proposed", "committed", "rolling back", "failed", ...
    reason: str
    reservation: str | None = None
    missing: tuple[tuple[str, str], ...] = ()  # of one that fits nowhere: member, and what it is missing
    rollbacks: int = 0
    next_try_s: float | None = None  # not tried before that has passed
    rollback_reason: str | None = None  # why it was rolled back last
    since: float | None = None  # since when it waits for the queue, seconds since 1970; None: it is not in the queue


class PlannerStatus(NamedTuple):
    """All of it."""

    is_leader: bool
    not_ready_reason: str | None
    watches: tuple[WatchStatus, ...] = ()
    table: Snapshot = Snapshot()
    pods: int = 0
    gangs: tuple[QueuedGangStatus, ...] = ()
    held_gpus: int = 0  # by what counts, for members that have no node yet
    gated: tuple[float, ...] = ()  # creation of each pod that our gate holds, in seconds since 1970
    epoch: int = 0
    entries: int = 0
    extenders: int = 0
    holder: str | None = None  # of the Lease, as last seen
    stale_reason: bool = False  # nothing is planned: what is known may be old


def planner_status(
    term: LeaderTerm | None,
    leads: bool,
    unready: str | None,
    watches: tuple[WatchStatus, ...],
    now: float,
    holder: str | None = None,
) -> PlannerStatus:
    """Of now, in monotonic seconds."""
    if term is None or not term.leads:
        return PlannerStatus(leads, unready, watches, holder=holder)
    view, ledger = term.view, term.view.ledger
    assert ledger is not None  # it leads
    counting = view.cache.reservations.active
    phases, own = {uid: each.entry.phase for uid, each in counting.items()}, _own(term)
    gangs = tuple(view.gang_members.all_gangs())
    return PlannerStatus(
        leads,
        unready,
        watches,
        view.cache.table,
        len(view.cache.pods),
        tuple(_gang(term, each, gang_progress(each, own.get(each.name, ()), phases), now) for each in gangs),
        sum(_kept(each, view.gang_members.get_member) for each in counting.values()),
        tuple(one.created for each in gangs for one in (*each.ready, *each.held, *each.surplus)),
        ledger.spec.epoch,
        len(ledger.spec.entries),
        len(ledger.extenders),
        holder,
        term.freshness.stale_reason is not None,
    )


def _own(term: LeaderTerm) -> dict[GangName, list[ReservationUpdate]]:
    """The reservations of each gang; those of single pods by the pods that they are for."""
    found = reservations_by_gang(term.view.reservations.values())
    for each in term.view.reservations.values():
        for seat in () if each.spec.gang else each.spec.seats:
            member = term.view.gang_members.get_member(seat.uid)
            if member is not None:
                found.setdefault(member.gang_request.gang, []).append(each)
    return found


def _gang(term: LeaderTerm, gang: Gang, found: Progress, now: float) -> QueuedGangStatus:
    waiting = term.backlog.queue.get_queued(gang.name)
    past: tuple[int, float | None, str | None, float | None] = (0, None, None, None)
    if waiting is not None:
        next_try_s = max(0.0, waiting.not_before - now) if waiting.not_before else None
        past = waiting.rollbacks, next_try_s, waiting.rollback_reason, waiting.since
    if found.open is not None:
        return QueuedGangStatus(gang, found.phase, found.reason, found.open.name, (), *past)
    why = term.backlog.unplaced.get(gang.name)
    if gang.phase is GangPhase.QUEUED and why is not None:
        missing = tuple((name, getattr(each, "value", str(each))) for name, each in why.missing)
        return QueuedGangStatus(gang, found.phase, why.reason, None, missing, *past)
    return QueuedGangStatus(gang, found.phase, found.reason, None, (), *past)


def _kept(counting: ActiveReservation, member: Callable[[str], Member | None]) -> int:
    """GPUs that nobody has yet."""
    seats = (seat for seat in counting.seats if (found := member(seat.uid)) is None or found.node is None)
    return sum(number for seat in seats for _, number in seat.gpus) + sum(each.gpus for each in counting.holdings)
