"""Gangs that may fit where another gang with an equal request does not, because of holds or avoided nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container

from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.hold_limits import CapacityHold


def may_differ(
    holds: Collection[CapacityHold], avoiding: Container[GangName], *, may_backfill: bool
) -> Callable[[Gang], bool]:
    """Return a function that returns whether a gang may fit where another gang with an equal request does not.

    ``avoiding``: the gangs that avoid nodes; ``may_backfill``: gangs that end in time may use held capacity.
    """
    if not holds:
        return lambda gang: gang.name in avoiding
    holders, lowest = {each.gang for each in holds}, min(each.priority for each in holds)

    def differs(gang: Gang) -> bool:
        # A gang may use the capacity of its own hold and of holds of lower priorities.
        if gang.priority > lowest or gang.name in holders or gang.name in avoiding:
            return True
        return may_backfill and any(each.bounded_s or each.expected for each in gang.ready)

    return differs
