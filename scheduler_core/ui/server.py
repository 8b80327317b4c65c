"""The HTTP application of ``gputopo ui`` and ``gputopo ui-server``.

On loopback only requests for a loopback host name are answered: a web site that the viewer visits could otherwise read
the pages through a name of its own that resolves to 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gputopo.kube.page_reviews import Verdict
from scheduler_core.runtime.http_connection import ConnectionLimits
from scheduler_core.runtime.http_pages import probe_answer
from scheduler_core.ui.answers import HEADERS, html_answer, missing_answer
from scheduler_core.ui.login import (
    MAX_BODY,
    LoginForm,
    forget_cookie,
    is_cross_site,
    is_private,
    login_page,
    set_cookie,
)
from scheduler_core.ui.pages import Answer, UiPages
from scheduler_core.ui.service import UiService
from scheduler_core.ui.viewers import LocalViewers, ReviewedViewers

LIMITS = ConnectionLimits(connections=1000, per_peer=1000, heads=200, request_s=10.0, pipelined=0, cut_busy=True)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def ui_app(service: UiService, viewers: ReviewedViewers | None = None) -> ASGIApp:
    """Return the application. ``viewers``: who may see the pages; None: everybody on loopback.

    On loopback, requests with another host name are refused. In a cluster the tokens protect from other web sites.
    """
    pages = UiPages(service, viewers or LocalViewers(service.recorded), _refusal)
    public: dict[str, Answer] = {
        "/ui.css": _asset("ui.css", "text/css"),
        "/ui.js": _asset("ui.js", "text/javascript"),
        "/icon.svg": _asset("icon.svg", "image/svg+xml"),
        "/healthz": _probe(service.unhealthy, with_reason=viewers is None),
        "/readyz": _probe(service.not_ready_reason, with_reason=viewers is None),
    }
    shown: dict[str, Answer] = {path: pages.guarded(page) for path, page in pages.by_path().items()}
    routes = [Route(path, _local(page) if viewers is None else page) for path, page in (public | shown).items()]
    if viewers is not None:
        login = LoginPages(viewers, frozenset(shown))
        routes += [Route("/login", login.log_in, methods=["POST"]), Route("/logout", login.log_out, methods=["POST"])]
    application = Starlette(routes=routes, exception_handlers={404: _not_found})
    application.router.redirect_slashes = False
    return application


class LoginPages:
    """The handlers that set and remove the cookie."""

    def __init__(self, viewers: ReviewedViewers, pages: frozenset[str]) -> None:
        self._viewers, self._pages = viewers, pages

    async def log_in(self, request: Request) -> Response:
        """Keep the token of the form in a cookie, if its bearer may see the pages."""
        if is_cross_site(request) or not is_private(request):
            return PlainTextResponse("log in from the page itself, over TLS or kubectl port-forward\n", 403, HEADERS)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                return PlainTextResponse("the form is too long\n", 413, HEADERS)
        try:
            form = LoginForm(body, self._pages)
        except ValueError as error:
            return html_answer(login_page(Verdict(401, str(error)), "./", private=True), 401)
        verdict = await self._viewers.verdict(form.token)
        if verdict.status != 200:
            return html_answer(login_page(verdict, form.page, private=True), verdict.status)
        return Response(status_code=303, headers=_with_cookie(set_cookie(request, form.token), form.page))

    async def log_out(self, request: Request) -> Response:
        """Remove the cookie."""
        if is_cross_site(request):
            return PlainTextResponse("log out from the page itself\n", 403, HEADERS)
        return Response(status_code=303, headers=_with_cookie(forget_cookie(request), "./"))


def _local(page: Answer) -> Answer:
    """Return the page for requests that name this host."""

    async def answer(request: Request) -> Response:
        host = request.headers.get("Host", "")
        if host.rpartition(":")[0] not in _LOOPBACK and host not in _LOOPBACK:
            _, listening_at = request.scope["server"]
            url = f"http://localhost:{listening_at}/"
            return PlainTextResponse(f"unknown host {host!r}: open {url} instead\n", 421, HEADERS)
        return await page(request)

    return answer


def _probe(reason: Callable[[], str | None], *, with_reason: bool) -> Answer:
    """Return the page of a probe. ``with_reason``: a reason may name an object, so the pod network gets none."""

    async def answer(_: Request) -> Response:
        found = reason()
        return probe_answer(found if with_reason or found is None else "not working; the log says why", HEADERS)

    return answer


def _refusal(request: Request, verdict: Verdict) -> Response:
    """Return the login page to browsers, and the reason to other clients."""
    headers = {**HEADERS, "WWW-Authenticate": "Bearer"} if verdict.status == 401 else HEADERS
    if "text/html" not in request.headers.get("Accept", ""):
        return PlainTextResponse(f"{verdict.reason}\n", verdict.status, headers)
    query = f"?{request.url.query}" if request.url.query else ""
    address = f".{request.scope['path']}{query}"
    return html_answer(login_page(verdict, address, private=is_private(request)), verdict.status, headers)


def _with_cookie(cookie: str, page: str) -> dict[str, str]:
    return {**HEADERS, "Cache-Control": "no-store", "Location": page, "Set-Cookie": cookie}


def _not_found(request: Request, _: Exception) -> Response:
    return missing_answer(f"unknown page {request.url.path!r}")


def _asset(name: str, media_type: str) -> Answer:
    content = files("scheduler_core.ui").joinpath("assets", name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, headers=HEADERS, media_type=f"{media_type}; charset=utf-8")

    return answer


def style_sheet() -> str:
    """Return the style sheet."""
    return files("scheduler_core.ui").joinpath("assets", "ui.css").read_text(encoding="utf-8")
