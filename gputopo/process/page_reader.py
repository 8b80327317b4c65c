"""Reads the HTTP pages of a running extender or planner, and follows the ``Link`` header to the next page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import urllib3

from gputopo.process.connection_errors import no_answer_reason

TIMEOUT_S = 30.0
_MAX_PAGE_BYTES = 64 * 2**20  # an explanation is one page for any number of nodes
_MAX_PAGES = 1024
_NEXT = re.compile(r'<(\?continue=[^<>\s]*)>; rel="next"')


class PageError(OSError):
    """A page cannot be read, or there are too many pages. The message has the reason and the URL."""


def read_pages(url: str, token: str | None = None, timeout_s: float = TIMEOUT_S) -> Iterator[bytes]:
    """Yield the page at a URL, and all pages that continue it; ``token``: a bearer token. Raises ``PageError``.

    ``timeout_s``: for the next byte of a page, and for all of it.
    """
    query: str | None = ""
    for _ in range(_MAX_PAGES):
        body, query = _read_page(url if not query else url.partition("?")[0] + query, token, timeout_s)
        yield body
        if query is None:
            return
    raise PageError(f"{url}: more than {_MAX_PAGES} pages")


def _read_body(response: urllib3.BaseHTTPResponse, url: str, timeout_s: float) -> bytes:
    """Return at most one byte more than a page may have. A server that sends slowly must not keep a command waiting."""
    until, body = time.monotonic() + timeout_s, bytearray()
    while len(body) <= _MAX_PAGE_BYTES and (chunk := response.read1(_MAX_PAGE_BYTES + 1 - len(body))):
        body += chunk
        if time.monotonic() > until:
            raise PageError(f"{url}: the page took more than {timeout_s:g} s")
    return bytes(body)


def _read_page(url: str, token: str | None, timeout_s: float) -> tuple[bytes, str | None]:
    """Return the body of a page, and the query of the next page."""
    headers = None if token is None else {"Authorization": f"Bearer {token}"}
    try:
        response = urllib3.request("GET", url, headers=headers, timeout=timeout_s, retries=False, preload_content=False)
        with response:
            body = _read_body(response, url, timeout_s)
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise PageError(f"no answer from {url}: {no_answer_reason(error)}") from error
    if response.status != 200:
        raise PageError(f"{url}: {response.status}: {body[:500].decode(errors='replace').strip()}")
    if len(body) > _MAX_PAGE_BYTES:
        raise PageError(f"{url}: the page exceeds {_MAX_PAGE_BYTES // 2**20} MiB")
    found = _NEXT.search(response.headers.get("Link", ""))
    return body, None if found is None else found[1]
