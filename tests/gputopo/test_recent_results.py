"""Cached results: as long as they are used, or their argument is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Container
from itertools import count

import pytest

from gputopo import recent_results as module
from gputopo.recent_results import PERIOD_S, RecentResults, ResultExpiry, recent_results

NOTHING: frozenset[object] = frozenset()


class Calls:
    """Counts the calls of a function."""

    def __init__(self) -> None:
        self.of: list[object] = []

    def __call__(self, argument: str) -> str | None:
        self.of.append(argument)
        return None if argument == "none" else argument.upper()


@pytest.fixture(autouse=True)
def _no_other_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``ResultExpiry`` see the caches of the test only."""
    monkeypatch.setattr(module, "_CACHES", {})


def end_periods(*expected: Container[object]) -> ResultExpiry:
    expiry = ResultExpiry()
    for at, in_use in enumerate(expected):
        expiry.tick(at * PERIOD_S, lambda in_use=in_use: in_use)  # type: ignore[misc]
    return expiry


@pytest.mark.parametrize("argument", ["a", "none"])
def test_a_result_is_computed_once(argument: str) -> None:
    calls = Calls()
    cached = RecentResults(calls, 10)

    assert [cached(argument), cached(argument)] == [calls(argument)] * 2
    assert calls.of == [argument] * 2  # one of them is of this test


def test_what_is_known_is_not_computed() -> None:
    calls = Calls()
    cached = RecentResults(calls, 10)

    assert cached.known("a") is None
    cached("a")
    assert cached.known("a") == "A"
    assert calls.of == ["a"]


def test_results_that_are_not_used_for_two_periods_are_removed() -> None:
    cached = RecentResults(Calls(), 10)
    cached("unused")
    cached("used")

    expiry = ResultExpiry()
    expiry.tick(0.0, lambda: NOTHING)
    assert [cached.known(each) for each in ("unused", "used")] == ["UNUSED", "USED"]
    cached("used")
    expiry.tick(PERIOD_S, lambda: NOTHING)

    assert [cached.known(each) for each in ("unused", "used")] == [None, "USED"]
    assert len(cached) == 1


def test_asking_what_is_known_is_no_use() -> None:
    cached = RecentResults(Calls(), 10)
    cached("a")

    expiry = ResultExpiry()
    for at in range(2):
        cached.known("a")
        expiry.tick(at * PERIOD_S, lambda: NOTHING)

    assert cached.known("a") is None


def test_results_of_arguments_in_use_are_kept() -> None:
    cached = RecentResults(Calls(), 10)
    cached("a")
    cached("b")

    end_periods({"a"}, {"a"}, {"a"}, {"a"})

    assert [cached.known("a"), cached.known("b")] == ["A", None]


def test_a_period_does_not_end_early() -> None:
    cached = RecentResults(Calls(), 10)
    cached("a")

    expiry = ResultExpiry()
    for second in range(int(PERIOD_S)):
        expiry.tick(float(second), lambda: NOTHING)

    assert cached.known("a") == "A"


def test_a_full_cache_drops_a_result_for_each_new_one() -> None:
    cached = RecentResults(Calls(), 100)
    for at in range(1000):
        cached(str(at))
        assert len(cached) <= 100

    assert cached.known("999") == "999"


def test_a_full_cache_keeps_what_was_used_since() -> None:
    """Results of the period before go first."""
    cached = RecentResults(Calls(), 100)
    for at in range(90):
        cached(f"old-{at}")
    end_periods(NOTHING)
    for at in range(50):
        cached(f"new-{at}")

    assert all(cached.known(f"new-{at}") for at in range(50))


def test_a_tick_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some results take long to remove."""
    monkeypatch.setattr(module, "_CHECKED_EACH", 3)
    monkeypatch.setattr(module, "thread_time", map(float, count()).__next__)  # each look takes a second
    cached, expiry = RecentResults(Calls(), 100), ResultExpiry()
    for at in range(8):
        cached(str(at))
    expiry.tick(0.0, lambda: NOTHING)
    assert expiry.is_idle

    ticks = 0
    while ticks == 0 or not expiry.is_idle:
        expiry.tick(PERIOD_S, lambda: NOTHING)
        ticks += 1

    assert (ticks, len(cached)) == (3, 0)


def test_a_tick_does_a_bounded_part_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MIN_EXAMINED", 10)
    monkeypatch.setattr(module, "_MIN_REMOVED", 3)
    caches = [RecentResults(Calls(), 100) for _ in range(4)]
    for cached in caches:
        for at in range(10):
            cached(str(at))
    expiry, asked = ResultExpiry(), 0

    def in_use() -> frozenset[object]:
        nonlocal asked
        asked += 1
        return NOTHING

    def ticks_until(done: Callable[[], bool], now: float) -> int:
        for number in range(1, 100):
            expiry.tick(now, in_use)
            if done():
                return number
        raise AssertionError

    assert ticks_until(lambda: expiry.is_idle, 0.0) == 4
    assert ticks_until(lambda: expiry.is_idle, PERIOD_S) == 14  # 40 results, 3 at a time
    assert asked == 2
    assert sum(map(len, caches)) == 0


def test_memory_is_bounded_however_many_results_each_tick_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MIN_EXAMINED", 10)
    monkeypatch.setattr(module, "_MIN_REMOVED", 3)
    alive = 0

    class Result:
        def __init__(self) -> None:
            nonlocal alive
            alive += 1

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    caches = [RecentResults[int, Result](lambda _: Result(), 1 << 30) for _ in range(10)]
    expiry, numbers, most = ResultExpiry(), count(), 0
    for second in range(10 * int(PERIOD_S)):
        for _ in range(50):
            number = next(numbers)
            caches[number % 10](number)
        expiry.tick(float(second), lambda: NOTHING)
        most = max(most, alive)

    assert most < 50 * (2 * PERIOD_S + 100)  # of two periods, and those that are still to be examined and removed


def test_a_period_is_shorter_if_there_are_many_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 5)
    cached = RecentResults(Calls(), 100)
    for at in range(10):
        cached(str(at))

    expiry = ResultExpiry()
    for second in (0.0, PERIOD_S / 2 - 1):
        expiry.tick(second, lambda: NOTHING)
    assert len(cached) == 10
    expiry.tick(PERIOD_S / 2, lambda: NOTHING)
    assert len(cached) == 0


def test_a_cache_of_a_function_of_several_arguments() -> None:
    calls = []

    @recent_results(10)
    def add(one: int, other: int) -> int:
        """Add."""
        calls.append((one, other))
        return one + other

    assert [add(1, 2), add(1, 2), add(2, 1)] == [3, 3, 3]
    assert calls == [(1, 2), (2, 1)]
    assert add.__doc__ == "Add."


def test_a_cache_that_is_gone_is_not_kept() -> None:
    cached = RecentResults(Calls(), 10)
    gone = weakref.ref(cached)
    del cached
    gc.collect()

    assert gone() is None
    end_periods(NOTHING)
    assert module._CACHES == {}
