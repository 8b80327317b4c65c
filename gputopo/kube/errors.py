"""Errors of calls to the API server.

KubeError(Exception)        base class; itself: the server rejects the request for good (400, 422)
├── ConfigError             no usable credentials
├── UnavailableError        no answer, or the server is busy (429, 5xx): retry, after ``retry_after``
│   └── DamagedError        the answer is not JSON; the same request may get the same answer
├── ForbiddenError          the server denies access (401, 403)
├── NotFoundError           no such object; ``kind_missing``: the server does not serve the kind
├── TooLongError            a list has more bytes than ``ListOptions.most_bytes``
├── BudgetError             a disruption budget does not allow an eviction now (429, cause DisruptionBudget)
├── ConflictError           the object has changed or exists; ``fields``: owned by other field managers (409)
└── GoneError               the resource version is too old, or of another history: list again (410)
"""

from __future__ import annotations

import re

import msgspec

from gputopo.process.decoding import decode


class KubeError(Exception):
    """A call to the API server failed."""


class ConfigError(KubeError):
    """There are no usable credentials."""


class UnavailableError(KubeError):
    """No answer, or the server is busy."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds, if the server sent it


class ForbiddenError(KubeError):
    """The server denies access."""


class NotFoundError(KubeError):
    """The object or the kind does not exist."""

    def __init__(self, message: str, *, kind_missing: bool) -> None:
        super().__init__(message)
        self.kind_missing = kind_missing


class ConflictError(KubeError):
    """The object is not in the state that the request requires."""

    def __init__(self, message: str, fields: dict[str, str]) -> None:
        super().__init__(message)
        self.fields = fields  # path, as in ".metadata.labels.nvidia.com/gpu.count" -> the manager that owns it


class TooLongError(KubeError):
    """A list has more bytes than the caller allows."""


class BudgetError(KubeError):
    """A PodDisruptionBudget does not allow the eviction of a pod now."""


class GoneError(KubeError):
    """The resource version, or the list that a continue token belongs to, is too old."""


class DamagedError(UnavailableError):
    """The answer is not JSON, or not JSON of the expected structure."""


class _Cause(msgspec.Struct):
    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, rename="camel"):
    name: str = ""
    causes: list[_Cause] = []
    retry_after_seconds: float = 0


class _Status(msgspec.Struct):
    """``metav1.Status``: the body of every error response of Kubernetes."""

    message: str = ""
    details: _Details | None = None


# kube-apiserver, status 500: the eviction of a pod with several budgets is never allowed.
_MANY_BUDGETS = "more than one PodDisruptionBudget"
# kube-apiserver, status 500: etcd or its client refuses the size of the object, now and at every later attempt.
_TOO_LARGE = ("request is too large", "message larger than max")
# kube-apiserver: `conflict with "kubectl-label" using v1`, with `using v1` or a time only for some operations.
_OWNER = re.compile(r'conflict with "(?P<manager>[^"]*)"')


def error_of_response(call: str, status: int, body: bytes, retry_after: str | None = None) -> KubeError:
    """Return the error of a response with status 400 or higher. ``retry_after``: the header."""
    response = _status(body)
    details = response.details or _Details()
    message = f"{call}: {status}: {response.message}"
    if status in (401, 403):
        return ForbiddenError(message)
    if status == 404:
        return NotFoundError(message, kind_missing=not details.name)
    if status == 409:
        return ConflictError(message, _owners(details.causes))
    if any(cause.reason == "DisruptionBudget" for cause in details.causes) or _MANY_BUDGETS in response.message:
        return BudgetError("; ".join([message, *(each.message for each in details.causes if each.message)]))
    # A server that was restored from a backup answers 504 (retry) forever.
    if status == 410 or any(cause.reason == "ResourceVersionTooLarge" for cause in details.causes):
        return GoneError(message)
    if status == 500 and any(each in response.message for each in _TOO_LARGE):
        return KubeError(message)
    if status == 429 or status >= 500:
        return UnavailableError(message, _seconds(retry_after) or details.retry_after_seconds or None)
    return KubeError(message)


def _status(body: bytes) -> _Status:
    """Return the body if it is a Status; else (a proxy's page, "404 page not found") its beginning as the message."""
    try:
        return decode(body, _Status)
    except msgspec.DecodeError:
        return _Status(message=body[:200].decode(errors="replace").strip() or "(no body)")


def _owners(causes: list[_Cause]) -> dict[str, str]:
    owned = [cause for cause in causes if cause.reason == "FieldManagerConflict"]
    found = [(cause.field, _OWNER.search(cause.message)) for cause in owned]
    return {field: match["manager"] if match else "an unnamed manager" for field, match in found}


def _seconds(retry_after: str | None) -> float | None:
    """Return ``Retry-After`` in seconds; kube-apiserver never sends a date."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
