"""Units whose eviction a PodDisruptionBudget forbade a short time ago: searches leave them out. No I/O.

Budgets are counted only for chosen units. A tenant with many cheap pods, and a budget that allows nothing, would be
chosen again and again, and no other pod would ever be evicted. So after some units of a namespace, all of them are left
out, each time for longer; after that, other units of it are tried first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

FORBIDDEN_S = 120.0
MOST_UNITS = 4  # of a namespace that are tried before all of them are left out
_MOST_DOUBLINGS = 2
_FORGET_S = 3_600.0


class _Namespace(NamedTuple):
    """A namespace that is left out."""

    times: int  # in a row
    until: float


class ForbiddenUnits:
    """The forbidden units in one term of leadership. For one thread. Times in monotonic seconds."""

    def __init__(self) -> None:
        self._units: dict[str, float] = {}  # NAMESPACE/NAME -> until when
        self._namespaces: dict[str, _Namespace] = {}

    def forbid(self, units: Iterable[str], now: float) -> None:
        """Leave these units out for a time. Repeated while one count of the budgets is in effect."""
        self._forget_old(now)
        added = set(units) - self._units.keys()
        self._units |= dict.fromkeys(added, now + FORBIDDEN_S)
        for namespace in {_namespace_of(each) for each in added}:
            before = self._namespaces.get(namespace, _Namespace(0, 0.0))
            soon = now + FORBIDDEN_S
            own = [each for each in self._units if _namespace_of(each) == namespace]
            tried = [each for each in own if self._units[each] <= soon]
            if len(tried) >= MOST_UNITS and now >= before.until:
                pause_s = FORBIDDEN_S * 2.0 ** min(before.times, _MOST_DOUBLINGS)
                self._namespaces[namespace] = _Namespace(before.times + 1, now + pause_s)
                self._units |= dict.fromkeys(tried, now + _FORGET_S)

    def units(self, now: float) -> frozenset[str]:
        """Return the names of the units that are left out."""
        self._forget_old(now)
        return frozenset(self._units)

    def namespaces(self, now: float) -> frozenset[str]:
        """Return the namespaces of which all units are left out."""
        return frozenset(name for name, each in self._namespaces.items() if now < each.until)

    def _forget_old(self, now: float) -> None:
        self._units = {unit: until for unit, until in self._units.items() if now < until}
        self._namespaces = {name: each for name, each in self._namespaces.items() if now < each.until + _FORGET_S}


def _namespace_of(unit: str) -> str:
    return unit.partition("/")[0]
