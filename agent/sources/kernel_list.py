"""Lists of numbers in the kernel's format: "0-15,64-79" (Documentation/admin-guide/cputopology.rst)."""

from __future__ import annotations

import re

_RUN = re.compile(r"1+")
_MAX_DIGITS = 5  # CPU ids of Linux are below 8192 (CONFIG_NR_CPUS), ids of NUMA nodes below 1024


def parse_numbers(text: str | None) -> frozenset[int]:
    """Return the numbers of a list: "0-2,8" is {0, 1, 2, 8}. An invalid or very long list is empty."""
    found: set[int] = set()
    for part in (text or "").split(","):
        low, _, high = part.partition("-")
        if _parse_number(low) is None or _parse_number(high or low) is None:
            return frozenset()
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def parse_single_number(text: str | None) -> int | None:
    """Return the number of a list with one number: "0" is 0; "0-1" and "0,5-11" have several and give None."""
    return None if text is None else _parse_number(text)


def format_mask(mask: int) -> str | None:
    """Return the list of the set bits: 0b111 is "0-2"; None for no bits."""
    runs = ((run.start(), run.end() - 1) for run in _RUN.finditer(f"{mask:b}"[::-1]))
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs) or None


def _parse_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None
