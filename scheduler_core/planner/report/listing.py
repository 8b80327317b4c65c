"""The gangs of a cluster, one value each. Pure.

A gang without our gate and without a reservation belongs to another scheduler and is not listed.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType

import msgspec

from gputopo.crd.reservations import Backfill, EntryPhase, ReservationState
from gputopo.timestamps import format_timestamp, parse_timestamp
from scheduler_core.planner.commit.actions import reserved_gang
from scheduler_core.planner.commit.progress import (
    FAILED,
    PHASES,
    ROLLING_BACK,
    Progress,
    gang_progress,
    reservations_by_gang,
)
from scheduler_core.planner.gang.conventions import BY_ANNOTATIONS, is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang, GangPhase, single_pod_of
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.report.advice import gang_advice
from scheduler_core.planner.report.leadership import no_planner_words
from scheduler_core.planner.report.planner_page import PlannerGangState
from scheduler_core.planner.report.read import GangSnapshot
from scheduler_core.request.pod_request import PodRequest

NO_PLANNER_STATE: Mapping[GangName, PlannerGangState] = MappingProxyType({})
_LEFT_OUT = (GangPhase.ELSEWHERE, GangPhase.FINISHED)
_INCOMPLETE = (GangPhase.REFUSED, GangPhase.WAITING_FOR_MEMBERS, GangPhase.WAITING)
_THERE = (GangPhase.BOUND.value, GangPhase.RUNNING.value)
_NEEDS_PLANNER = (
    GangPhase.QUEUED.value,
    *(PHASES[each] for each in (EntryPhase.HELD, EntryPhase.PROPOSED, EntryPhase.COMMITTED)),
    ROLLING_BACK,
)
_NOT_WAITING = (*_THERE, GangPhase.FINISHED.value)
FAILED_PHASES = (GangPhase.REFUSED.value, FAILED, ROLLING_BACK)


class GangSummary(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A gang at one moment. None: unknown or absent."""

    namespace: str
    name: str
    phase: str  # ``Progress.phase``
    reason: str
    by: str  # the convention that declares its members
    priority: int  # of the queue
    size: int | None  # number of its members when complete
    minimum: int | None  # of members, for a start
    there: int  # members that wait, are placed or have succeeded
    ungated: int  # of these, ungated
    bound: int  # of these, bound
    gpus: int | None  # devices that these request; None: a request is invalid
    nodes: tuple[str, ...]  # of its members, planned or bound
    domain: str | None
    gbps: float | None  # as planned: bottleneck of the rings inside the nodes, both ways
    created_at: str  # its first member; RFC 3339
    waiting_seconds: int | None  # since it was complete, or since its first member; None: all are bound
    priorities: tuple[int, ...] = ()  # of counted members, lowest first, if they differ
    reservation: str | None = None
    attempt: int | None = None
    deadline: str | None = None  # RFC 3339: for binding all
    estimate: str | None = None  # RFC 3339: when its capacity hold will be free
    rollbacks: int | None = None  # None: only the planner knows
    next_try_seconds: float | None = None  # None: at once, or only the planner knows
    trouble: str | None = None  # why it was rolled back last; None: never, or only the planner knows
    left_seconds: int | None = None  # until the deadline, while its members are being bound; below 0: it has passed
    pod: str | None = None  # of a single pod
    advice: str | None = None  # what to do about it
    backfill: Backfill | None = None  # it uses capacity that is held for another gang, until that gang can start


def list_gangs(
    snapshot: GangSnapshot, now: float, planner_states: Mapping[GangName, PlannerGangState] = NO_PLANNER_STATE
) -> tuple[GangSummary, ...]:
    """Return the gangs: failed and refused ones, then waiting ones in queue order. ``now``: seconds since 1970.

    Single pods are among them only if refused: a pod with an invalid gang is a single pod.
    """
    holders, no_planner = gangs_with_holds(snapshot), no_planner_words(snapshot, now)
    found = [
        gang_summary(gang, _with_reason(state, no_planner), now, planner_states.get(gang.name), holders=holders)
        for gang, state in progress_of(snapshot)
        if gang.phase not in _LEFT_OUT and (not is_single_pod_gang(gang.name) or gang.phase is GangPhase.REFUSED)
    ]
    return tuple(sorted(found, key=_order))


def _with_reason(state: Progress, no_planner: str | None) -> Progress:
    """Return the progress with the reason that no planner leads, in a phase that only a planner ends."""
    if no_planner is None or state.phase not in _NEEDS_PLANNER:
        return state
    return state._replace(reason=f"{state.reason}; {no_planner}" if state.reason else no_planner)


def gangs_without_gates(snapshot: GangSnapshot) -> list[str]:
    """Return the waiting gangs with our annotations and without our gate, whose pods are scheduled one by one."""
    return [
        each.name.title
        for each in snapshot.view.gang_members.all_gangs()
        if each.phase is GangPhase.ELSEWHERE
        and each.convention == BY_ANNOTATIONS
        and any(pod.node is None for pod in each.placed)
    ]


