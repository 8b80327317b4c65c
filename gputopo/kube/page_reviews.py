"""Access of the bearer of a token to a page, by TokenReview and SubjectAccessReview, as for kube-scheduler's own pages.

Tokens must be issued for the audience ``AUDIENCE``: pages are plain HTTP, and the API server itself does not
accept such a token. ``kubectl create token NAME --audience gputopo`` issues one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from gputopo.kube.client import Kube
from gputopo.kube.rbac import ACCESS_REVIEWS, PODS, TOKEN_REVIEWS

AUDIENCE = "gputopo"
PAGE_READER = "gputopo-page-reader"
_ACCOUNTS = "system:serviceaccount:"


class PageUser(msgspec.Struct, frozen=True):
    """The bearer of a token, as the API server knows it."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}

    @property
    def tenant(self) -> str:
        """Return the tenant of its requests: all service accounts of a namespace, as a user may create many of them."""
        namespace, account = self.username.removeprefix(_ACCOUNTS).partition(":")[::2]
        return _ACCOUNTS + namespace if account and self.username.startswith(_ACCOUNTS) else self.username


class Verdict(NamedTuple):
    """The HTTP status for a reader of a page: 200, 401 (unknown token) or 403 (no permission); and the reason."""

    status: int
    reason: str = ""
    user: PageUser | None = None  # where the status is 200


class _Token(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: PageUser = PageUser()
    audiences: tuple[str, ...] = ()  # empty: the authenticator does not know audiences


class _Access(msgspec.Struct, frozen=True):
    allowed: bool = False


class _TokenReview(msgspec.Struct, frozen=True):
    status: _Token = _Token()


class _AccessReview(msgspec.Struct, frozen=True):
    status: _Access = _Access()


def review_reader(
    kube: Kube, token: str, path: str, audience: str | None = AUDIENCE, role: str = PAGE_READER
) -> Verdict:
    """Return whether the bearer of a token may ``get`` the non-resource URL ``path``. Raises ``KubeError``.

    ``audience``: of the token; None: the API server's own. ``role``: the ClusterRole that a refused reader lacks.
    """
    asked = {} if audience is None else {"audiences": [audience]}
    found = kube.review(TOKEN_REVIEWS, _body("TokenReview", token=token, **asked), _TokenReview).status
    if not found.authenticated or (audience is not None and audience not in found.audiences):
        where = "" if audience is None else f" for the audience {audience}"
        return Verdict(401, f"the API server does not accept this token{where}")
    if not _is_allowed(kube, found.user, {"nonResourceAttributes": {"path": path, "verb": "get"}}):
        return Verdict(403, f"{found.user.username} may not get {path}: bind it to the ClusterRole {role}")
    return Verdict(200, user=found.user)


def may_list_pods(kube: Kube, user: PageUser, namespace: str) -> bool:
    """Return whether a user may list the pods of a namespace; of "": of all namespaces. Raises ``KubeError``."""
    pods = {"verb": "list", "resource": PODS.plural, "version": PODS.version, "namespace": namespace}
    return _is_allowed(kube, user, {"resourceAttributes": pods})


def _is_allowed(kube: Kube, user: PageUser, attributes: dict[str, Any]) -> bool:
    who = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra}
    return kube.review(ACCESS_REVIEWS, _body("SubjectAccessReview", **attributes, **who), _AccessReview).status.allowed


def _body(kind: str, **spec: Any) -> dict[str, Any]:
    group = {"TokenReview": TOKEN_REVIEWS, "SubjectAccessReview": ACCESS_REVIEWS}[kind]
    return {"apiVersion": group.api_version, "kind": kind, "spec": spec}
