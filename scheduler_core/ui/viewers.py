"""The viewers of the pages, and the names that each viewer may see.

``gputopo ui`` serves everybody on its own machine. ``gputopo ui-server`` serves bearers of tokens with the right to
``get`` ``/map``.
A viewer sees the names of pods and gangs in the namespaces where it may list pods. Reviews are cached and bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Protocol

from starlette.requests import Request

from gputopo.kube.errors import KubeError
from gputopo.kube.page_reviews import PageUser, Verdict
from gputopo.recent_results import add_bounded
from scheduler_core.runtime.page_access import PageAccess, bearer_token
from scheduler_core.runtime.turns import TooManyWaitingError, Turns
from scheduler_core.ui.rows_html import ANYONE, Viewer

PATH = "/map"  # a non-resource URL: its right opens all pages
COOKIE = "gputopo-token"
# A browser accepts a cookie of this name only from this host itself, by TLS, and for all its paths: no other host of
# the domain can set it.
HOST_COOKIE = f"__Host-{COOKIE}"
ALL = ""  # the namespace of a review of all namespaces
_ALLOWED_S = 60.0
_DENIED_S = 300.0
_BATCH = 200  # reviews for one request; the other namespaces stay hidden until the next one
_BATCH_S = 2.0
_REVIEW_PAUSE_S = 0.005  # at most 200 reviews per second, whatever the viewers do
_WAIT_S = 3.0  # for the reviews of other viewers; after it the page is shown with what is known
_MAX_USERS = 1000

MayList = Callable[[PageUser, str], bool]  # blocks; namespace, or ALL
UserKey = tuple[object, ...]


class Viewers(Protocol):
    """Decides what each request may see."""

    async def viewer(self, request: Request, namespaces: Callable[[], frozenset[str]]) -> Viewer | Verdict:
        """Return the viewer, or why the request is refused. ``namespaces``: with names on any page."""
        ...


class LocalViewers:
    """Viewers on loopback. They see everything: the pages have the rights of the user of ``gputopo ui``."""

    def __init__(self, recorded: str = "") -> None:
        self._viewer = Viewer(recorded=recorded)

    async def viewer(self, request: Request, namespaces: Callable[[], frozenset[str]]) -> Viewer | Verdict:  # noqa: ARG002  the signature of ``Viewers``
        """Return a viewer who sees all."""
        return self._viewer


class ReviewedViewers:
    """Viewers with a token of the API server, in the header ``Authorization`` or in the cookie of the login page.

    Peers on loopback need a token too: a proxy in the same pod connects from there.
    """

    def __init__(self, access: PageAccess, may_list: MayList) -> None:
        self._access, self._namespaces = access, NamespaceReviews(may_list)

    async def viewer(self, request: Request, namespaces: Callable[[], frozenset[str]]) -> Viewer | Verdict:
        """Return the viewer, or why the request is refused."""
        cookie = request.cookies.get(cookie_name(request), "")
        token = bearer_token(request) or cookie
        if not token:
            return Verdict(401, "this page needs a token: kubectl create token NAME --audience gputopo")
        verdict = await self.verdict(token)
        if verdict.user is None:
            return verdict
        request.state.tenant = verdict.user.tenant
        logged_in = bool(cookie) and token == cookie
        known = namespaces()
        seen = await self._namespaces.visible(verdict.user, known)
        return ANYONE._replace(
            namespaces=seen, hidden=frozenset() if seen is None else known - seen, logged_in=logged_in
        )

    async def verdict(self, token: str) -> Verdict:
        """Return whether the bearer of a token may see the pages."""
        return await self._access.verdict(token, PATH)


def tenant_of(request: Request) -> str:
    """Return the user to which the requests of a viewer are counted; "" where no token is needed."""
    return str(getattr(request.state, "tenant", ""))


def cookie_name(request: Request) -> str:
    """Return the name of the cookie: where this server has TLS itself, the name that browsers protect.

    A proxy with TLS may serve other programs on the same host, so there the cookie stays limited to the path.
    """
    return HOST_COOKIE if request.url.scheme == "https" else COOKIE


class NamespaceReviews:
    """The namespaces in which each user may list pods. For one event loop."""

    def __init__(self, may_list: MayList, clock: Callable[[], float] = time.monotonic, wait_s: float = _WAIT_S) -> None:
        self._may_list, self._clock, self._wait_s = may_list, clock, wait_s
        self._turns = Turns()
        self._answers: dict[UserKey, dict[str, tuple[float, bool]]] = {}  # (valid until, allowed) by namespace

    async def visible(self, user: PageUser, namespaces: frozenset[str]) -> frozenset[str] | None:
        """Return the namespaces in which the user may list pods; None: all. Unknown is hidden."""
        answers = self._answers_of(user)
        if not self._valid(answers, ALL):
            await self._review(user, answers, [ALL])
        if self._is_allowed(answers, ALL):
            return None
        missing = [each for each in sorted(namespaces) if not self._valid(answers, each)]
        if missing:
            await self._review(user, answers, missing[:_BATCH])
        return frozenset(each for each in namespaces if self._is_allowed(answers, each))

    def _answers_of(self, user: PageUser) -> dict[str, tuple[float, bool]]:
        extra = tuple(sorted(user.extra.items()))
        key = user.username, user.uid, user.groups, extra
        answers = self._answers.pop(key, {})
        add_bounded(self._answers, key, answers, _MAX_USERS)
        return answers

    def _valid(self, answers: Mapping[str, tuple[float, bool]], namespace: str) -> bool:
        return namespace in answers and self._clock() < answers[namespace][0]

    def _is_allowed(self, answers: Mapping[str, tuple[float, bool]], namespace: str) -> bool:
        return self._valid(answers, namespace) and answers[namespace][1]

    async def _review(self, user: PageUser, answers: dict[str, tuple[float, bool]], namespaces: Iterable[str]) -> None:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._wait_s):
                    await stack.enter_async_context(self._turns.turn(user.tenant))
            except (TimeoutError, TooManyWaitingError):
                return  # these namespaces stay hidden until the next request
            missing = [each for each in namespaces if not self._valid(answers, each)]
            found, _ = await asyncio.gather(
                asyncio.to_thread(self._ask, user, missing), asyncio.sleep(_REVIEW_PAUSE_S * len(missing))
            )
        now = self._clock()
        for namespace, allowed in found.items():
            answers[namespace] = now + (_ALLOWED_S if allowed else _DENIED_S), allowed
        for namespace in [each for each in answers if not self._valid(answers, each)]:
            del answers[namespace]

    def _ask(self, user: PageUser, namespaces: Iterable[str]) -> dict[str, bool]:
        """Return the answers of the API server, as many as it gives in time."""
        found: dict[str, bool] = {}
        end = time.monotonic() + _BATCH_S
        try:
            for namespace in namespaces:
                if time.monotonic() > end:
                    break
                found[namespace] = self._may_list(user, namespace)
        except KubeError:
            return found  # the other namespaces stay hidden
        return found
