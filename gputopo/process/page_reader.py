"""Reads the pages of a running extender or planner over HTTP, and follows the header ``Link`` to further pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import urllib3

_TIMEOUT_S = 30.0  # for a page
_PAGE_BYTES = 64 * 2**20  # an explanation is one page, however many nodes there are
_PAGES = 1024
_NEXT = re.compile(r'<(\?continue=[^<>\s]*)>; rel="next"')


class PageError(OSError):
    """There is no such page, or it has no end; the text says why and names the address."""


def read_pages(url: str) -> Iterator[bytes]:
    """Return the page at the address, and those that continue it. Raises ``PageError``."""
    query: str | None = ""
    for _ in range(_PAGES):
        body, query = _read_page(url if not query else url.partition("?")[0] + query)
        yield body
        if query is None:
            return
    raise PageError(f"{url}: more than {_PAGES} pages")


def _read_page(url: str) -> tuple[bytes, str | None]:
    """Return the body, and the query of the page that continues it."""
    try:
        answer = urllib3.request("GET", url, timeout=_TIMEOUT_S, retries=False, preload_content=False)
        with answer:
            body = answer.read(_PAGE_BYTES + 1)
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise PageError(f"no answer from {url}: {error}") from error
    if answer.status != 200:
        raise PageError(f"{url}: {answer.status}: {body[:500].decode(errors='replace').strip()}")
    if len(body) > _PAGE_BYTES:
        raise PageError(f"{url}: the page exceeds {_PAGE_BYTES // 2**20} MiB")
    found = _NEXT.search(answer.headers.get("Link", ""))
    return body, None if found is None else found[1]
