"""The headers of all pages, and pages as responses.

Pages are read-only and contain names from the cluster, so: no inline script, no other origin, no frame. What a viewer
sees depends on its token, so no cache may share a page.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from scheduler_core.ui.detail_pages import text_page
from scheduler_core.ui.rows_html import ANYONE, Viewer

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
    "Vary": "Authorization, Cookie",
}


def html_answer(page: str, status: int = 200, headers: Mapping[str, str] = HEADERS) -> Response:
    """Return a page."""
    return Response(page, status, headers=headers, media_type="text/html; charset=utf-8")


def missing_answer(words: str, viewer: Viewer = ANYONE) -> Response:
    """Return the page for an object that does not exist."""
    return html_answer(text_page("Not found", words, viewer), 404)
