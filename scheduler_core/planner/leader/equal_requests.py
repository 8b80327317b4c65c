"""Gangs for which the result of another gang with an equal request counts: they ignore the same holds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from functools import cache

from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.hold_limits import CapacityHold


def holds_ignored_by(
    holds: Collection[CapacityHold], avoiding: Container[GangName], *, may_backfill: bool
) -> Callable[[Gang], frozenset[str] | None]:
    """Return a function that returns the UIDs of the holds that a gang ignores.

    It returns None for a gang that may fit where another gang with an equal request, which ignores the same holds, does
    not. ``avoiding``: the gangs that avoid nodes; ``may_backfill``: gangs that end in time may use held capacity.
    """
    holders = {each.gang for each in holds}

    @cache
    def of_priority(priority: int) -> frozenset[str]:
        return frozenset(each.reservation.key for each in holds if each.priority < priority)

    def ignored(gang: Gang) -> frozenset[str] | None:
        if gang.name in avoiding:
            return None
        if holds and may_backfill and any(each.bounded_s or each.expected for each in gang.ready):
            return None
        own = ignored_holds(gang, holds) if gang.name in holders else None
        return of_priority(gang.priority) if own is None else own

    return ignored


def ignored_holds(gang: Gang, holds: Collection[CapacityHold]) -> frozenset[str]:
    """Return the UIDs of the holds whose capacity a gang may use: its own, and holds of lower priorities."""
    return frozenset(each.reservation.key for each in holds if is_ignored(each, gang))


def is_ignored(hold: CapacityHold, gang: Gang) -> bool:
    """Return whether the gang may use the capacity of the hold."""
    return hold.gang == gang.name or hold.priority < gang.priority
