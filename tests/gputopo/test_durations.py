"""Durations as Go and Kubernetes write them."""

from __future__ import annotations

import pytest

from gputopo.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("1m0.5s", 60.5),
        ("5us", 5e-6),
        ("5ns", 5e-9),
        ("0s", 0.0),
        ("", None),
        ("90", None),
        ("-5s", None),
        ("5 s", None),
        ("s", None),
        ("1h30", None),
        ("5d", None),
        ("٣s", None),
        ("9" * 10 + "s", None),
    ],
)
def test_duration(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == (None if seconds is None else pytest.approx(seconds))
