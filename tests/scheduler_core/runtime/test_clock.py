"""A wall clock that is set while it is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.runtime.clock import RATE, SlewedClock


class Clocks:
    """Both, in seconds: time passes in each; the wall clock can be set."""

    def __init__(self) -> None:
        self.monotonic, self.wall = 50.0, 1_795_300_000.0

    def steady(self) -> SlewedClock:
        return SlewedClock(lambda: self.wall, lambda: self.monotonic)

    def sleep(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += seconds


def test_the_clock_follows_the_wall_clock() -> None:
    clocks = Clocks()
    steady = clocks.steady()

    clocks.sleep(7.0)
    assert steady() == 1_795_300_007.0
    clocks.wall += 0.25  # as it is corrected every now and then
    clocks.sleep(1.0)
    assert steady() == clocks.wall


@pytest.mark.parametrize("step", [3600.0, -3600.0], ids=["an hour ahead", "an hour back"])
def test_the_clock_approaches_a_wall_clock_that_was_set(step: float) -> None:
    clocks = Clocks()
    steady = clocks.steady()
    clocks.wall += step

    clocks.sleep(10.0)
    assert steady() == 1_795_300_010.0 + (5.0 if step > 0 else -5.0)
    for _ in range(7199):
        clocks.sleep(1.0)
        steady()
    assert steady() == clocks.wall


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-4000, 4000))))
def test_durations_differ_from_real_time_by_the_rate_at_most(course: list[tuple[float, float]]) -> None:
    clocks = Clocks()
    steady = clocks.steady()
    for seconds, step in course:
        before = steady()
        clocks.wall += step
        clocks.sleep(seconds)
        assert (1 - RATE) * seconds - 1e-5 <= steady() - before <= (1 + RATE) * seconds + 1e-5
