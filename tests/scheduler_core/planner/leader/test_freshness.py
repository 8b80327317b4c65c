"""When the cluster cache is fresh, and when it may be stale."""

from __future__ import annotations

import logging

import pytest

from scheduler_core.cache.events import WatchStatus
from scheduler_core.planner.leader.freshness import MAX_WRITE_LAG_S, RECOVERY_S, Freshness

SILENT_S = 120.0


def watch(kind: str, age_s: float | None) -> WatchStatus:
    return WatchStatus(kind, True, age_s, 0, 0, None, None)


FRESH = watch("pods", 3.0)


@pytest.mark.parametrize(
    ("watches", "unshown_s", "trouble"),
    [
        pytest.param((FRESH,), None, None, id="fresh"),
        pytest.param((FRESH, watch("nodes", SILENT_S)), MAX_WRITE_LAG_S, None, id="just within the limits"),
        pytest.param((FRESH, watch("jobs", None)), None, None, id="a kind that placement does not need"),
        pytest.param(
            (FRESH, watch("nodes", 121.0)),
            None,
            "gputopo has received nothing for 121 s from the API server for nodes",
            id="one watch is silent",
        ),
        pytest.param(
            (FRESH, watch("placementledgers", None)),
            None,
            "gputopo has received nothing from the API server for placementledgers",
            id="one watch never delivered",
        ),
        pytest.param((FRESH,), 30.5, "no watch has shown what gputopo wrote 30 s ago", id="own writes are not shown"),
    ],
)
def test_why_the_cache_is_stale(watches: tuple[WatchStatus, ...], unshown_s: float | None, trouble: str | None) -> None:
    freshness = Freshness(SILENT_S)

    freshness.update(watches, unshown_s, 50.0)

    assert freshness.stale_reason == trouble


def test_the_cache_is_fresh_after_the_recovery_time() -> None:
    freshness, silent = Freshness(SILENT_S), watch("pods", 200.0)
    freshness.update([silent], None, 50.0)
    freshness.update([FRESH], None, 60.0)
    freshness.update([silent], None, 61.0)  # a proxy lets a little data through

    freshness.update([FRESH], None, 70.0)
    freshness.update([FRESH], None, 70.0 + RECOVERY_S - 0.1)
    assert freshness.stale_reason == "gputopo has received nothing for 200 s from the API server for pods"
    freshness.update([FRESH], None, 70.0 + RECOVERY_S)
    assert freshness.stale_reason is None


def test_staleness_is_logged_once_at_its_start_and_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "scheduler_core.planner.leader.freshness")
    freshness = Freshness(SILENT_S)

    for now in range(121, 130):
        freshness.update([watch("pods", float(now))], None, float(now))
    for now in range(130, 140):
        freshness.update([FRESH], None, float(now))

    assert [(each.levelname, vars(each)["fields"]) for each in caplog.records] == [
        ("WARNING", {"reason": "gputopo has received nothing for 121 s from the API server for pods"}),
        ("INFO", {"reason": None}),
    ]
