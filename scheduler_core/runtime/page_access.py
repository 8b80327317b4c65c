"""Access to the pages that name pods of all tenants: ``/decisions``, ``/explain``, ``/gangs``, ``/report``.

Peers on loopback: ``kubectl port-forward`` and ``exec`` connect from there, and the API server authorizes them. Other
peers need a token that the API server accepts. Reviews are cached, limited in rate, and never delay the probes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gputopo.kube.client import Kube
from gputopo.kube.errors import KubeError
from gputopo.kube.page_reviews import Verdict, review_reader
from gputopo.kube.rbac import PAGE_REVIEWER
from scheduler_core.runtime.turns import TooManyWaitingError, Turns

# As kubectl port-forward connects; not all of 127.0.0.0/8: a service mesh connects from 127.0.0.6 for any peer.
_LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
_REVIEW_S = 3.0  # for one answer of the API server
_PAUSE_S = 0.05  # one review at a time, and at most 20 per second: hostile tokens cost the API server no more
_MAX_WAITING = 16  # tokens that were not accepted before, and accepted ones of one tenant
_VALID_S = 10.0  # as in kube-scheduler
_MAX_VERDICTS = 256  # more than are reviewed while one is valid

_UNKNOWN = ""  # the user of tokens that were not accepted

Review = Callable[[str, str], Verdict]  # token, path
_log = logging.getLogger(__name__)


class ReviewQueue(NamedTuple):
    """The limits of reviews: one at a time."""

    max_waiting: int = _MAX_WAITING
    pause_s: float = _PAUSE_S


class PageAccess:
    """Authorizes the readers of one listener. For one event loop."""

    def __init__(
        self,
        review: Review | None = None,
        clock: Callable[[], float] = time.monotonic,
        valid_s: float = _VALID_S,
        max_verdicts: int = _MAX_VERDICTS,
        queue: ReviewQueue = ReviewQueue(),  # noqa: B008  immutable
    ) -> None:
        """``review``: blocks; None: only peers on loopback may read. ``valid_s``: how long a verdict counts."""
        self._review, self._clock = review, clock
        self._turns, self._pause_s = Turns(queue.max_waiting), queue.pause_s
        self._valid_s, self._max_verdicts = valid_s, max_verdicts
        self._verdicts: dict[tuple[bytes, str], tuple[float, Verdict]] = {}  # oldest first

    async def refuse(self, request: Request) -> Response | None:
        """Return the refusal of a reader; None: it may read the page."""
        if is_on_loopback(request):
            return None
        if self._review is None:
            return _refusal(
                403, "this page is served on loopback only: use kubectl port-forward, or --pages authorized"
            )
        token = bearer_token(request)
        if not token:
            return _refusal(401, "this page needs a bearer token: kubectl create token NAME --audience gputopo")
        verdict = await self.verdict(token, request.scope["path"])
        return None if verdict.status == 200 else _refusal(verdict.status, verdict.reason)

    async def verdict(self, token: str, path: str) -> Verdict:
        """Return whether the bearer of a token may read a page; with status 503 where that could not be reviewed."""
        review = self._review
        if review is None:
            return Verdict(403, "tokens are not reviewed")
        key = sha256(token.encode()).digest(), path
        if (known := self._known(key)) is not None:
            return known
        # All unknown tokens share the turns of one user. So a reader whose accepted verdict has expired waits for one.
        before = self._verdicts.get(key)
        try:
            async with self._turns.turn(_UNKNOWN if before is None else _tenant_of(before[1])):
                if (known := self._known(key)) is not None:
                    return known
                verdict, _ = await asyncio.gather(asyncio.to_thread(review, token, path), asyncio.sleep(self._pause_s))
        except TooManyWaitingError:
            return Verdict(503, "too many tokens are being reviewed; try again in a minute")
        except KubeError as error:
            # The request is not authenticated: the message names addresses and objects.
            _log.warning("token not reviewed", extra={"fields": {"error": str(error)}})
            return Verdict(503, "the API server did not review the token; try again, and see the log of this program")
        self._verdicts.pop(key, None)
        self._verdicts[key] = self._clock() + self._valid_s, verdict
        if len(self._verdicts) > self._max_verdicts:
            self._drop_one()
        return verdict

    def _drop_one(self) -> None:
        """Drop a verdict that was not accepted, else the oldest of the tenant with most: a tenant has any tokens."""
        tenants = [_tenant_of(verdict) for _, verdict in self._verdicts.values()]
        most = _UNKNOWN if _UNKNOWN in tenants else Counter(tenants).most_common(1)[0][0]
        del self._verdicts[list(self._verdicts)[tenants.index(most)]]

    def _known(self, key: tuple[bytes, str]) -> Verdict | None:
        until, verdict = self._verdicts.get(key, (0.0, None))
        return verdict if self._clock() < until else None


def page_access(pages: str, kube: Kube) -> PageAccess:
    """Return the access of the setting ``--pages``. ``kube``: connects as the account of this program."""
    reviewer = kube.with_role(PAGE_REVIEWER).with_timeout(_REVIEW_S)
    return PageAccess(partial(review_reader, reviewer) if pages == "authorized" else None)


def is_on_loopback(request: Request) -> bool:
    """Return whether the peer is on this host, as ``kubectl port-forward`` is."""
    return request.client is not None and request.client.host in _LOOPBACK


def bearer_token(request: Request) -> str:
    """Return the token of the header ``Authorization``; "" without one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip(" ") if scheme.lower() == "bearer" else ""


def _tenant_of(verdict: Verdict) -> str:
    """Return the tenant to which the reviews of an accepted token are counted."""
    return _UNKNOWN if verdict.user is None else verdict.user.tenant


def _refusal(status: int, reason: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return PlainTextResponse(f"{reason}\n", status, headers)
