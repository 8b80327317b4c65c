"""Selectors, as the API server applies them."""

from __future__ import annotations

import pytest

from gputopo.kube.errors import KubeError
from gputopo.kube.selectors import parse_selector

LABELS = {"pool": "training", "zone": "a", "empty": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("pool=training", True),
        ("pool==training,zone=a", True),
        ("pool=training,zone=b", False),
        ("pool!=training", False),
        ("missing!=x", True),
        ("missing", False),
        ("!missing", True),
        ("! pool", False),
        ("empty=", True),
        ("zone in (a, b),pool", True),
        ("zone in (b,c)", False),
        ("zone notin (b,c)", True),
        ("missing notin (b)", True),
        ("example.com/x-y!=1, pool in (training)", True),
    ],
)
def test_a_selector(text: str, matches: bool) -> None:
    assert parse_selector(text)(LABELS) is matches


@pytest.mark.parametrize("text", ["=", "a=b=c", "a in b", "a in (b", ",", "a b", "\x1b[31m", "a" * 20_000])
def test_an_invalid_selector_is_quoted(text: str) -> None:
    with pytest.raises(KubeError, match="selector"):
        parse_selector(text)
