"""The gangs and pods with a listed plan. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import NamedTuple

from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.policy.limits import GangLimits, LimitReached

_uid = attrgetter("uid")


class InProgress(NamedTuple):
    """Gangs and pods with a listed plan."""

    gangs: frozenset[GangName]
    pods: frozenset[str]  # UIDs of single pods
    plans: Mapping[str, int] = {}  # number of plans by namespace of their pods

    def is_free(self, gang: Gang) -> bool:
        """Return True if nothing is in progress for this gang."""
        return gang.name not in self.gangs and self.pods.isdisjoint(map(_uid, gang.ready))

    def limit_reached(self, namespace: str, limits: GangLimits) -> LimitReached | None:
        """Return the limit because of which no further gang of a namespace is planned; None: there is none."""
        plans, most = self.plans.get(namespace, 0), limits.limits_of(namespace).starting_gangs
        if plans < most:
            return None
        starting = f"{plans} gangs of its namespace have places and are not bound yet"
        return LimitReached("startingGangs", f"{starting}: the limit is {most} (gangs.startingGangs)")
