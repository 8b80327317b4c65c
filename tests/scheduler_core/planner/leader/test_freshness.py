"""When a planner goes by what it knows, and when that may be old."""

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
        pytest.param((FRESH,), None, None, id="all speak"),
        pytest.param((FRESH, watch("nodes", SILENT_S)), MAX_WRITE_LAG_S, None, id="as late as may be"),
        pytest.param((FRESH, watch("jobs", None)), None, None, id="a kind on which no place rests"),
        pytest.param(
            (FRESH, watch("nodes", 121.0)),
            None,
            "gputopo has heard nothing for 121 s from the API server of nodes",
            id="one is silent",
        ),
        pytest.param(
            (FRESH, watch("placementledgers", None)),
            None,
            "gputopo has heard nothing from the API server of placementledgers",
            id="one was never heard",
        ),
        pytest.param((FRESH,), 30.5, "no watch has shown what gputopo wrote 30 s ago", id="they speak of other things"),
    ],
)
def test_what_is_known_may_be_old(
    watches: tuple[WatchStatus, ...], unshown_s: float | None, trouble: str | None
) -> None:
    sight = Freshness(SILENT_S)

    sight.update(watches, unshown_s, 50.0)

    assert sight.stale_reason == trouble


def test_it_sees_again_once_what_was_held_back_has_been_taken_in() -> None:
    sight, silent = Freshness(SILENT_S), watch("pods", 200.0)
    sight.update([silent], None, 50.0)
    sight.update([FRESH], None, 60.0)
    sight.update([silent], None, 61.0)  # a proxy lets through a little

    sight.update([FRESH], None, 70.0)
    sight.update([FRESH], None, 70.0 + RECOVERY_S - 0.1)
    assert sight.stale_reason == "gputopo has heard nothing for 200 s from the API server of pods"
    sight.update([FRESH], None, 70.0 + RECOVERY_S)
    assert sight.stale_reason is None


def test_it_is_told_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "scheduler_core.planner.leader.freshness")
    sight = Freshness(SILENT_S)

    for now in range(121, 130):
        sight.update([watch("pods", float(now))], None, float(now))
    for now in range(130, 140):
        sight.update([FRESH], None, float(now))

    assert [(each.levelname, vars(each)["fields"]) for each in caplog.records] == [
        ("WARNING", {"trouble": "gputopo has heard nothing for 121 s from the API server of pods"}),
        ("INFO", {"trouble": None}),
    ]
