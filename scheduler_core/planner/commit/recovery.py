"""A plan that the ledger does not list: made just now, taken out of it by somebody, over, or failed. Pure.

The ledger may be deleted, with all that it lists, while members are let go by it. What was committed is then proposed
again, with what is left of it: its places may have gone to others since.

A plan that was deleted while its members were ungated is written again from the pods: each names its plan (annotation)
and its node (node affinity), and without a plan there is no deadline and no rollback. A plan that is written again
makes its pods count, so it takes only pods that are proved to be ungated by a planner: ``World.coming``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import msgspec

from gputopo.crd.reservations import Phase, ReservationSpec, Seat, State
from gputopo.timestamps import timestamp
from scheduler_core.cache.events import ReservationSeen
from scheduler_core.planner.commit.actions import CreateReservation, DeleteReservation
from scheduler_core.planner.commit.controllers import replaced
from scheduler_core.planner.commit.members import is_bound, is_gated, is_placed, is_waiting, open_of, seats_of
from scheduler_core.planner.commit.rollback import deletions, rolling_back
from scheduler_core.planner.commit.state import Step, Terms, World
from scheduler_core.planner.commit.status import status_of
from scheduler_core.planner.gang.conventions import is_alone
from scheduler_core.planner.gang.member import Member


def unlisted(world: World, terms: Terms, reservation: ReservationSeen) -> Step:
    """Listed, or the status says what became of it, or it is deleted."""
    state = reservation.status.state
    if _is_unfinished(world, terms, reservation):
        return Step(phase=Phase.PROPOSED, again=True)
    placed = [member for _, member in seats_of(world, reservation) if member is not None and is_placed(member)]
    tried_again = deletions(world, terms, reservation) if state is State.FAILED else ()
    half = tried_again and len(placed) < len(reservation.spec.seats)  # some were deleted, and the rest is to follow
    if placed and all(map(is_bound, placed)) and reservation.spec.gang and not half:
        return Step() if state is State.BOUND else Step((status_of(world, reservation, State.BOUND),))
    if tried_again or (placed and reservation.spec.gang and state in (State.FAILED, State.BOUND)):
        return Step(tried_again)
    if reservation.key not in world.memory.made or not _may_be_listed(world, reservation):
        return Step((DeleteReservation(reservation),))
    if reservation.spec.held:
        return Step(phase=Phase.HELD)
    left = settles_for(world, terms)
    if left > 0:
        reason = f"planned; the ledger is new, and extenders have until {timestamp(world.wall + left)} to see it"
        return Step() if state is State.PROPOSED else Step((status_of(world, reservation, State.PROPOSED, reason),))
    return Step(phase=Phase.COMMITTED if terms.gated else Phase.PROPOSED)


def _is_unfinished(world: World, terms: Terms, reservation: ReservationSeen) -> bool:
    """Whether the ledger was to list it still."""
    if reservation.status.state is State.ROLLING_BACK:
        return bool(rolling_back(world, terms, reservation).writes)
    return reservation.status.state not in (State.FAILED, State.BOUND) and was_committed(world, reservation)


def was_committed(world: World, reservation: ReservationSeen) -> bool:
    """Whether it counted when its members were let go, and not all of them are bound."""
    open_ = open_of(world, reservation)
    return bool(open_) and (
        reservation.status.state is State.COMMITTED or any(not is_gated(member) for _, member in open_)
    )


def settles_for(world: World, terms: Terms) -> float:
    """Seconds, until every extender has had the time to see that there is a ledger; 0 or less: it has."""
    memory = world.memory
    if terms.gated or not memory.fresh or memory.ledger is None:
        return 0.0
    return terms.settle_s - (world.now - memory.ledger)


def _may_be_listed(world: World, reservation: ReservationSeen) -> bool:
    """Whether the plan still is what its members need, as far as can be seen."""
    if world.blind:
        return False
    if reservation.spec.held:
        return reservation.key not in world.unheld
    return is_waiting(world, reservation) and reservation.key not in world.crowded


def vanished(world: World) -> Iterator[CreateReservation]:
    """Under the names that their members bear. Single pods that nobody would make again are left to themselves."""
    if not world.coming:
        return
    plans = world.plans
    if plans is None:
        plans = {plan for each in world.reservations.values() for plan in plans_of(each)}
    lost: dict[tuple[str, str, str], dict[str, Member]] = {}
    coming = {each.uid for each in world.coming}
    for each in world.coming:
        name, gang = each.reservation or "", each.wanted.gang
        if (gang.namespace, name) in plans or (is_alone(gang) and ((each.uid, name) in plans or not replaced(each))):
            continue
        key = gang.namespace, name, "" if is_alone(gang) else gang.name
        if key not in lost:
            lost[key] = {one.uid: one for one in _siblings(world, each, coming)}
        lost[key][each.uid] = each
    for (namespace, name, gang_name), members in lost.items():
        yield CreateReservation(namespace, name, _spec(gang_name, members.values()))


def plans_of(reservation: ReservationSeen) -> tuple[tuple[str, str], ...]:
    """Under what its members look for it: namespace and name, or their UID and its name.

    A batch of single pods has those of any namespace. Written again it is one plan for each, of the same name.
    """
    spec, name = reservation.spec, reservation.name
    return ((reservation.namespace, name), *(() if spec.gang else ((seat.uid, name) for seat in spec.seats)))


def _siblings(world: World, member: Member, coming: Container[str]) -> Iterator[Member]:
    """Members that the same plan let go. A pin that is not proved is left out."""
    gang = world.gang(member.wanted.gang)
    of_plan = (each for each in (() if gang is None else gang.placed) if each.reservation == member.reservation)
    return (each for each in of_plan if each.node is not None or each.pin is None or each.uid in coming)


def _spec(gang: str, members: Iterable[Member]) -> ReservationSpec:
    """Where they are or are to go. What a plan knows beside that is lost."""
    seats = [Seat(each.uid, each.name, each.node or each.pin, each.devices, rank=each.wanted.rank) for each in members]
    plan = ReservationSpec(gang, tuple(sorted(seats, key=lambda each: each.name)))
    timeouts = [each.wanted.timeout_s for each in members if each.wanted.timeout_s is not None]
    return msgspec.structs.replace(plan, timeout_s=max(timeouts)) if timeouts else plan