def progress_of(snapshot: GangSnapshot) -> list[tuple[Gang, Progress]]:
    """Return each gang with its progress, single pods included."""
    reserved = snapshot.view.cache.reservations
    phases = {uid: each.entry.phase for uid, each in reserved.active.items()} if snapshot.ledgers else None
    own = reservations_by_gang(reserved.reservations.values())
    return [
        (gang, gang_progress(gang, own.get(gang.name, ()), phases)) for gang in snapshot.view.gang_members.all_gangs()
    ]


def gangs_with_holds(snapshot: GangSnapshot) -> frozenset[str]:
    """Return the gangs with capacity holds, as NAMESPACE/NAME. Without the right to read ledgers, all holds count."""
    reserved = snapshot.view.cache.reservations
    held = {uid for uid, each in reserved.active.items() if each.entry.phase is EntryPhase.HELD}
    names = (
        reserved_gang(each)
        for each in reserved.reservations.values()
        if each.spec.held and (each.key in held or not snapshot.ledgers)
    )
    return frozenset(name.title for name in names if name is not None)


def backfill_in_use(gang: Gang, state: Progress, holders: Container[str]) -> Backfill | None:
    """Return the backfill of a gang with places, while the capacity is held for the other gang."""
    plan = state.open or state.plan
    found = None if plan is None or gang.phase is GangPhase.QUEUED else plan.spec.backfill
    return None if found is None or found.gang not in holders else found


def gang_summary(
    gang: Gang,
    state: Progress,
    now: float,
    planner_state: PlannerGangState | None,
    *,
    opted_in: bool | None = None,
    holders: Container[str] = (),
) -> GangSummary:
    """Return the summary of a gang. ``opted_in``: whether its namespace gates pods; None: not read.

    ``holders``: see ``gangs_with_holds``.
    """
    live = (*gang.ready, *gang.held, *gang.placed)
    found = [number for each in live if (number := devices(each)) is not None]
    plan = state.plan
    status = None if state.open is None else state.open.status
    bound = [each.node for each in gang.placed if each.node is not None]
    to_be = () if state.open is None else (*(each.node for each in state.open.spec.seats),)
    held = () if state.open is None else tuple(each.node for each in state.open.spec.held)
    return GangSummary(
        namespace=gang.name.namespace,
        name=gang.name.name,
        phase=state.phase,
        reason=state.reason if planner_state is None or state.phase != planner_state.phase else planner_state.reason,
        by=gang.convention,
        priority=gang.priority,
        priorities=gang.priorities,
        size=gang.size,
        minimum=gang.minimum,
        there=gang.present_members + len(gang.held),
        ungated=len(gang.placed) + len(gang.succeeded),
        bound=len(bound) + len(gang.succeeded),
        gpus=sum(found) if len(found) == len(live) else None,
        nodes=tuple(sorted({*bound, *(node for node in (*to_be, *held) if node is not None)})),
        domain=None if plan is None else plan.spec.domain,
        gbps=None if plan is None else plan.spec.gbps,
        created_at=format_timestamp(gang.created),
        waiting_seconds=None if state.phase in _NOT_WAITING else max(0, int(_waited(gang, now, planner_state))),
        reservation=None if plan is None else plan.name,
        attempt=None if plan is None else plan.spec.attempt,
        deadline=None if status is None else status.deadline,
        estimate=None if status is None else status.estimate,
        rollbacks=None if planner_state is None else planner_state.rollbacks,
        next_try_seconds=None if planner_state is None else planner_state.next_try_s,
        trouble=None if planner_state is None else planner_state.trouble,
        left_seconds=_left(state, now),
        pod=single_pod_of(gang),
        advice=gang_advice(gang, state.phase, opted_in=opted_in),
        backfill=backfill_in_use(gang, state, holders),
    )


def devices(member: Member) -> int | None:
    """Return the devices that a member requests; None: its request is invalid."""
    return member.request.profile.devices if isinstance(member.request, PodRequest) else None


def _waited(gang: Gang, now: float, planner_state: PlannerGangState | None) -> float:
    """Return the seconds that count in the queue; without the planner, at most how long the gang is complete."""
    if planner_state is not None and planner_state.waiting_s is not None:
        return planner_state.waiting_s
    return now - (gang.created if gang.phase in _INCOMPLETE else gang.newest)


def _left(state: Progress, now: float) -> int | None:
    if state.open is None or state.open.status.state is not ReservationState.COMMITTED:
        return None
    deadline = parse_timestamp(state.open.status.deadline)
    return None if deadline is None else round(deadline - now)


def _order(gang: GangSummary) -> tuple[int, int, int, str, str]:
    rank = 0 if gang.phase in FAILED_PHASES else 2 if gang.phase in _THERE else 1
    return rank, -gang.priority if rank < 2 else 0, -(gang.waiting_seconds or 0), gang.namespace, gang.name
