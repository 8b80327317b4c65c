"""Pages of a bounded size. A page that is not the last one names the next one in the header ``Link``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar
from urllib.parse import quote

PAGE_BYTES = 2**20
CONTINUE = "continue"  # the query parameter

K = TypeVar("K")


class PageBytes(NamedTuple):
    """What is sent."""

    body: bytes
    continuation: str | None = None  # with which to ask for the next page; None: this is the last one

    @property
    def headers(self) -> dict[str, str]:
        """The header ``Link`` (RFC 8288), where there is a next page."""
        if self.continuation is None:
            return {}
        return {"Link": f'<?{CONTINUE}={quote(self.continuation, safe="")}>; rel="next"'}


def fill(items: Iterable[tuple[K, bytes]], most: int = PAGE_BYTES) -> tuple[list[tuple[K, bytes]], bool]:
    """Return the first items that a page has room for, at least one, and whether there are more."""
    taken: list[tuple[K, bytes]] = []
    size = 0
    rest: Iterator[tuple[K, bytes]] = iter(items)
    for key, item in rest:
        size += len(item) + 1  # and a comma
        if taken and size > most:
            return taken, True
        taken.append((key, item))
    return taken, False
