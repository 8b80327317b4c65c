"""What a planner is doing at one moment: who waits, for what, since when. Pure; metrics and /gangs are made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scheduler_core.cache.events import ReservationSeen, WatchStatus
from scheduler_core.cache.node_table import NodeTable
from scheduler_core.cache.reservations import Counting
from scheduler_core.planner.commit.progress import Progress, by_gang, progress
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.term import Term


class GangStatus(NamedTuple):
    """A gang, with what its reservation adds."""

    gang: Gang
    phase: str  # "gathering", "waiting", "queued", "held", "proposed", "committed", "rolling back", "failed", ...
    reason: str
    reservation: str | None = None
    missing: tuple[tuple[str, str], ...] = ()  # of one that fits nowhere: member, and what it is missing
    rollbacks: int = 0
    next_try_s: float | None = None  # not tried before that has passed
    trouble: str | None = None  # why it was rolled back last
    since: float | None = None  # since when it waits for the queue, seconds since 1970; None: it is not in the queue


class Status(NamedTuple):
    """All of it."""

    leads: bool
    unready: str | None
    watches: tuple[WatchStatus, ...] = ()
    table: NodeTable = NodeTable()
    pods: int = 0
    gangs: tuple[GangStatus, ...] = ()
    held_gpus: int = 0  # by what counts, for members that have no node yet
    gated: tuple[float, ...] = ()  # creation of each pod that our gate holds, in seconds since 1970
    epoch: int = 0
    entries: int = 0
    extenders: int = 0
    holder: str | None = None  # of the Lease, as last seen
    blind: bool = False  # nothing is planned: what is known may be old


def status(
    term: Term | None,
    leads: bool,
    unready: str | None,
    watches: tuple[WatchStatus, ...],
    now: float,
    holder: str | None = None,
) -> Status:
    """Of now, in monotonic seconds."""
    if term is None or not term.leads:
        return Status(leads, unready, watches, holder=holder)
    view, ledger = term.view, term.view.ledger
    assert ledger is not None  # it leads
    counting = view.knowledge.reserved.counting
    phases, own = {uid: each.entry.phase for uid, each in counting.items()}, _own(term)
    gangs = tuple(view.roster.gangs())
    return Status(
        leads,
        unready,
        watches,
        view.knowledge.table,
        len(view.knowledge.pods),
        tuple(_gang(term, each, progress(each, own.get(each.name, ()), phases), now) for each in gangs),
        sum(_kept(each, view.roster.member) for each in counting.values()),
        tuple(one.created for each in gangs for one in (*each.ready, *each.held, *each.surplus)),
        ledger.spec.epoch,
        len(ledger.spec.entries),
        len(ledger.extenders),
        holder,
        term.sight.trouble is not None,
    )


def _own(term: Term) -> dict[GangName, list[ReservationSeen]]:
    """The reservations of each gang; those of single pods by the pods that they are for."""
    found = by_gang(term.view.reservations.values())
    for each in term.view.reservations.values():
        for seat in () if each.spec.gang else each.spec.seats:
            member = term.view.roster.member(seat.uid)
            if member is not None:
                found.setdefault(member.wanted.gang, []).append(each)
    return found


def _gang(term: Term, gang: Gang, found: Progress, now: float) -> GangStatus:
    waiting = term.backlog.queue.of(gang.name)
    past: tuple[int, float | None, str | None, float | None] = (0, None, None, None)
    if waiting is not None:
        next_try_s = max(0.0, waiting.until - now) if waiting.until else None
        past = waiting.rollbacks, next_try_s, waiting.trouble, waiting.since
    if found.open is not None:
        return GangStatus(gang, found.phase, found.reason, found.open.name, (), *past)
    why = term.backlog.unplaced.get(gang.name)
    if gang.phase is GangPhase.QUEUED and why is not None:
        missing = tuple((name, getattr(each, "value", str(each))) for name, each in why.missing)
        return GangStatus(gang, found.phase, why.reason, None, missing, *past)
    return GangStatus(gang, found.phase, found.reason, None, (), *past)


def _kept(counting: Counting, member: Callable[[str], Member | None]) -> int:
    """GPUs that nobody has yet."""
    seats = (seat for seat in counting.seats if (found := member(seat.uid)) is None or found.node is None)
    return sum(number for seat in seats for _, number in seat.gpus) + sum(each.gpus for each in counting.held)
