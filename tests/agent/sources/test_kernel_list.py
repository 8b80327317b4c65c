"""Lists of numbers in the kernel's format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.kernel_list import format_mask, parse_numbers, parse_single_number

LISTS = {
    "0-2,8": {0, 1, 2, 8},
    "0": {0},
    "3-3": {3},
    "": set(),
    "0-": {0},
    "5-1": set(),
    "x": set(),
    "0,": set(),
    "-1": set(),
    "0-999999999": set(),
    "٣": set(),
}


@pytest.mark.parametrize(("text", "expected"), LISTS.items())
def test_numbers_of_a_list(text: str, expected: set[int]) -> None:
    assert parse_numbers(text) == expected


SINGLE = {"0": 0, "12": 12, "0-1": None, "0,5-11": None, "": None, "N/A": None, "123456": None}


@pytest.mark.parametrize(("text", "expected"), SINGLE.items())
def test_the_number_of_a_list_of_one(text: str, expected: int | None) -> None:
    assert parse_single_number(text) == expected


def test_unknown_is_no_number() -> None:
    assert parse_single_number(None) is None
    assert parse_numbers(None) == frozenset()


@given(st.frozensets(st.integers(0, 300)))
def test_every_set_can_be_written_one_by_one(wanted: frozenset[int]) -> None:
    assert parse_numbers(",".join(map(str, wanted))) == wanted


MASKS = {0b111: "0-2", 0b1: "0", 0b1101: "0,2-3", 1 << 64 | 1: "0,64", 0: None}


@pytest.mark.parametrize(("mask", "expected"), MASKS.items())
def test_the_list_of_a_mask(mask: int, expected: str | None) -> None:
    assert format_mask(mask) == expected


@given(st.frozensets(st.integers(0, 300), min_size=1))
def test_a_mask_and_its_list_are_one_set(wanted: frozenset[int]) -> None:
    assert parse_numbers(format_mask(sum(1 << number for number in wanted))) == wanted
