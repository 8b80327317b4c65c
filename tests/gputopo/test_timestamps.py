"""Times as the API server writes them."""

from __future__ import annotations

import pytest

from gputopo.timestamps import since_epoch, timestamp


def test_a_time_is_written_as_the_api_server_does() -> None:
    assert timestamp(1_795_000_000.75) == "2026-11-18T11:06:40Z"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("2026-11-18T11:06:40Z", 1_795_000_000.0, id="of an object"),
        pytest.param("2026-11-18T11:06:40.500000Z", 1_795_000_000.5, id="of a Lease"),
        pytest.param("never", None, id="no time"),
        pytest.param(None, None, id="nothing"),
    ],
)
def test_a_time_is_read(text: str | None, seconds: float | None) -> None:
    assert since_epoch(text) == seconds
