"""The queue: by priority, then by how long gangs have been complete; smaller ones pass, but not for ever. Pure.

A gang that was rolled back waits longer each time. One that still did not fit after ``patience_s`` may have the next
room that becomes free held for it: one of each priority at most (``planner.holds``; ``hold`` chooses the room).

A gang waits from when it is complete and only our gate holds it. The order goes by the API server's clock: a gang that
is complete when the planner begins has waited since its newest member was created. A gang that becomes complete later
comes behind all pods that the planner has seen until then, however old its own pods are: pods that were kept in an
incomplete gang, behind another gate or in another gang have not waited as this gang. The first ``SETTLE_S`` are no
proof of that, because objects that say sizes may be listed after pods.

A gang keeps its place, also over a rollback that has its pods made again, while it asks for no more devices and its
priority is no higher than when it began to wait. Otherwise it waits anew, or a small gang could keep a place for a
large one.

All else is counted by the monotonic clock of the planner: ``now`` is its seconds. So no wall clock that is wrong, or is
set right, makes a gang wait longer or shorter; another planner that takes over counts anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from itertools import groupby
from math import inf, nextafter
from types import MappingProxyType
from typing import NamedTuple

from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang, GangPhase, devices_of
from scheduler_core.planner.gang.member import GangName

_DOUBLINGS = 30  # enough for any back-off; keeps the power small
SETTLE_S = 60.0  # from the first gang on; until then pods' creation alone counts
_INCOMPLETE = (GangPhase.WAITING_FOR_MEMBERS, GangPhase.WAITING)


class QueueTiming(NamedTuple):
    """Seconds."""

    patience_s: float = 300.0  # until room is held for a gang that does not fit
    first_s: float = 10.0  # after the first rollback; doubled by each that follows
    most_s: float = 300.0
    gather_s: float = 10.0  # a gang that could start without some of its members waits so long for the next


DEFAULT_TIMING = QueueTiming()


class QueuedGang(NamedTuple):
    """A gang that is to be planned."""

    gang: Gang
    since: float  # when it became complete by the API server's clock, in seconds since 1970: what the order goes by
    rollbacks: int = 0
    not_before: float = 0.0  # not tried before that
    unfit_state: Hashable = None  # what it did not fit into when it was last tried; None: it was not, or may fit now
    rollback_reason: str | None = None  # why it was rolled back last
    queued_since: float = 0.0  # since when it has been waiting, complete
    newest_seen_at: float = 0.0  # when its newest member was seen first

    @property
    def order(self) -> tuple[int, float, GangName]:
        """Sorts those that wait, the first first. No two are equal."""
        return -self.gang.priority, self.since, self.gang.name


class _GangHistory(NamedTuple):
    """What a gang went through. Outlives its pods for a while: a rollback deletes them."""

    since: float | None = None  # None: it has not been complete
    rollbacks: int = 0
    until: float = 0.0
    trouble: str | None = None
    met: float = inf
    priority: int = 0
    asks: Mapping[str, int] = MappingProxyType({})  # devices


class GangQueue:
    """The gangs that are to be planned, and what they went through. For one thread."""

    def __init__(self, pace: QueueTiming = DEFAULT_TIMING) -> None:
        self._pace = pace
        self._queued: dict[GangName, Gang] = {}
        self._unfit_states: dict[GangName, Hashable] = {}  # of those that are queued, as the next
        self._newest_seen_at: dict[GangName, float] = {}
        self._history: dict[GangName, _GangHistory] = {}
        self._latest = 0.0  # when the newest pod of all gangs was created, seconds since 1970
        self._counts_from = inf  # when ``SETTLE_S`` have passed
        self._order: tuple[QueuedGang, ...] | None = None  # what ``order`` answers, until something changes

    def update_gang(self, gang: Gang, now: float) -> None:
        """A gang as it is now. Unless it is QUEUED it leaves the queue."""
        self._order = None
        before = self._queued.pop(gang.name, None)
        misfit, grown = self._unfit_states.pop(gang.name, None), self._newest_seen_at.pop(gang.name, now)
        if misfit is not None and before is not None and fit_key(before) == fit_key(gang):
            self._unfit_states[gang.name] = misfit
        if gang.phase is GangPhase.QUEUED:
            self._queued[gang.name] = gang
            self._newest_seen_at[gang.name] = grown if before is not None and before.newest == gang.newest else now
        self._counts_from = min(self._counts_from, now + SETTLE_S)
        self._note_wait(gang, now, was_queued=before is not None)
        self._latest = max(self._latest, gang.newest)

    def remove_gang(self, name: GangName) -> None:
        """It has no member any more."""
        self._order = None
        for known in (self._queued, self._unfit_states, self._newest_seen_at):
            known.pop(name, None)
        self._drop_history(name)

    def mark_started(self, name: GangName) -> None:
        """All that were let go have their nodes: what the gang went through counts no more."""
        self._order = None
        past = self._history.pop(name, None)
        if past is not None and name in self._queued:  # some of its members are to be placed yet
            gang = self._queued[name]
            self._history[name] = _GangHistory(past.since, met=past.met, priority=gang.priority, asks=gang.asks)

    def mark_rolled_back(self, name: GangName, now: float, why: str | None = None) -> float:
        """Not all that were let go got their nodes in time. Answers when the gang may be tried again."""
        self._order = None
        past = self._history.get(name, _GangHistory())
        until = now + min(self._pace.most_s, self._pace.first_s * 2.0 ** min(past.rollbacks, _DOUBLINGS))
        self._history[name] = past._replace(rollbacks=past.rollbacks + 1, until=until, trouble=why)
        self._unfit_states.pop(name, None)
        return until

    def mark_unplaced(self, name: GangName, state: Hashable) -> None:
        """It did not fit into that (a table's generation, say), and is not tried again before that is another."""
        if name in self._queued:
            self._order = None
            self._unfit_states[name] = state

    def ordered(self) -> tuple[QueuedGang, ...]:
        """All that are queued, the first first, those that wait for their time too."""
        if self._order is None:
            self._order = tuple(sorted(map(self._waiting, self._queued.values()), key=lambda each: each.order))
        return self._order

    def has_queued(self, wanted: Callable[[Gang], bool]) -> bool:
        """Whether one of those that are queued is such a one; without putting them in order."""
        return any(map(wanted, self._queued.values()))

    def has_waited_since(self, at: float) -> bool:
        """Whether anybody has waited since then; without putting them in order."""
        return min(self._newest_seen_at.values(), default=inf) <= at

    def get_queued(self, name: GangName) -> QueuedGang | None:
        """A gang that is queued."""
        gang = self._queued.get(name)
        return None if gang is None else self._waiting(gang)

    def batches(
        self,
        now: float,
        state: Hashable,
        most: int = 256,
        apart: Container[GangName] = (),
        wanted: Callable[[Gang], bool] = lambda _: True,
    ) -> Iterator[tuple[QueuedGang, ...]]:
        """What to try now, in order: a gang, or at most so many single pods of one priority that follow one another.

        ``state``: as ``unplaced`` will be told it; never None. ``apart``: single pods that are tried by themselves.
        ``wanted``: whether one is to be tried; batches are full without the others.
        """
        self._expire(now)
        waiting = (each for each in self.ordered() if wanted(each.gang))
        due = [each for each in waiting if self.due_at(each) <= now and each.unfit_state != state]
        for priority, group in groupby(
            due, key=lambda each: None if each.gang.name in apart else _batch_priority(each)
        ):
            found = list(group)
            size = 1 if priority is None else most
            yield from (tuple(found[at : at + size]) for at in range(0, len(found), size))

    def due_at(self, waiting: QueuedGang) -> float:
        """When it may be tried: at once, after a back-off, or when no more of its members are waited for."""
        return max(
            waiting.not_before, 0.0 if waiting.gang.is_complete else waiting.newest_seen_at + self._pace.gather_s
        )

    def next_due_at(self, now: float) -> float | None:
        """When the next may be tried that may not yet; None: none waits for its time."""
        return min((at for each in self.ordered() if (at := self.due_at(each)) > now), default=None)

    def entitled_to_hold(self, now: float) -> Iterator[QueuedGang]:
        """For whom room may be held once they do not fit, in order: all that have waited long enough."""
        return (each for each in self.ordered() if self.is_entitled(each, now))

    def is_entitled(self, waiting: QueuedGang, now: float) -> bool:
        """Whether it has waited long enough for room to be held for it."""
        return now - waiting.queued_since >= self._pace.patience_s

    def _note_wait(self, gang: Gang, now: float, *, was_queued: bool) -> None:
        """Keep, begin or end the wait of a gang."""
        past = self._history.get(gang.name, _GangHistory())
        if gang.phase is GangPhase.QUEUED:
            asks = gang.asks
            if past.since is None or gang.priority > past.priority or not asks <= Counter(past.asks):
                self._begin_wait(gang, past, asks, now)
            elif not past.rollbacks:  # else some of its pods may have to be made again yet
                self._history[gang.name] = past._replace(priority=gang.priority, asks=asks)
        elif gang.phase is GangPhase.UNGATED:
            if past.since is None:  # another planner let it go
                self._begin_wait(gang, past, devices_of((*gang.ready, *gang.placed)), now)
        elif gang.phase not in _INCOMPLETE or was_queued:  # one that was let go may be about to be rolled back
            self._drop_history(gang.name)

    def _begin_wait(self, gang: Gang, past: _GangHistory, asks: Counter[str], now: float) -> None:
        behind = self._latest if now >= self._counts_from else 0.0
        since = max(past.since or 0.0, gang.newest if gang.newest >= behind else nextafter(behind, inf))
        self._history[gang.name] = past._replace(since=since, met=now, priority=gang.priority, asks=asks)
        self._latest = max(self._latest, since)

    def _waiting(self, gang: Gang) -> QueuedGang:
        past = self._history[gang.name]
        assert past.since is not None  # it is queued
        misfit, grown = self._unfit_states.get(gang.name), self._newest_seen_at[gang.name]
        return QueuedGang(gang, past.since, past.rollbacks, past.until, misfit, past.trouble, past.met, grown)

    def _drop_history(self, name: GangName) -> None:
        """Without a rollback there is nothing to remember; with one, the gang may come back."""
        past = self._history.get(name)
        if past is not None and not past.rollbacks:
            del self._history[name]

    def _expire(self, now: float) -> None:
        over = [name for name, past in self._history.items() if past.rollbacks and past.until + self._pace.most_s < now]
        for name in over:
            if name not in self._queued:
                del self._history[name]


def _batch_priority(waiting: QueuedGang) -> int | None:
    """What single pods that are tried together share; None: a gang is tried by itself."""
    return waiting.gang.priority if is_single_pod_gang(waiting.gang.name) else None


def fit_key(gang: Gang) -> tuple[object, ...]:
    """All of a gang that decides whether it fits. Quick to compare where nothing changed: the values are the same."""
    return gang.ready, gang.placed, gang.min_ready, gang.required, gang.preferred
