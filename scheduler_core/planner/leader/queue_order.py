"""The order of queued gangs, and the first gangs of each namespace: only these are planned. Pure.

Both are kept from call to call. Only namespaces with changes are looked at again: most events change few gangs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from scheduler_core.planner.gang.member import GangName
from scheduler_core.policy.limits import GangLimits, LimitReached

QueueOrder = tuple[int, bool, float, GangName]


class LimitedOrder:
    """The queued gangs in order, and which of them are within the limits of their namespaces. For one thread."""

    def __init__(self) -> None:
        self._pods: dict[GangName, int] = {}  # number of gated pods of each queued gang
        self._keys: dict[GangName, QueueOrder] = {}  # of queued gangs
        self._by_namespace: dict[str, list[QueueOrder]] = {}  # of queued gangs, sorted
        self._within: dict[str, dict[GangName, None]] = {}  # gangs within the limits in order, by namespace
        self._names: Sequence[GangName] = ()  # the same of all namespaces, in order
        self._changed: set[str] = set()  # namespaces, since the last call of ``names_within_limits``
        self._limits: GangLimits | None = None  # of the last call of ``names_within_limits``

    def set_gang(self, name: GangName, order: QueueOrder, pods: int) -> None:
        """Set the position of a queued gang, and the number of its gated pods."""
        if self._keys.get(name) == order and self._pods[name] == pods:
            return
        self.remove_gang(name)
        self._keys[name], self._pods[name] = order, pods
        insort(self._by_namespace.setdefault(name.namespace, []), order)
        self._changed.add(name.namespace)

    def remove_gang(self, name: GangName) -> None:
        """Remove a gang, if it is there. The cost is a search in a sorted list."""
        order = self._keys.pop(name, None)
        if order is None:
            return
        del self._pods[name]
        keys = self._by_namespace[name.namespace]
        del keys[bisect_left(keys, order)]
        if not keys:
            del self._by_namespace[name.namespace]
        self._changed.add(name.namespace)

    def names_within_limits(self, limits: GangLimits) -> Sequence[GangName]:
        """Return the gangs within the limits, in order: the same object while nothing changes."""
        if limits is not self._limits:
            self._limits = limits
            self._changed |= self._by_namespace.keys() | self._within.keys()
        if self._changed:
            changed, self._changed = self._changed, set()
            names = [each for each in self._names if each.namespace not in changed]
            for namespace in changed:
                self._within[namespace] = found = dict.fromkeys(self._within_limits(namespace, limits))
                names += found
                if not found:
                    del self._within[namespace]
            names.sort(key=self._keys.__getitem__)  # fast: the names of the other namespaces are in order already
            self._names = names
        return self._names

    def is_within_limits(self, name: GangName) -> bool:
        """Return whether the last call of ``names_within_limits`` returned this gang."""
        return name in self._within.get(name.namespace, ())

    def limit_reached(self, name: GangName, limits: GangLimits) -> LimitReached | None:
        """Return the limit because of which a queued gang is not planned; None: it is planned."""
        self.names_within_limits(limits)
        if name not in self._keys or self.is_within_limits(name):
            return None
        most, pods = limits.limits_of(name.namespace), self._pods[name]
        if pods > most.gated_pods:
            return LimitReached(
                "gatedPods",
                f"it has {pods} gated pods: the limit of its namespace is {most.gated_pods} (gangs.gatedPods)",
            )
        planned = len(self._within.get(name.namespace, ()))
        if planned == most.queued_gangs:
            return LimitReached(
                "queuedGangs",
                f"{planned} gangs of its namespace are queued before it: the limit is {planned} (gangs.queuedGangs)",
            )
        return LimitReached(
            "gatedPods",
            f"with the gangs of its namespace before it, it exceeds {most.gated_pods} gated pods (gangs.gatedPods)",
        )

    def _within_limits(self, namespace: str, limits: GangLimits) -> Iterator[GangName]:
        """Yield the first gangs of a namespace. A gang that is too large by itself lets the next gangs pass."""
        most, gangs, pods = limits.limits_of(namespace), 0, 0
        for *_, name in self._by_namespace.get(namespace, ()):
            own = self._pods[name]
            if own > most.gated_pods:
                continue
            gangs, pods = gangs + 1, pods + own
            if gangs > most.queued_gangs or pods > most.gated_pods:
                return
            yield name
