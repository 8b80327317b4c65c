"""The log lines about errors of watches."""

from __future__ import annotations

import logging

import pytest

from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.watch import WatchErrorLog

HEALTHY = WatchStatus("jobsets", True, 1.0, 0, 0, None, None)
SILENT = HEALTHY._replace(error="no answer", failures=3)


def unreadable(number: int) -> WatchStatus:
    return HEALTHY._replace(error=f"jobsets foe/{number} cannot be read", unreadable=1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def logged(caplog: pytest.LogCaptureFixture) -> list[str | None]:
    found = [each.__dict__["fields"]["trouble"] for each in caplog.records]
    caplog.clear()
    return found


def test_objects_that_come_and_go_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = WatchErrorLog(clock)
    with caplog.at_level(logging.INFO):
        for second in range(120):
            clock.now = float(second)
            log.log_errors([unreadable(second) if second % 3 else HEALTHY])
        assert logged(caplog) == ["jobsets foe/1 cannot be read", "jobsets foe/61 cannot be read"]
        for second in (121, 180):
            clock.now = float(second)
            log.log_errors([HEALTHY])
        assert logged(caplog) == [None]


def test_other_errors_are_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    log = WatchErrorLog(Clock())
    with caplog.at_level(logging.INFO):
        for status in (unreadable(1), SILENT, HEALTHY, SILENT, SILENT, HEALTHY, unreadable(2)):
            log.log_errors([status])

    assert logged(caplog) == [
        "jobsets foe/1 cannot be read",
        "no answer",
        None,
        "no answer",
        None,
        "jobsets foe/2 cannot be read",
    ]
