"""Lists of numbers as the kernel writes them: "0-15,64-79" (Documentation/admin-guide/cputopology.rst)."""

from __future__ import annotations

import re

_RUN = re.compile(r"1+")
_MAX_DIGITS = 5  # CPU ids of Linux are below 8192 (CONFIG_NR_CPUS), ids of NUMA nodes below 1024


def numbers(text: str | None) -> frozenset[int]:
    """The numbers of a list: "0-2,8" is {0, 1, 2, 8}. What is no such list, or absurdly long, is empty."""
    found: set[int] = set()
    for part in (text or "").split(","):
        low, _, high = part.partition("-")
        if _number(low) is None or _number(high or low) is None:
            return frozenset()
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def single_number(text: str | None) -> int | None:
    """The number of a list of one: "0" is 0; "0-1" and "0,5-11" name several, and None is unknown."""
    return None if text is None else _number(text)


def from_mask(mask: int) -> str | None:
    """The list of the bits that are set: 0b111 is "0-2"; None for none, because nothing is near no CPU."""
    runs = ((run.start(), run.end() - 1) for run in _RUN.finditer(f"{mask:b}"[::-1]))
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs) or None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None
