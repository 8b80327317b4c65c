"""Units whose eviction was forbidden or refused a short time ago: searches leave them out. No I/O.

Budgets are counted only for chosen units. Where they forbid a unit, the same count names the other pods of its
namespace that they forbid, and these are left out too. A tenant can still make budgets that forbid one chosen unit
after the other, and no other pod would ever be evicted. So after some units of a namespace, all of them are left out,
each time for longer; after that, other units of it are tried first.

Budgets that allow a unit when they are counted, and nothing once its first pod terminates, cost more time. After one
such unit, all units of its namespace are left out. A budget that allows nothing would protect them as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from scheduler_core.planner.commit.observations import BudgetCheck

FORBIDDEN_S = 120.0
MOST_UNITS = 4  # of a namespace that are tried before all of them are left out
_MOST_DOUBLINGS = 2
_REFUSED_FACTOR, _MOST_REFUSALS = 4.0, 3  # of the time after refused evictions: 2 minutes, 8, 32, 128
_FORGET_S = 3_600.0


class _Namespace(NamedTuple):
    """A namespace that is left out."""

    times: int  # in a row
    until: float


class ForbiddenNames(NamedTuple):
    """The units that a search leaves out."""

    units: frozenset[str] = frozenset()  # NAMESPACE/NAME
    pods: frozenset[str] = frozenset()  # UIDs: units with one of them are left out
    namespaces: frozenset[str] = frozenset()  # of which all units are left out


class ForbiddenUnits:
    """The forbidden units in one term of leadership. For one thread. Times in monotonic seconds."""

    def __init__(self) -> None:
        self._units: dict[str, float] = {}  # NAMESPACE/NAME -> until when
        self._pods: dict[str, float] = {}  # by UID: until when
        self._namespaces: dict[str, _Namespace] = {}
        self._nodes: dict[str, float] = {}  # by name: until when

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

    def apply_check(self, check: BudgetCheck, now: float) -> None:
        """Leave out what a check has found."""
        if check.insufficient_nodes:  # the units are not the reason
            self.forbid_nodes(check.insufficient_nodes, now)
        else:
            self.forbid(check.blocked, now)
            self.forbid_pods(check.forbidden, now)

    def refuse(self, units: Collection[str], now: float) -> None:
        """Leave out all units of the namespaces of these units: evictions that the budgets allowed were refused."""
        self._forget_old(now)
        for namespace in set(map(_namespace_of, units)):
            times = self._namespaces.get(namespace, _Namespace(0, 0.0)).times
            pause_s = FORBIDDEN_S * _REFUSED_FACTOR ** min(times, _MOST_REFUSALS)
            self._namespaces[namespace] = _Namespace(times + 1, now + pause_s)
            own = [each for each in units if _namespace_of(each) == namespace]
            self._units |= dict.fromkeys(own, now + pause_s + FORBIDDEN_S)  # then others are tried first

    def forbid_pods(self, pods: Iterable[str], now: float) -> None:
        """Leave out all units with one of these pods for a time, without a count for each. ``pods``: UIDs."""
        self._pods |= dict.fromkeys(set(pods) - self._pods.keys(), now + FORBIDDEN_S)

    def forbid_nodes(self, nodes: Iterable[str], now: float) -> None:
        """Leave out these nodes for a time: the gang would lack CPU, memory or another resource there."""
        self._nodes |= dict.fromkeys(nodes, now + FORBIDDEN_S)

    def nodes(self, now: float) -> frozenset[str]:
        """Return the nodes that are left out now."""
        self._forget_old(now)
        return frozenset(self._nodes)

    def names(self, now: float) -> ForbiddenNames:
        """Return what is left out now."""
        self._forget_old(now)
        namespaces = frozenset(name for name, each in self._namespaces.items() if now < each.until)
        return ForbiddenNames(frozenset(self._units), frozenset(self._pods), namespaces)

    def _forget_old(self, now: float) -> None:
        self._pods = {uid: until for uid, until in self._pods.items() if now < until}
        self._nodes = {name: until for name, until in self._nodes.items() if now < until}
        self._units = {unit: until for unit, until in self._units.items() if now < until}
        self._namespaces = {name: each for name, each in self._namespaces.items() if now < each.until + _FORGET_S}


def _namespace_of(unit: str) -> str:
    return unit.partition("/")[0]
