"""The queue of gangs: by priority, then by waiting time. Gangs that do not fit let smaller gangs pass. Pure.

A gang that was rolled back is tried again after a back-off that doubles each time. A gang that still does not fit after
``patience_s`` may get a capacity hold: each namespace has at most one hold of a priority (``capacity_holds``;
``hold_search`` chooses its nodes).

A gang waits from when it is complete and only the gate of gputopo keeps it. The order uses the clock of the API server:
a gang that is complete when the planner starts has waited since its newest member was created. A gang that becomes
complete later is ordered behind all pods that the planner has seen until then, whatever the age of its own pods: pods
that were kept in an incomplete gang, behind another gate or in another gang have not waited as this gang. This rule
does not apply in the first ``SETTLE_S``, because objects that define gang sizes may be listed after pods.

A gang keeps its position, also over a rollback that recreates its pods, while it requests no more devices and its
priority is no higher than when it began to wait. Otherwise it starts to wait again: else a small gang could keep a
position for a large gang.

Of the gangs of one namespace only the first ones are planned, within the limits of the policy file. The others wait
outside the queue, at no cost for other namespaces.

All other times use the monotonic clock of the planner: ``now`` is in its seconds. So a wall clock that is wrong, or is
set, makes no gang wait longer or shorter. A new leader counts from zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf, nextafter
from types import MappingProxyType
from typing import NamedTuple
from weakref import WeakValueDictionary

from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang, GangPhase, devices_of
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.queue_order import LimitedOrder, QueueOrder
from scheduler_core.planner.packing.model import NO_HOLDS, RequestId
from scheduler_core.policy.limits import DEFAULT_LIMITS, GangLimits, LimitReached

_MAX_DOUBLINGS = 30  # enough for any back-off; bounds the power
SETTLE_S = 60.0  # from the first gang on; until then only the creation times of pods count
_INCOMPLETE = (GangPhase.WAITING_FOR_MEMBERS, GangPhase.WAITING)


class QueueTiming(NamedTuple):
    """Seconds."""

    patience_s: float = 300.0  # until a gang that does not fit may get a capacity hold
    first_s: float = 10.0  # back-off after the first rollback; doubled by each later rollback
    most_s: float = 300.0
    gather_s: float = 10.0  # a gang above its minimum waits this long for each further member


DEFAULT_TIMING = QueueTiming()


class TrialRules(NamedTuple):
    """Which gangs ``GangQueue.batches`` yields, and which single pods it puts together."""

    most: int = 256  # single pods in a batch
    apart: Container[GangName] = ()  # single pods, each in a batch of its own
    wanted: Callable[[Gang], bool] = lambda _: True  # other gangs are skipped, and do not count towards ``most``
    sharing_key: Callable[[Gang], frozenset[str] | None] = lambda _: NO_HOLDS  # see ``equal_requests``
    may_fit: Callable[[QueuedGang], bool] = lambda _: True  # of gangs that did not fit: see ``changed_nodes``
    every: bool = False  # also all other gangs that did not fit, except single pods, to find their reasons again


DEFAULT_RULES = TrialRules()


class UnfitState:
    """The last state of the cluster into which a gang did not fit.

    Gangs with equal requests that ignore the same holds share this object, so one trial updates all of them. It changes
    in place: cached ``QueuedGang`` objects stay valid.
    """

    def __init__(self, state: Hashable, request_id: RequestId | None = None) -> None:
        """``request_id``: None: the result counts only for one gang."""
        self.state, self.request_id = state, request_id


class QueuedGang(NamedTuple):
    """A gang that waits for a place."""

    gang: Gang
    since: float  # when it became complete, by the API server's clock, in seconds since 1970: decides the order
    rollbacks: int = 0
    not_before: float = 0.0  # end of the back-off
    unfit_state: UnfitState | None = None  # None: it was not tried since it changed
    rollback_reason: str | None = None  # of the last rollback
    queued_since: float = 0.0  # when it became complete
    newest_seen_at: float = 0.0  # when its newest member was first seen
    due_at: float = 0.0  # when it may be tried: at once, after the back-off, or when it waits for no more members

    @property
    def order(self) -> QueueOrder:
        """Sort key of the queue. No two gangs are equal."""
        # Gangs without GPUs wait for those with GPUs: no quota of GPUs limits their number.
        ready = self.gang.ready
        without_gpus = bool(ready) and not any(each.asks_for_gpus for each in ready)
        return -self.gang.priority, without_gpus, self.since, self.gang.name


class _GangHistory(NamedTuple):
    """Waiting and rollbacks of a gang. Kept for a while without pods: a rollback deletes them."""

    since: float | None = None  # None: it was never complete
    rollbacks: int = 0
    not_before: float = 0.0
    rollback_reason: str | None = None
    queued_since: float = inf
    priority: int = 0
    requested: Mapping[str, int] = MappingProxyType({})  # devices


class GangQueue:
    """Waiting gangs and their history. For one thread."""

    def __init__(
        self, pace: QueueTiming = DEFAULT_TIMING, limits: Callable[[], GangLimits] = lambda: DEFAULT_LIMITS
    ) -> None:
        self._pace, self._limits = pace, limits
        self._queued: dict[GangName, Gang] = {}
        self._unfit_states: dict[GangName, UnfitState] = {}  # of queued gangs, as the next
        self._newest_seen_at: dict[GangName, float] = {}
        self._history: dict[GangName, _GangHistory] = {}
        self._latest = 0.0  # when the newest pod of all gangs was created, seconds since 1970
        self._counts_from = inf  # the end of ``SETTLE_S``
        self._order: tuple[QueuedGang, ...] | None = None  # cache of ``ordered``
        self._waits: dict[GangName, QueuedGang] = {}  # cache of ``_waiting``
        self._hand_over_candidates: set[GangName] = set()  # queued gangs
        self._positions = LimitedOrder()
        self._names: Sequence[GangName] = ()  # of ``ordered``
        self._shared_states = WeakValueDictionary[RequestId, UnfitState]()  # by ``UnfitState.request_id``

    def update_gang(self, gang: Gang, now: float) -> None:
        """Apply the present state of a gang. Unless it is QUEUED, it leaves the queue."""
        self._forget_cached(gang.name)
        before = self._queued.pop(gang.name, None)
        unfit_state, seen_at = self._unfit_states.pop(gang.name, None), self._newest_seen_at.pop(gang.name, now)
        if gang.phase is GangPhase.QUEUED:
            self._queued[gang.name] = gang
            self._newest_seen_at[gang.name] = seen_at if before is not None and before.newest == gang.newest else now
            if unfit_state is not None and before is not None and fit_inputs(before) == fit_inputs(gang):
                self._unfit_states[gang.name] = unfit_state
        if gang.phase is GangPhase.QUEUED and gang.may_be_handed_over:
            self._hand_over_candidates.add(gang.name)
        else:
            self._hand_over_candidates.discard(gang.name)
        self._counts_from = min(self._counts_from, now + SETTLE_S)
        self._note_wait(gang, now, was_queued=before is not None)
        self._set_position(gang.name)
        self._latest = max(self._latest, gang.newest)

    def remove_gang(self, name: GangName) -> None:
        """Remove a gang without members."""
        self._forget_cached(name)
        self._hand_over_candidates.discard(name)
        for of_gangs in (self._queued, self._unfit_states, self._newest_seen_at):
            of_gangs.pop(name, None)
        self._positions.remove_gang(name)
        self._drop_history(name)

    def mark_started(self, name: GangName) -> None:
        """Forget the rollbacks of a gang whose ungated members are all bound."""
        self._forget_cached(name)
        past = self._history.pop(name, None)
        if past is not None and name in self._queued:  # some of its members still wait for a place
            gang = self._queued[name]
            self._history[name] = _GangHistory(
                past.since, queued_since=past.queued_since, priority=gang.priority, requested=gang.asks
            )

    def mark_rolled_back(self, name: GangName, now: float, reason: str | None = None) -> float:
        """Start the back-off of a gang that was rolled back. Return its end."""
        self._forget_cached(name)
        past = self._history.get(name, _GangHistory())
        end = now + min(self._pace.most_s, self._pace.first_s * 2.0 ** min(past.rollbacks, _MAX_DOUBLINGS))
        self._history[name] = past._replace(rollbacks=past.rollbacks + 1, not_before=end, rollback_reason=reason)
        self._unfit_states.pop(name, None)
        return end

    def mark_unplaced(self, name: GangName, state: Hashable, request_id: RequestId | None = None) -> None:
        """Record that a gang did not fit into this state, and do not try it again until the state changes.

        ``request_id``: as in ``UnfitState``. If it is given, the result counts for all queued gangs that were marked
        with it.
        """
        if name not in self._queued:
            return
        before = self._unfit_states.get(name)
        if before is not None and before.request_id is request_id:
            before.state = state
            return
        found = None if request_id is None else self._shared_states.get(request_id)
        found = found or UnfitState(state, request_id)
        found.state = state
        if request_id is not None:
            self._shared_states[request_id] = found
        self._forget_cached(name)
        self._unfit_states[name] = found

    def drop_results(self, wanted: Callable[[Gang], bool] = lambda _: True) -> None:
        """Drop the results of these gangs: they may fit now, and their requests may no longer be equal to others."""
        for name in [name for name in self._unfit_states if wanted(self._queued[name])]:
            self._forget_cached(name)
            self._unfit_states[name] = UnfitState(None)

    def ordered(self) -> tuple[QueuedGang, ...]:
        """Return the queued gangs within the limits in order, gangs in back-off included."""
        names = self._positions.names_within_limits(self._limits())
        if self._order is None or names is not self._names:
            self._names, self._order = names, tuple(map(self._waiting, names))
        return self._order

    def beyond_limits(self) -> Iterator[QueuedGang]:
        """Yield the queued gangs that are not planned because of the limits of their namespaces."""
        self.ordered()
        return (self._waiting(name) for name in self._queued if not self._positions.is_within_limits(name))

    def limit_reached(self, name: GangName) -> LimitReached | None:
        """Return the limit because of which a queued gang is not planned; None: it is planned."""
        return self._positions.limit_reached(name, self._limits())

    def has_queued(self, wanted: Callable[[Gang], bool]) -> bool:
        """Return True if any queued gang is wanted; does not sort. The newest first: old ones may have plans."""
        return any(map(wanted, reversed(self._queued.values())))

    @property
    def has_hand_over_candidates(self) -> bool:
        """Return whether any queued gang may be handed over to kube-scheduler."""
        return bool(self._hand_over_candidates)

    def count_unplaced(self) -> int:
        """Return the number of queued gangs that did not fit when they were tried last."""
        return len(self._unfit_states)

    def has_untried(self, now: float) -> bool:
        """Return True if a gang is due that was not tried since it changed."""
        return any(each.unfit_state is None and each.due_at <= now for each in self.ordered())

    def has_waited_since(self, at: float) -> bool:
        """Return True if any gang has waited since then; does not sort."""
        return min(self._newest_seen_at.values(), default=inf) <= at

    def get_queued(self, name: GangName) -> QueuedGang | None:
        """Return a gang if it is queued."""
        return self._waiting(name) if name in self._queued else None

    def batches(
        self, now: float, state: Hashable, rules: TrialRules = DEFAULT_RULES
    ) -> Iterator[tuple[QueuedGang, ...]]:
        """Yield in order what to try now: a gang, or consecutive single pods of one priority.

        Of gangs that did not fit, it yields only those that may fit since. Of those with equal requests it yields only
        the first: where it does not fit, none does; of single pods all, to plan them together. The exceptions are in
        ``rules``.

        ``state``: the state for ``mark_unplaced``.
        """
        self._expire(now)
        due, request_ids = list[QueuedGang](), set[RequestId]()
        for each in self.ordered():
            unfit, shared, is_single = each.unfit_state, None, False
            if unfit is not None:
                is_single = is_single_pod_gang(each.gang.name)
                # A shared result counts only while the gang ignores the same holds; else it needs one of its own.
                shared = unfit.request_id
                if shared is not None and shared.ignored_holds != rules.sharing_key(each.gang):
                    shared = None
                is_tried = unfit.state == state and (shared is not None or unfit.request_id is None)
                if is_tried or shared in request_ids:
                    continue
                if shared is not None and (is_single or not rules.every) and not rules.may_fit(each):
                    request_ids.add(shared)
                    continue
            if each.due_at <= now and rules.wanted(each.gang):
                due.append(each)
                if shared is not None and not (rules.every or is_single):  # single pods are planned together
                    request_ids.add(shared)
        for priority, group in groupby(
            due, key=lambda each: None if each.gang.name in rules.apart else _batch_priority(each)
        ):
            found = list(group)
            size = 1 if priority is None else rules.most
            yield from (tuple(found[at : at + size]) for at in range(0, len(found), size))

    def next_due_at(self, now: float) -> float | None:
        """Return when the next gang becomes due; None: all are due."""
        return min((each.due_at for each in self.ordered() if each.due_at > now), default=None)

    def entitled_to_hold(self, now: float) -> Iterator[QueuedGang]:
        """Yield in order the gangs that have waited long enough for a capacity hold."""
        return (each for each in self.ordered() if self.is_entitled(each, now))

    def is_entitled(self, waiting: QueuedGang, now: float) -> bool:
        """Return True if a gang has waited long enough for a capacity hold."""
        return now - waiting.queued_since >= self._pace.patience_s

    def _note_wait(self, gang: Gang, now: float, *, was_queued: bool) -> None:
        """Keep, start or end the wait of a gang."""
        past = self._history.get(gang.name, _GangHistory())
        if gang.phase is GangPhase.QUEUED:
            requested = gang.asks
            if past.since is None or gang.priority > past.priority or not requested <= Counter(past.requested):
                self._start_wait(gang, past, requested, now)
            elif not past.rollbacks:  # else some of its pods may not be recreated yet
                self._history[gang.name] = past._replace(priority=gang.priority, requested=requested)
        elif gang.phase is GangPhase.UNGATED:
            if past.since is None:  # another planner ungated it
                self._start_wait(gang, past, devices_of((*gang.ready, *gang.placed)), now)
        elif gang.phase not in _INCOMPLETE or was_queued:  # an ungated gang may be about to be rolled back
            self._drop_history(gang.name)

    def _start_wait(self, gang: Gang, past: _GangHistory, requested: Counter[str], now: float) -> None:
        behind = self._latest if now >= self._counts_from else 0.0
        since = max(past.since or 0.0, gang.newest if gang.newest >= behind else nextafter(behind, inf))
        self._history[gang.name] = past._replace(
            since=since, queued_since=now, priority=gang.priority, requested=requested
        )
        self._latest = max(self._latest, since)

    def _set_position(self, name: GangName) -> None:
        if name in self._queued:
            waiting = self._waiting(name)
            self._positions.set_gang(name, waiting.order, len(waiting.gang.ready))
        else:
            self._positions.remove_gang(name)

    def _waiting(self, name: GangName) -> QueuedGang:
        found = self._waits.get(name)
        if found is None:
            gang, past = self._queued[name], self._history[name]
            assert past.since is not None  # it is queued
            seen_at = self._newest_seen_at[name]
            found = self._waits[name] = QueuedGang(
                gang,
                past.since,
                rollbacks=past.rollbacks,
                not_before=past.not_before,
                unfit_state=self._unfit_states.get(name),
                rollback_reason=past.rollback_reason,
                queued_since=past.queued_since,
                newest_seen_at=seen_at,
                due_at=max(past.not_before, 0.0 if gang.is_complete else seen_at + self._pace.gather_s),
            )
        return found

    def _forget_cached(self, name: GangName) -> None:
        """Forget what was computed from the former state of a gang."""
        if self._waits.pop(name, None) is not None:
            self._order = None

    def _drop_history(self, name: GangName) -> None:
        """Forget a gang, unless it was rolled back: then its pods may be recreated."""
        past = self._history.get(name)
        if past is not None and not past.rollbacks:
            del self._history[name]

    def _expire(self, now: float) -> None:
        most_s = self._pace.most_s
        over = [name for name, past in self._history.items() if past.rollbacks and past.not_before + most_s < now]
        for name in over:
            if name not in self._queued:
                del self._history[name]


def _batch_priority(waiting: QueuedGang) -> int | None:
    """Return the priority that single pods of a batch share; None: a gang is tried by itself."""
    return waiting.gang.priority if is_single_pod_gang(waiting.gang.name) else None


def fit_inputs(gang: Gang) -> tuple[object, ...]:
    """Return all parts of a gang that decide whether it fits. They compare fast while the objects are the same."""
    return gang.ready, gang.placed, gang.min_ready, gang.required, gang.preferred
