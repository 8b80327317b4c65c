"""Sharing keys: gangs with equal requests and equal keys share a result. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from functools import cache

from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.hold_limits import CapacityHold


def sharing_keys(
    holds: Collection[CapacityHold], avoiding: Container[GangName], *, may_backfill: bool
) -> Callable[[Gang], frozenset[str] | None]:
    """Return a function that returns the sharing key of a gang: the UIDs of the holds that it ignores.

    Where a gang does not fit, no gang with an equal request and an equal key fits. None: the gang shares no result.
    ``avoiding``: the gangs that avoid nodes; ``may_backfill``: gangs that end in time may use held capacity.
    """
    holders = {each.gang for each in holds}

    @cache
    def lower_holds(priority: int) -> frozenset[str]:
        return frozenset(each.reservation.key for each in holds if each.priority < priority)

    def sharing_key(gang: Gang) -> frozenset[str] | None:
        if gang.name in avoiding:
            return None
        if holds and may_backfill and any(each.bounded_s or each.expected for each in gang.ready):
            return None
        return ignored_holds(gang, holds) if gang.name in holders else lower_holds(gang.priority)

    return sharing_key


def ignored_holds(gang: Gang, holds: Collection[CapacityHold]) -> frozenset[str]:
    """Return the UIDs of the holds whose capacity a gang may use: its own, and holds of lower priorities."""
    return frozenset(each.reservation.key for each in holds if is_ignored(each, gang))


def is_ignored(hold: CapacityHold, gang: Gang) -> bool:
    """Return whether the gang may use the capacity of the hold."""
    return hold.gang == gang.name or hold.priority < gang.priority
