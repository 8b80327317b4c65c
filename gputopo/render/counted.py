"""Numbers of things, as people say them. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, of: str) -> str:
    """``1 member``, ``3 members``."""
    return f"{number} {of}{'' if number == 1 else 's'}"


def part(number: int, whole: int, does: str, do: str, of: str = "member") -> str:
    """``1 of 3 members is there``, ``2 of 3 members are there``: ``does`` of one, ``do`` of any other number."""
    return f"{number} of {counted(whole, of)} {does if number == 1 else do}"


def first_of(names: Sequence[str]) -> str:
    """``w-0``, ``w-0 and 2 more``."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
