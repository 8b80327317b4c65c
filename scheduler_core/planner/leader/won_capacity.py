"""GPU-hours that gangs use on capacity that they got by preemption: the gain beside the lost work. No I/O.

Counted while the gang runs, as far as this term of leadership sees it.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.planner.gang.gang import FINISHED_PHASES
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.preemption.cost import gpu_hours, gpus_of

EVERY_S = 15.0  # between two counts
MOST = 1_000  # gangs: of more, the first ones are counted
STARTS_S = 3_600.0  # a gang that does not run so long after it got its places is no longer counted


class UsedCapacity(NamedTuple):
    """The use of won capacity since the last count."""

    gpu_hours: float = 0.0
    cost: float | None = None  # in the unit of the nodes' cost per hour; None: unknown for all nodes


class WonCapacity:
    """The gangs that got places by preemption in one term of leadership. For one thread. Times in monotonic seconds."""

    def __init__(self, view: PlannerView) -> None:
        self._view = view
        self._won_at: dict[GangName, float] = {}
        self._counted_at: float | None = None

    def add_gang(self, gang: GangName, now: float) -> None:
        """Record that a gang got its places by preemption."""
        if len(self._won_at) < MOST:
            self._won_at.setdefault(gang, now)

    def use_since_last(self, now: float) -> UsedCapacity | None:
        """Return the use since the last count; None: it was a short time ago, or there is nothing to count."""
        if not self._won_at or self._counted_at is None:
            self._counted_at = now
            return None
        since_s = now - self._counted_at
        if since_s < EVERY_S:
            return None
        self._counted_at = now
        running = {name: self._running(name) for name in self._won_at}
        self._won_at = {name: at for name, at in self._won_at.items() if running[name] or now - at < STARTS_S}
        hours, costs = 0.0, list[float]()
        for each in (each for members in running.values() for each in members):
            record = None if each.node is None else self._view.cache.snapshot.records.get(each.node)
            used = gpu_hours(gpus_of(record, each.devices), since_s)
            per_hour = None if record is None else record.machine.cost.per_gpu_hour
            hours += used
            costs += [] if per_hour is None else [used * per_hour]
        return UsedCapacity(hours, sum(costs) if costs else None)

    def _running(self, name: GangName) -> list[Member]:
        gang = self._view.gang_members.get_gang(name)
        placed = () if gang is None else gang.placed
        return [each for each in placed if each.started and each.phase not in FINISHED_PHASES and each.devices]
