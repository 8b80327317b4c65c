"""The state of a planner at one moment: each gang, its phase and reason. Pure; source of the metrics and /gangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from gputopo.timestamps import parse_timestamp
from scheduler_core.cache.events import ReservationUpdate, WatchStatus
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.cache.reservations import ActiveReservation
from scheduler_core.planner.commit.progress import Progress, gang_progress, reservations_by_gang
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.in_progress import InProgress
from scheduler_core.planner.leader.term import LeaderTerm
from scheduler_core.planner.preemption.model import PreemptionPlan
from scheduler_core.policy.preemption import PreemptionMode


class QueuedGangStatus(NamedTuple):
    """A gang, with the state of its reservation."""

    gang: Gang
    phase: str  # "waiting for members", "queued", "held", "proposed", "committed", "rolling back", ...
    reason: str
    reservation: str | None = None
    missing: tuple[tuple[str, str], ...] = ()  # of a gang that fits nowhere: member, reason
    rollbacks: int = 0
    next_try_s: float | None = None  # remaining back-off
    rollback_reason: str | None = None  # of the last rollback
    since: float | None = None  # start of its wait, seconds since 1970; None: not queued
    limit: str | None = None  # key of a limit in the policy file: it is not planned, or may not hold capacity
    dry_run: PreemptionPlan | None = None  # what the planner would have evicted for it
    no_eviction: str | None = None  # why the last search for pods to evict for it found none
    judged: bool | None = None  # whether this planner has tried to place it since it leads; None: it is not queued


class HoldStatus(NamedTuple):
    """A capacity hold."""

    namespace: str
    gpus: int
    since: float  # seconds since 1970
    users: int  # pods of a higher priority that use its capacity


class PlannerStatus(NamedTuple):
    """The state of a planner."""

    is_leader: bool
    not_ready_reason: str | None
    watches: tuple[WatchStatus, ...] = ()
    table: ClusterSnapshot = ClusterSnapshot()
    pods: int = 0
    gangs: tuple[QueuedGangStatus, ...] = ()
    held_gpus: int = 0  # by active reservations, for members without a node
    gated: tuple[float, ...] = ()  # creation of each pod with the gate of gputopo, seconds since 1970
    epoch: int = 0
    entries: int = 0
    extenders: int = 0
    holder: str | None = None  # of the Lease, as last seen
    is_stale: bool = False  # nothing is planned, because the cluster cache may be stale
    holds: tuple[HoldStatus, ...] = ()
    backfilled_gpus: int = 0  # of running pods on capacity that is held for other gangs


def planner_status(
    term: LeaderTerm | None,
    is_leader: bool,
    not_ready_reason: str | None,
    watches: tuple[WatchStatus, ...],
    now: float,
    holder: str | None = None,
) -> PlannerStatus:
    """Return the state of a planner. ``now``: monotonic seconds."""
    if term is None or not term.leads:
        return PlannerStatus(is_leader, not_ready_reason, watches, holder=holder)
    view, ledger = term.view, term.view.ledger
    assert ledger is not None  # it leads
    active = view.cache.reservations.active
    phases, own = {uid: each.entry.phase for uid, each in active.items()}, _reservations_by_gang(term)
    gangs, in_progress = tuple(view.gang_members.all_gangs()), view.in_progress()
    return PlannerStatus(
        is_leader,
        not_ready_reason,
        watches,
        table=view.cache.snapshot,
        pods=len(view.cache.pods),
        gangs=tuple(
            _gang_status(term, each, gang_progress(each, own.get(each.name, ()), phases), in_progress, now)
            for each in gangs
        ),
        held_gpus=sum(_reserved_gpus(each, view.gang_members.get_member) for each in active.values()),
        gated=tuple(member.created for each in gangs for member in (*each.ready, *each.held, *each.surplus)),
        epoch=ledger.spec.epoch,
        entries=len(ledger.spec.entries),
        extenders=len(ledger.extenders),
        holder=holder,
        is_stale=term.freshness.stale_reason is not None,
        holds=tuple(_hold_statuses(term)),
        backfilled_gpus=term.backfills.gpus_in_use(),
    )


def _hold_statuses(term: LeaderTerm) -> Iterator[HoldStatus]:
    for each in term.holds.open_holds():
        since = parse_timestamp(each.reservation.spec.held_since)
        users = term.holds.users.get(each.reservation.key, ())
        yield HoldStatus(each.gang.namespace, each.gpus, since or 0.0, len(users))


def _reservations_by_gang(term: LeaderTerm) -> dict[GangName, list[ReservationUpdate]]:
    """Return the reservations of each gang; a batch of single pods is listed for each of its pods."""
    found = reservations_by_gang(term.view.reservations.values())
    for each in term.view.reservations.values():
        for seat in () if each.spec.gang else each.spec.seats:
            member = term.view.gang_members.get_member(seat.uid)
            if member is not None:
                found.setdefault(member.gang_request.gang, []).append(each)
    return found


def _gang_status(
    term: LeaderTerm, gang: Gang, progress: Progress, in_progress: InProgress, now: float
) -> QueuedGangStatus:
    status = QueuedGangStatus(gang, progress.phase, progress.reason)
    if (queued := term.backlog.queue.get_queued(gang.name)) is not None:
        status = status._replace(
            rollbacks=queued.rollbacks,
            next_try_s=max(0.0, queued.not_before - now) if queued.not_before else None,
            rollback_reason=queued.rollback_reason,
            since=queued.since,
            dry_run=_dry_run(term, gang.name),
            no_eviction=term.preemptions.no_eviction(queued),
        )
    if progress.open is not None:
        return status._replace(reservation=progress.open.name)
    if gang.phase is not GangPhase.QUEUED:
        return status
    if (reached := term.backlog.limit_reached(gang.name, in_progress)) is not None:
        return status._replace(reason=f"not planned: {reached.reason}", limit=reached.limit)
    if (unplaced := term.backlog.unplaced.get(gang.name)) is None:
        return status._replace(judged=False)
    missing = tuple((name, getattr(each, "value", str(each))) for name, each in unplaced.missing)
    status = status._replace(reason=unplaced.reason, missing=missing, judged=True)
    if (reached := term.holds.limits.reached.get(gang.name)) is None:
        return status
    return status._replace(reason=f"{unplaced.reason}; holds no capacity: {reached.reason}", limit=reached.limit)


def _dry_run(term: LeaderTerm, gang: GangName) -> PreemptionPlan | None:
    report = term.preemptions.reports.get(gang)
    if report is None or report.mode is not PreemptionMode.DRY_RUN:
        return None
    return report.result.found if isinstance(report.result.found, PreemptionPlan) else None


def _reserved_gpus(reservation: ActiveReservation, member: Callable[[str], Member | None]) -> int:
    """Return the number of reserved GPUs for members without a node, and of held GPUs."""
    seats = (seat for seat in reservation.seats if (found := member(seat.uid)) is None or found.node is None)
    return sum(number for seat in seats for _, number in seat.gpus) + sum(each.gpus for each in reservation.holdings)
