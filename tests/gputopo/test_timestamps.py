"""Times as the API server writes them."""

from __future__ import annotations

from datetime import UTC

import pytest

from gputopo.timestamps import format_micro_timestamp, format_timestamp, parse_timestamp


def test_a_time_is_written_as_the_api_server_does() -> None:
    assert format_timestamp(1_795_000_000.75) == "2026-11-18T11:06:40Z"
    assert format_micro_timestamp(1_795_000_000.75) == "2026-11-18T11:06:40.750000Z"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("2026-11-18T11:06:40Z", 1_795_000_000.0, id="of an object"),
        pytest.param("2026-11-18T11:06:40.500000Z", 1_795_000_000.5, id="of a Lease"),
        pytest.param("2026-11-18T12:06:40+01:00", 1_795_000_000.0, id="of another time zone"),
        pytest.param("2026-11-18T11:06:40", None, id="without a time zone"),
        pytest.param("never", None, id="no time"),
        pytest.param(None, None, id="nothing"),
    ],
)
def test_a_time_is_read(text: str | None, seconds: float | None) -> None:
    assert parse_timestamp(text) == seconds


def test_a_time_without_a_zone_is_of_the_default_zone() -> None:
    assert parse_timestamp("2026-11-18T11:06:40", UTC) == 1_795_000_000.0
    assert parse_timestamp("2026-11-18T12:06:40+01:00", UTC) == 1_795_000_000.0


def test_a_time_after_the_year_9999_is_its_last_second() -> None:
    """A Job's ``activeDeadlineSeconds`` may be any number of seconds."""
    assert format_timestamp(373_934_881_480.0) == format_timestamp(float("inf")) == "9999-12-31T23:59:59Z"
