"""Cached results of functions, as long as they are used. Pure.

An ``lru_cache`` keeps results until it is full. Where its arguments are states of nodes, which change all the time,
that takes hours, and the memory of a daemon grows meanwhile. Here a result that was not used for one to two periods is
removed, unless its argument is still in use (``ResultExpiry.tick``). Any thread may call a cached function.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable
from contextlib import suppress
from functools import wraps
from math import inf
from time import thread_time
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast
from weakref import ref

PERIOD_S = 180.0
_MANY = 500_000  # results of all caches, a hundred bytes each and more: if there are more, the period is shorter
# Results in one tick: some milliseconds. More if there are so many that it would take too long: where a thousand nodes
# change each second, memory would grow otherwise.
_MIN_EXAMINED, _MIN_REMOVED = 5_000, 2_000
_EXAMINED_S, _REMOVED_S = 20, 20  # in so many seconds all results are examined, and most unused ones removed
# Some results take long to remove, such as thousands of sets of GPUs: what is left then is removed in the next tick.
_REMOVAL_SHARE, _CHECKED_EACH = 0.1, 32
_MISSING: Final = object()

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
P = ParamSpec("P")


def add_bounded(known: dict[K, R], key: K, value: R, most: int) -> None:
    """Add a value. If there are too many, remove the one that was added longest ago."""
    if key not in known and len(known) >= most:
        del known[next(iter(known))]
    known[key] = value


class ResultCache(Generic[K, R]):
    """Results by argument."""

    def __init__(self, max_results: int) -> None:
        self._max_results = max_results
        self._recent: dict[K, R] = {}  # used in this period
        self._older: dict[K, R] = {}  # used in the last one, or in use
        key = id(self)
        _CACHES[key] = ref(self, lambda _: _CACHES.pop(key, None))

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def result_of(self, argument: K, compute: Callable[[K], R]) -> R:
        """Return the cached result, or the one that is computed."""
        found: Any = self._recent.get(argument, _MISSING)
        if found is _MISSING:
            found = self._older.pop(argument, _MISSING)
            if found is _MISSING:
                found = compute(argument)
                self._make_room()
            self._recent[argument] = found
        result: R = found
        return result

    def known(self, argument: K) -> R | None:
        """Return the result if it is cached. This does not count as a use."""
        found = self._recent.get(argument)
        return self._older.get(argument) if found is None else found

    def end_period(self, in_use: Container[object]) -> dict[K, R]:
        """Return the results that were not used in this period, and whose arguments are not in use: they are removed.

        Another thread may use this cache meanwhile: then a result may have to be computed again.
        """
        older, recent = self._older.copy(), self._recent.copy()
        unused = {argument: older.pop(argument) for argument in list(older) if argument not in in_use}
        self._older, self._recent = older | recent, {}
        return unused

    def _make_room(self) -> None:
        if len(self) < self._max_results:
            return
        if not self._older:
            self._older, self._recent = self._recent, {}
        with suppress(KeyError):  # another thread has emptied it
            self._older.popitem()


class RecentResults(ResultCache[K, R]):
    """A cached function of one argument."""

    def __init__(self, function: Callable[[K], R], max_results: int) -> None:
        super().__init__(max_results)
        self._function = function

    def __call__(self, argument: K) -> R:
        """Return the result of the function."""
        return self.result_of(argument, self._function)


_CACHES: dict[int, ref[ResultCache[Any, Any]]] = {}  # of the process, by id


def recent_results(max_results: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that caches the results of a function of several positional arguments."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        compute: Callable[[tuple[Any, ...]], R] = lambda arguments: cast("Any", function)(*arguments)  # noqa: E731
        results = ResultCache[tuple[Any, ...], R](max_results)

        @wraps(function)
        def cached(*arguments: P.args, **keywords: P.kwargs) -> R:
            assert not keywords
            return results.result_of(arguments, compute)

        return cached

    return decorate


class ResultExpiry:
    """Removes the unused results of all caches of the process, a few at a time."""

    def __init__(self, ticks_per_s: int = 1) -> None:
        """``ticks_per_s``: how often ``tick`` is called while there is something to do."""
        self._ticks_per_s = ticks_per_s
        self._next_period = -inf  # monotonic seconds
        self._in_use: Container[object] = ()
        self._caches: list[ResultCache[Any, Any]] = []  # whose period has not ended yet
        self._to_examine = 0  # results in one tick
        self._unused: list[dict[Any, Any]] = []

    @property
    def is_idle(self) -> bool:
        """True if nothing is left to do in this period."""
        return not self._caches and not self._unused

    def tick(self, now: float, in_use: Callable[[], Container[object]]) -> None:
        """Go on removing results.

        ``now``: monotonic seconds. ``in_use``: is called once in a period; the results of these arguments are kept.
        """
        if now >= self._next_period and self.is_idle:
            self._in_use = in_use()
            self._caches = [cache for each in list(_CACHES.values()) if (cache := each()) is not None]
            number = sum(map(len, self._caches))
            self._next_period = now + PERIOD_S * min(1.0, _MANY / max(1, number))
            self._to_examine = max(_MIN_EXAMINED, number // (_EXAMINED_S * self._ticks_per_s))
        examined = removed = 0
        while self._caches and examined < self._to_examine:
            cache = self._caches.pop()
            examined += len(cache)
            self._unused.append(cache.end_period(self._in_use))
        to_remove = max(_MIN_REMOVED, sum(map(len, self._unused)) // (_REMOVED_S * self._ticks_per_s))
        until = thread_time() + _REMOVAL_SHARE / self._ticks_per_s
        while self._unused and removed < to_remove:
            if removed and removed % _CHECKED_EACH == 0 and thread_time() > until:
                break
            if self._unused[-1]:
                self._unused[-1].popitem()
                removed += 1
            else:
                self._unused.pop()
