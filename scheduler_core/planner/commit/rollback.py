"""When a committed plan is taken back, and by what writes. Pure; ``steps`` says where in a plan's life that is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputopo.crd.reservations import Seat, State
from scheduler_core.cache.events import ReservationSeen
from scheduler_core.planner.commit.actions import DeletePod, LetGo, StripFinalizer, Touch
from scheduler_core.planner.commit.controllers import replaced, stripped, to_strip
from scheduler_core.planner.commit.members import (
    enough_bound,
    is_bound,
    is_enough,
    is_gated,
    is_lost,
    is_over,
    open_of,
    seats_of,
)
from scheduler_core.planner.commit.state import Rollback, Step, Terms, World
from scheduler_core.planner.commit.status import names, status_of
from scheduler_core.planner.gang.member import Member

GIVE_UP_S = 60.0  # a pod that the API server does not let us write for so long holds nobody up any more
_WORDS = 1000  # characters of what the API server says


def trouble_with(world: World, reservation: ReservationSeen, open_: Sequence[tuple[Seat, Member]]) -> str | None:
    """Why it is taken back; None: all is well so far. ``open_``: its ``open_of``."""
    if reservation.spec.gang:
        if not is_enough(world, reservation):
            lost = [seat.name for seat, member in seats_of(world, reservation) if is_lost(member, reservation)]
            return f"{names(lost)} went away before all were bound"
        nowhere = [seat for seat, _ in open_ if seat.node is not None and seat.node not in world.nodes]
        if nowhere:
            return f"node {nowhere[0].node}, where {nowhere[0].name} was to go, is gone"
    if open_ and world.now - world.memory.since[reservation.key].at >= reservation.spec.timeout_s:
        said = next((f" (kube-scheduler: {member.unbound})" for _, member in open_ if member.unbound), "")
        late = f"{names([seat.name for seat, _ in open_])} not bound within {reservation.spec.timeout_s:g} s{said}"
        return late + _refusal(world, "go", [LetGo(member, seat, reservation.name) for seat, member in open_])
    return None


def taken_back(world: World, reservation: ReservationSeen, trouble: str) -> Step:
    """That it is taken back; unless its members are not as they were seen."""
    open_ = open_of(world, reservation)
    write = status_of(world, reservation, State.ROLLING_BACK, trouble)
    return Step((write._replace(unless_changed=open_[0][1] if open_ else None),))


def rolling_back(world: World, terms: Terms, reservation: ReservationSeen) -> Step:
    """What is left of it to take back; it is struck when nothing is."""
    seats = [(seat, member) for seat, member in seats_of(world, reservation) if member is not None]
    doomed = _doomed(world, terms, reservation)
    kept = [member.name for member in doomed if not replaced(member)]
    if kept and reservation.spec.gang:
        reason = f"{reservation.status.reason}; nobody would make {names(kept)} again, so all are left as they are"
        return Step((status_of(world, reservation, State.FAILED, reason),))
    gone = _deletions(doomed)
    waiting = [member for _, member in seats if is_gated(member)]
    untouched = [each for each in waiting if (reservation.key, each.uid) not in world.memory.touched]
    touches = [touch for each in untouched if not _is_given_up(world, touch := Touch(each, reservation.key))]
    if gone and not touches and all(_is_given_up(world, each) for each in gone):
        refused = _refusal(world, "be deleted", gone)
        reason = f"{reservation.status.reason}{refused}. It is tried again: allow the planner that, or delete them"
        return Step((status_of(world, reservation, State.FAILED, reason),))
    return Step((*gone, *touches), strike=not gone and not touches)


def deletions(world: World, terms: Terms, reservation: ReservationSeen) -> tuple[StripFinalizer | DeletePod, ...]:
    """Of its members that are to go: of a gang all of them, or none where one would not come again."""
    doomed = _doomed(world, terms, reservation)
    return () if reservation.spec.gang and not all(map(replaced, doomed)) else _deletions(doomed)


def _is_given_up(world: World, what: Touch | StripFinalizer | DeletePod) -> bool:
    refused = world.memory.denied.get((type(what), what.member.uid))
    return refused is not None and refused.last - refused.since >= GIVE_UP_S  # time alone gives nothing up


def _refusal(world: World, what: str, writes: Iterable[LetGo | StripFinalizer | DeletePod]) -> str:
    """In the API server's own words, of the first of them; "": it refused nothing."""
    known = world.memory.denied
    refused = {
        each.member.name: known[type(each), each.member.uid].error
        for each in writes
        if (type(each), each.member.uid) in known
    }
    if not refused:
        return ""
    return f"; the API server does not let {names(refused)} {what}: {refused[min(refused)][:_WORDS]}"


def _doomed(world: World, terms: Terms, reservation: ReservationSeen) -> list[Member]:
    """Those that were let go by it and are to go, and do not go already."""
    let_go = [
        member
        for _, member in seats_of(world, reservation)
        if member is not None
        and not is_gated(member)
        and member.reservation == reservation.name
        and not is_over(member)
        and not member.ending
    ]
    if not reservation.spec.gang or enough_bound(world, reservation):
        return [member for member in let_go if stripped(member) or not is_bound(member)]
    whole = terms.rollback is Rollback.GANG
    return [member for member in let_go if whole or stripped(member) or not member.started]


def _deletions(doomed: Iterable[Member]) -> tuple[StripFinalizer | DeletePod, ...]:
    """Of those that would come again."""
    return tuple(
        DeletePod(member) if (finalizer := to_strip(member)) is None else StripFinalizer(member, finalizer)
        for member in doomed
        if replaced(member)
    )
