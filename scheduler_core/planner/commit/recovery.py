"""A plan that the ledger does not list: made just now, taken out of it by somebody, over, or failed. Pure.

The ledger may be deleted, with all that it lists, while members are let go by it. What was committed is then proposed
again, with what is left of it: its places may have gone to others since.
"""

from __future__ import annotations

from gputopo.crd.reservations import Phase, State
from gputopo.timestamps import timestamp
from scheduler_core.cache.events import ReservationSeen
from scheduler_core.planner.commit.actions import DeleteReservation
from scheduler_core.planner.commit.members import is_bound, is_gated, is_placed, is_waiting, open_of, seats_of
from scheduler_core.planner.commit.rollback import deletions, rolling_back
from scheduler_core.planner.commit.state import Step, Terms, World
from scheduler_core.planner.commit.status import status_of


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
