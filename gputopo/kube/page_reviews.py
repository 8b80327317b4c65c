"""Access of the bearer of a token to a page, by TokenReview and SubjectAccessReview, as for kube-scheduler's own pages.

Tokens must be issued for the audience ``AUDIENCE``: pages are plain HTTP, and the API server itself does not
accept such a token. ``kubectl create token NAME --audience gputopo`` issues one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from gputopo.kube.client import Kube
from gputopo.kube.rbac import ACCESS_REVIEWS, TOKEN_REVIEWS

AUDIENCE = "gputopo"


class Verdict(NamedTuple):
    """The HTTP status for a reader of a page: 200, 401 (unknown token) or 403 (no permission); and the reason."""

    status: int
    reason: str = ""


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _Token(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: tuple[str, ...] = ()  # empty: the authenticator does not know audiences


class _Access(msgspec.Struct, frozen=True):
    allowed: bool = False


class _TokenReview(msgspec.Struct, frozen=True):
    status: _Token = _Token()


class _AccessReview(msgspec.Struct, frozen=True):
    status: _Access = _Access()


def review_reader(kube: Kube, token: str, path: str) -> Verdict:
    """Return whether the bearer of a token may ``get`` the non-resource URL ``path``. Raises ``KubeError``."""
    found = kube.review(TOKEN_REVIEWS, _body("TokenReview", token=token, audiences=[AUDIENCE]), _TokenReview).status
    user = found.user
    if not found.authenticated or AUDIENCE not in found.audiences:
        return Verdict(401, f"the API server does not accept this token for the audience {AUDIENCE}")
    asked = {"nonResourceAttributes": {"path": path, "verb": "get"}, "user": user.username, "uid": user.uid}
    body = _body("SubjectAccessReview", **asked, groups=user.groups, extra=user.extra)
    if not kube.review(ACCESS_REVIEWS, body, _AccessReview).status.allowed:
        return Verdict(403, f"{user.username} may not get {path}: bind it to the ClusterRole gputopo-page-reader")
    return Verdict(200)


def _body(kind: str, **spec: Any) -> dict[str, Any]:
    group = {"TokenReview": TOKEN_REVIEWS, "SubjectAccessReview": ACCESS_REVIEWS}[kind]
    return {"apiVersion": group.api_version, "kind": kind, "spec": spec}
