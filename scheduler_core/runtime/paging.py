"""Pages of limited size. Each page but the last links to the next page by the header ``Link``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar
from urllib.parse import quote

PAGE_BYTES = 2**20
CONTINUE = "continue"  # the query parameter

K = TypeVar("K")


class PageBytes(NamedTuple):
    """A page as it is sent."""

    body: bytes
    continuation: str | None = None  # the query parameter of the next page; None: last page

    @property
    def headers(self) -> dict[str, str]:
        """Return the header ``Link`` (RFC 8288) if there is a next page."""
        if self.continuation is None:
            return {}
        return {"Link": f'<?{CONTINUE}={quote(self.continuation, safe="")}>; rel="next"'}


def fill_page(items: Iterable[tuple[K, bytes]], max_bytes: int = PAGE_BYTES) -> tuple[list[tuple[K, bytes]], bool]:
    """Return the items of one page, at least one, and whether there are more."""
    page: list[tuple[K, bytes]] = []
    size = 0
    rest: Iterator[tuple[K, bytes]] = iter(items)
    for key, item in rest:
        size += len(item) + 1  # the comma
        if page and size > max_bytes:
            return page, True
        page.append((key, item))
    return page, False
