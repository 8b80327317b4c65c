"""The holder of capacity on random clusters starts as early with backfill as without."""

from __future__ import annotations

import pytest

from tests.scheduler_core.planner.leader.backfill_simulation import (
    GRACE_S,
    HORIZON_S,
    PROTOCOL_S,
    STEP_S,
    World,
    WorldResult,
)


def both(seed: int, *, early: bool, announced: bool = False) -> tuple[WorldResult, WorldResult]:
    """Return the same cluster without and with backfill."""
    without = World(seed, backfill=False, early=early, announced=announced)
    return without.run(), World(seed, backfill=True, early=early, announced=announced).run()


@pytest.mark.parametrize("seeds", [range(at, at + 5) for at in (0, 5, 10)], ids=str)
def test_the_holder_is_never_later_where_pods_end_at_their_deadlines(seeds: range) -> None:
    found = [both(seed, early=False) for seed in seeds]

    assert [with_.holder_started for _, with_ in found] == [without.holder_started for without, _ in found]
    assert sum(with_.backfilled for _, with_ in found) > 0
    assert sum(with_.used_gpu_s for _, with_ in found) > sum(without.used_gpu_s for without, _ in found)


def test_the_holder_is_never_later_where_pods_say_that_they_end_earlier() -> None:
    """Of these clusters, without the announcements, each holder waits for the end of the pods that yield."""
    for seed in (4, 17, 18, 33):
        without, with_ = both(seed, early=True, announced=True)
        assert with_.holder_started == without.holder_started, seed


@pytest.mark.parametrize("seeds", [range(at, at + 5) for at in (0, 5, 10)], ids=str)
def test_where_pods_end_earlier_the_holder_waits_at_most_for_the_end_of_the_pods_that_yield(seeds: range) -> None:
    for seed in seeds:
        without, with_ = both(seed, early=True)
        start = HORIZON_S if without.holder_started is None else without.holder_started
        assert (with_.holder_started or HORIZON_S) <= start + (GRACE_S + PROTOCOL_S if with_.evicted else 0), seed
        assert with_.late_s == 0.0, seed  # after the estimate of the hold


@pytest.mark.parametrize("seeds", [range(at, at + 5) for at in (0, 5)], ids=str)
def test_planners_that_are_killed_delay_the_holder_no_more_with_backfill_than_without(seeds: range) -> None:
    """A new leader needs two steps until it has listed all objects and plans."""
    for seed in seeds:
        without = World(seed, backfill=False, early=False, kills=True).run()
        with_ = World(seed, backfill=True, early=False, kills=True).run()
        start = HORIZON_S if without.holder_started is None else without.holder_started
        assert (with_.holder_started or HORIZON_S) <= start + 2 * STEP_S, seed
