"""Kubernetes quantities, by their grammar."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gputopo.quantities import parse_count, parse_mib, parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("2", Fraction(2), id="plain"),
        pytest.param("+2", Fraction(2), id="signed"),
        pytest.param("40Gi", Fraction(40 * 1024**3), id="binary"),
        pytest.param("40G", Fraction(40 * 1000**3), id="decimal"),
        pytest.param("1.5Ki", Fraction(1536), id="fraction"),
        pytest.param(".5k", Fraction(500), id="no leading digit"),
        pytest.param("5.", Fraction(5), id="no trailing digit"),
        pytest.param("500m", Fraction(1, 2), id="milli"),
        pytest.param("1e3", Fraction(1000), id="exponent"),
        pytest.param("1E3", Fraction(1000), id="upper case exponent"),
        pytest.param("1E", Fraction(10**18), id="exa"),
        pytest.param("25e-1", Fraction(5, 2), id="negative exponent"),
        pytest.param("0", Fraction(0), id="nothing"),
        pytest.param("-1", None, id="negative"),
        pytest.param("", None, id="empty"),
        pytest.param("Gi", None, id="suffix only"),
        pytest.param("40GB", None, id="no such suffix"),
        pytest.param("40 Gi", None, id="blank inside"),
        pytest.param("1e400", None, id="too large"),
        pytest.param("four", None, id="a word"),
        pytest.param("４０Gi", None, id="non-ASCII digits"),  # noqa: RUF001
    ],
)
def test_quantity(text: str, number: Fraction | None) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("8", 8), ("1k", 1000), ("2000m", 2), ("1500m", None), ("two", None)],
    ids=["plain", "thousand", "whole in thousandths", "not whole", "a word"],
)
def test_devices_are_whole(text: str, number: int | None) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("40Gi", 40960, id="40 * 1024"),
        pytest.param("80G", 76294, id="80e9 / 1048576 = 76293.9, rounded up"),
        pytest.param("1", 1, id="at least 1 MiB"),
        pytest.param("0", None, id="zero"),
        pytest.param("much", None, id="a word"),
    ],
)
def test_memory_is_in_mib_rounded_up(text: str, number: int | None) -> None:
    assert parse_mib(text) == number
