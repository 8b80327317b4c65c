"""The login page of ``gputopo ui-server``: it keeps the token in a cookie that no script can read.

A browser sends no token by itself. The form is offered only where the token is not readable on its way: over TLS,
behind a proxy that says so, or to ``localhost`` by ``kubectl port-forward``. A proxy may send a header instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request

from gputopo.kube.page_reviews import Verdict
from gputopo.process.settings import is_loopback
from scheduler_core.ui.html import NOTHING, Html, element, text
from scheduler_core.ui.overview_page import page
from scheduler_core.ui.rows_html import ANYONE
from scheduler_core.ui.viewers import HOST_COOKIE, cookie_name

MAX_BODY = 16 * 1024
MAX_TOKEN = 3800  # a browser stores 4096 bytes of a cookie
_MAX_ADDRESS = 2000
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_HELP = "kubectl create token NAME --audience gputopo"


class LoginForm:
    """The content of a sent login form: the token, and the page to open."""

    def __init__(self, body: bytes, pages: Collection[str]) -> None:
        """``pages``: the paths of pages. Raises ``ValueError``: the token is invalid, or too long for a cookie."""
        fields = parse_qs(body.decode("ascii", "replace"), max_num_fields=8)
        self.token = fields.get("token", [""])[0].strip()
        self.page = local_address(fields.get("page", [""])[0], pages)
        if not _TOKEN.fullmatch(self.token):
            raise ValueError(f"invalid token; create one with: {_HELP}")
        if len(self.token) > MAX_TOKEN:
            raise ValueError(f"the token has {len(self.token)} characters; a cookie takes {MAX_TOKEN}")


def local_address(address: str, pages: Collection[str]) -> str:
    """Return the relative address of a page of this server, with its query; of anything else the first page."""
    found = urlsplit(address[:_MAX_ADDRESS])
    known = not found.scheme and not found.netloc and f"/{found.path.removeprefix('./')}" in pages
    # Only printable ASCII: the address becomes a header.
    if not known or not found.query.isascii() or not found.query.isprintable() or " " in found.query:
        return "./"
    return f"./{found.path.removeprefix('./')}" + (f"?{found.query}" if found.query else "")


def is_private(request: Request) -> bool:
    """Return whether the connection protects a token: TLS, or a tunnel to this host."""
    if request.url.scheme == "https" or request.headers.get("X-Forwarded-Proto", "") == "https":
        return True
    return request.client is not None and is_loopback(request.client.host) and _is_local_host(request)


def is_cross_site(request: Request) -> bool:
    """Return whether another web site sends the form. Browsers say so; other clients do not matter."""
    return request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")


def set_cookie(request: Request, token: str) -> str:
    """Return the header that makes the browser send the token, to this server only and not from other sites."""
    name = cookie_name(request)
    # Over plain HTTP a browser takes Secure cookies from no host, and Safari not even from localhost.
    secure = "" if _is_local_host(request) and request.url.scheme == "http" else "; Secure"
    path = "; Path=/" if name == HOST_COOKIE else ""
    return f"{name}={token}{path}; HttpOnly; SameSite=Strict{secure}"


def forget_cookie(request: Request) -> str:
    """Return the header that makes the browser forget the token."""
    return f"{set_cookie(request, '')}; Max-Age=0"


def login_page(verdict: Verdict, address: str, *, private: bool) -> Html:
    """Return the page of a request that is refused: the reason, and the form, if the token stays private."""
    form = element(
        "form",
        element("input", type="hidden", name="page", value=address),
        element(
            "label",
            text("Token "),
            element("input", type="password", name="token", required="", size=48, autocomplete="off"),
        ),
        element("button", text("Log in"), type="submit"),
        method="post",
        action="login",
    )
    unsafe = element(
        "p",
        text(
            "This connection is not encrypted, so no token can be entered. Open the page over TLS, or through "
            "kubectl port-forward as http://localhost."
        ),
        class_="trouble",
    )
    again = element("p", text("Already logged in? "), element("a", text("Open the page again"), href=address))
    log_out = element("form", element("button", text("Log out"), type="submit"), method="post", action="logout")
    parts = [element("p", text(verdict.reason), class_="trouble", role="alert")]
    if verdict.status == 401:
        hint = element("p", text("A token: "), element("code", text(_HELP)), class_="note")
        parts += [form, hint, again] if private else [unsafe]
    else:
        parts.append(log_out if verdict.status == 403 else NOTHING)
    return page("Log in", element("main", *parts, id="main"), ANYONE._replace(navigable=False))


def _is_local_host(request: Request) -> bool:
    return is_loopback((request.url.hostname or "").strip("[]"))
