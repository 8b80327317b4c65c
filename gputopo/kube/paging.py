"""Sizes of the pages of a list: fewer objects where they are large. Pure.

A tenant may create hundreds of objects of a megabyte. A page of 500 of them would be more than the memory of a program.
"""

from __future__ import annotations

PAGE = 500  # objects; an unpaged list of 50,000 pods is 300 MB at once, on both sides
MAX_PAGE_BYTES = 64 << 20  # a longer page is not read to its end: it is requested again with fewer objects
_FEWER = 8


def smaller_size(size: int) -> int:
    """Return the size to request a page again with, because it exceeded ``MAX_PAGE_BYTES``."""
    return max(1, size // _FEWER)


def following_size(size: int, length: int) -> int:
    """Return the size of the page after one of ``size`` objects and ``length`` bytes: at most twice as many."""
    fitting = size * MAX_PAGE_BYTES // (2 * max(1, length))
    return max(1, min(PAGE, 2 * size, fitting))
