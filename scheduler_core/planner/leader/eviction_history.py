"""Evictions and failed preemptions, as the leading planner remembers them: limits follow from them. No I/O.

Evictions of earlier leaders are read from the ledger (``inherit``); failures are lost with the term of leadership.
Every collection is bounded, and nothing is forgotten because a tenant deletes an object and creates it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple, TypeVar

from gputopo.crd.reservations import PastPreemption
from gputopo.timestamps import parse_timestamp
from scheduler_core.planner.commit.past_preemptions import HOUR_S, pods_of_last_hour
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.preemption.inputs import EvictedDevices

K = TypeVar("K")
T = TypeVar("T")
RETRY_S = 60.0  # until the next search for a gang; after a preemption in vain doubled each time
MAX_RETRY_S = 3_600.0
REPEATED_S = 86_400.0  # a workload that is evicted again within this time is counted
_MOST = 10_000  # entries of a collection: the oldest are forgotten first
_MOST_DOUBLINGS = 10


class _Failures(NamedTuple):
    """Preemptions of a gang that ended without its places."""

    times: int  # in a row
    not_before: float  # monotonic seconds
    forget_at: float


class EvictedFrom(NamedTuple):
    """The unit of an evicted pod, and the hold for which it is evicted."""

    key: str  # ``EvictionUnit.key``
    hold: str  # UID


class EvictionLimit(NamedTuple):
    """The limit of an hour that an eviction counts towards."""

    shared_namespace: str | None = None  # as in ``EvictionHistory.count_evictions``
    beneficiary: str | None = None  # namespace of the gang; None: not known


class _Counted(NamedTuple):
    """An eviction that counts towards a limit of an hour."""

    at: float  # monotonic seconds
    limit: EvictionLimit


class EvictionHistory:
    """Evictions and failed preemptions in one term of leadership. For one thread. Times in monotonic seconds."""

    def __init__(self) -> None:
        self._counted: dict[str, _Counted] = {}  # by UID of the pod, of the last hour
        self._not_counted: dict[str, float] = {}  # the same, of backfilled pods and pods without GPUs
        self._evicted: dict[EvictedFrom, EvictedDevices] = {}
        self._searched: dict[str, float] = {}  # by key of the gang: the last search
        self._namespaces: dict[str, float] = {}  # the last search for a gang of it
        self._failures: dict[str, _Failures] = {}  # by key of the gang
        self._first_inherited: frozenset[str] | None = None  # UIDs of holds
        self._inherited: tuple[PastPreemption, ...] = ()

    @property
    def inherited(self) -> frozenset[str]:
        """The UIDs of the holds with evictions that earlier leaders created: their pods are counted as planned."""
        return frozenset(each.hold for each in self._inherited)

    def inherit(self, recorded: Iterable[PastPreemption]) -> None:
        """Take over the preemptions that the ledger lists. All that the first call finds are of earlier leaders."""
        found = tuple(recorded)
        if self._first_inherited is None:
            self._first_inherited = frozenset(each.hold for each in found)
        self._inherited = tuple(each for each in found if each.hold in self._first_inherited)

    def forget_old(self, now: float, wall: float, cooldown_s: float) -> None:
        """Forget everything that limits nothing any more. ``wall``: seconds since 1970."""
        self._counted = {uid: each for uid, each in self._counted.items() if now - each.at < HOUR_S}
        self._not_counted = {uid: at for uid, at in self._not_counted.items() if now - at < HOUR_S}
        oldest = wall - max(cooldown_s, REPEATED_S)
        evicted = {unit: each for unit, each in self._evicted.items() if each.at >= oldest}
        self._evicted = _last(evicted, lambda each: each.at)
        searched = {key: at for key, at in self._searched.items() if now - at < HOUR_S}
        self._searched = _last(searched, lambda at: at)
        namespaces = {name: at for name, at in self._namespaces.items() if now - at < HOUR_S}
        self._namespaces = _last(namespaces, lambda at: at)
        failures = {key: each for key, each in self._failures.items() if now < each.forget_at}
        self._failures = _last(failures, lambda each: each.forget_at)

    def evicted(self) -> Mapping[str, tuple[EvictedDevices, ...]]:
        """Return the devices of evicted pods by key of the unit, also of earlier leaders."""
        found = self._evicted | {unit: devices for each in self._inherited for unit, devices in _recorded(each)}
        by_key: dict[str, tuple[EvictedDevices, ...]] = {}
        for unit, devices in found.items():
            by_key[unit.key] = (*by_key.get(unit.key, ()), devices)
        return by_key

    def has_evicted(self, uid: str) -> bool:
        """Return True if this planner evicted the pod in the last hour."""
        return uid in self._counted or uid in self._not_counted

    def count_evictions(self, intended: Collection[str], now: float, shared_namespace: str | None = None) -> int:
        """Return the number of pods that were evicted in the last hour, or will be.

        ``shared_namespace``: of pods and gang; None: of pods that are evicted for gangs of other namespaces.
        ``intended``: UIDs, without those of ``inherited`` holds.
        """
        recent = {uid: each.limit for uid, each in self._counted.items() if now - each.at < HOUR_S}
        found = {uid for uid, limit in recent.items() if limit.shared_namespace == shared_namespace}
        return len(found.union(intended))

    def count_evictions_for(self, beneficiary: str, intended: Collection[str], now: float) -> int:
        """Return the number of pods of other namespaces that were evicted in the last hour for gangs of a namespace.

        ``intended``: as in ``count_evictions``.
        """
        limit = EvictionLimit(beneficiary=beneficiary)
        found = {uid for uid, each in self._counted.items() if now - each.at < HOUR_S and each.limit == limit}
        return len(found.union(intended))

    def count_inherited(self, wall: float) -> int:
        """Return the number of pods that earlier leaders planned to evict in the last hour."""
        return pods_of_last_hour(self._inherited, wall)

    def mark_evicted(
        self,
        uid: str,
        unit: EvictedFrom,
        evicted: EvictedDevices,
        now: float,
        limit: EvictionLimit | None = EvictionLimit(),  # noqa: B008  immutable
    ) -> bool:
        """Record the first accepted eviction of a pod. ``limit``: None: it counts towards none.

        ``evicted``: the devices that the cool-down of the unit protects for the pod.

        Return True if it is the first pod of a workload that was evicted for another hold within ``REPEATED_S``.
        """
        if limit is None or unit.hold in self.inherited:
            self._not_counted.setdefault(uid, now)
        else:
            self._counted.setdefault(uid, _Counted(now, limit))
        before = self._evicted.get(unit)
        self._evicted[unit] = evicted if before is None else before._replace(devices=before.devices + evicted.devices)
        return before is None and any(
            other.key == unit.key and evicted.at - each.at < REPEATED_S
            for other, each in self._evicted.items()
            if other != unit
        )

    def mark_searched(self, namespace: str, gang_key: str, now: float) -> None:
        """Record a search for a gang."""
        self._searched[gang_key] = self._namespaces[namespace] = now

    def turn(self, namespace: str, gang_key: str) -> tuple[float, float]:
        """Return a sort key of a gang: the gang with the lowest key is searched for next."""
        return self._namespaces.get(namespace, -inf), self._searched.get(gang_key, -inf)

    def mark_failed(self, gang_key: str, now: float) -> None:
        """Record that pods were evicted, and the gang got no places from it."""
        times = 1 + (self._failures[gang_key].times if gang_key in self._failures else 0)
        wait_s = min(MAX_RETRY_S, RETRY_S * 2.0 ** min(times, _MOST_DOUBLINGS))
        self._failures[gang_key] = _Failures(times, now + wait_s, now + wait_s + MAX_RETRY_S)

    def mark_given_up(self, namespace: str, now: float) -> None:
        """Record that pods were evicted for a gang that its owner gave up: all gangs of its namespace wait."""
        self.mark_failed(_namespace_key(namespace), now)

    def has_given_up(self, namespace: str, now: float) -> bool:
        """Return True while the gangs of a namespace wait because it gave up gangs."""
        return self.has_failed(_namespace_key(namespace), now)

    def mark_won(self, gang_key: str) -> None:
        """Record that the gang has its places."""
        self._failures.pop(gang_key, None)

    def allow_search_again(self, gang_key: str, now: float) -> None:
        """Let the next search for a gang begin at once."""
        if gang_key in self._searched:
            self._searched[gang_key] = min(self._searched[gang_key], now - RETRY_S)

    def may_search(self, gang_key: str, now: float) -> bool:
        """Return True if a search for the gang may begin."""
        is_rested = now >= self._searched.get(gang_key, -RETRY_S) + RETRY_S
        return is_rested and not self.has_failed(gang_key, now)

    def has_failed(self, gang_key: str, now: float) -> bool:
        """Return True while a gang waits because pods were evicted for it in vain."""
        failures = self._failures.get(gang_key)
        return failures is not None and now < failures.not_before


def _namespace_key(namespace: str) -> str:
    return f"{namespace}/"  # no gang has an empty name


def _recorded(past: PastPreemption) -> Iterator[tuple[EvictedFrom, EvictedDevices]]:
    """Yield the units of a record of the ledger."""
    at = parse_timestamp(past.at)
    if at is not None:
        for key, devices in past.devices_by_unit().items():
            yield EvictedFrom(key, past.hold), EvictedDevices(at, devices, past.priority)


def gang_key(gang: Gang) -> str:
    """Return what identifies a gang after it was deleted and created again; of a single pod, its controller."""
    if not is_single_pod_gang(gang.name) or not gang.ready:
        return gang.name.title
    pod = gang.ready[0]
    return f"{pod.namespace}/{pod.gang_request.creator_uid or pod.name}"


def _last(entries: dict[K, T], order: Callable[[T], float]) -> dict[K, T]:
    """Return at most ``_MOST`` entries, the last ones in this order."""
    if len(entries) <= _MOST:
        return entries
    return dict(sorted(entries.items(), key=lambda each: order(each[1]))[-_MOST:])
