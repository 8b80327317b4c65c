"""Links with error counters that grow too fast."""

from __future__ import annotations

import pytest

from agent.daemon.link_errors import LinkErrorHistory, failing_links, record_counters
from agent.snapshot import Nvml, NvmlGpu, NvmlLink

HOUR = 3600.0
WORN = "recovered 10 times or more within 24 hours: the link may fail soon"
NOISY = "100 CRC errors per second or more: the link may fail soon"


def reading(counters: dict[str, int], uuid: str = "GPU-a", index: int = 2) -> Nvml:
    link = NvmlLink(7, active=True, counters=counters)
    return Nvml(gpus=(NvmlGpu(index=index, uuid=uuid, nvlinks=(link,)),))


def whys(*readings: tuple[float, Nvml | None]) -> list[str]:
    """The reasons after the last reading."""
    history: LinkErrorHistory = {}
    for at, nvml in readings:
        history = record_counters(history, nvml, at)
    at, nvml = readings[-1]
    return [each.why for each in failing_links(history, nvml, at)]


RECOVERIES = {
    "ten within a day": ([(0, 500), (12, 505), (24, 510)], True),
    "one in each pass": ([(minute / 60, 500 + minute) for minute in range(11)], True),
    "ten, but over more than a day": ([(0, 500), (1, 501), (23, 502), (26, 510)], False),
    "many before the agent started": ([(0, 505), (1, 505)], False),
    "nine": ([(0, 0), (1, 9)], False),
    "the driver was reloaded": ([(0, 505), (1, 2), (2, 11)], False),
    "ten, more than a day ago": ([(0, 0), (1, 10), (26, 10)], False),
}


@pytest.mark.parametrize(("values", "found"), RECOVERIES.values(), ids=RECOVERIES)
@pytest.mark.parametrize("counter", ["recovery", "recovered", "recovery_failed"])
def test_a_link_that_recovers_often_may_fail(values: list[tuple[float, int]], counter: str, *, found: bool) -> None:
    readings = [(HOUR * hour, reading({counter: value})) for hour, value in values]

    assert whys(*readings) == ([WORN] if found else [])


OLD, FAILED_ONLY = {"recovered": 200, "recovery_failed": 0}, {"recovery_failed": 0}
UNREAD = {
    "in one pass": ([OLD, FAILED_ONLY, OLD], False),
    "in the first pass": ([FAILED_ONLY, OLD, OLD], False),
    "while the other grows": ([{"recovered": 5, "recovery_failed": 200}, {"recovered": 15}], True),
    "while it grows": ([OLD, FAILED_ONLY, {"recovered": 210, "recovery_failed": 0}], True),
    "never, and both grow": ([{"recovered": 5, "recovery_failed": 7}, {"recovered": 10, "recovery_failed": 12}], True),
}


@pytest.mark.parametrize(("counters", "found"), UNREAD.values(), ids=UNREAD)
def test_a_counter_that_is_not_read_was_not_reset(counters: list[dict[str, int]], *, found: bool) -> None:
    readings = [(60.0 * at, reading(each)) for at, each in enumerate(counters)]

    assert whys(*readings) == ([WORN] if found else [])


CRC = {
    "a hundred per second": ([(0, 0), (60, 6000)], True),
    "fewer": ([(0, 0), (60, 5999)], False),
    "many before the agent started": ([(0, 10**9), (60, 10**9)], False),
    "passes that are too close": ([(0, 0), (5, 5000)], False),
    "then quiet": ([(0, 0), (60, 9000), (120, 9001)], False),
    "then a pass that is too close": ([(0, 0), (60, 9000), (65, 9001)], True),
    "the driver was reloaded": ([(0, 0), (60, 9000), (120, 5)], False),
}


@pytest.mark.parametrize(("values", "found"), CRC.values(), ids=CRC)
def test_a_link_with_many_crc_errors_may_fail(values: list[tuple[float, int]], *, found: bool) -> None:
    assert whys(*((at, reading({"crc": value})) for at, value in values)) == ([NOISY] if found else [])


def test_a_link_is_followed_when_indices_change_and_by_gpu() -> None:
    first, moved = reading({"recovery": 0}), reading({"recovery": 10}, index=0)
    history = record_counters(record_counters({}, first, 0), moved, HOUR)

    assert [each.what for each in failing_links(history, moved, HOUR)] == ["gpu0.nvlink7"]
    assert whys((0, first), (HOUR, reading({"recovery": 10}, uuid="GPU-b"))) == []


def test_a_pass_without_counters_changes_nothing() -> None:
    history = record_counters({}, reading({"recovery": 3, "crc": 1}), 0)

    assert record_counters(history, None, 60) == record_counters(history, reading({}), 60) == history
    assert list(failing_links(history, None, 60)) == []


def test_the_history_of_a_link_is_bounded() -> None:
    history: LinkErrorHistory = {}
    for minute in range(1000):
        history = record_counters(history, reading({"recovery": minute}), 60.0 * minute)

    assert [len(changes) for each in history.values() for changes in each.recoveries.values()] == [11]
