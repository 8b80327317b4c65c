"""What the API server, or the way to it, can answer instead of what was asked.

KubeError(Exception)        any of these; a plain one is a request that the server will never take (400, 422)
├── ConfigError             there are no credentials to reach a cluster with
├── UnavailableError        nobody answered, or the server is busy (429, 5xx): try again, after ``retry_after``
│   └── DamagedError        what was answered is not JSON: asking for the same again may bring the same
├── ForbiddenError          the server knows us and refuses, or does not know us (401, 403)
├── NotFoundError           no such object; ``kind_missing``: the server does not even serve that kind
├── ConflictError           the object changed or exists; ``fields``: other field managers own these (409)
└── GoneError               that resource version is too old, or of another history: list again (410)
"""

from __future__ import annotations

import re

import msgspec

from gputopo.process.decoding import decode


class KubeError(Exception):
    """The API server did not do what was asked."""


class ConfigError(KubeError):
    """There are no credentials to reach a cluster with."""


class UnavailableError(KubeError):
    """Nobody answered, or the server is busy."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds, where the server said so


class ForbiddenError(KubeError):
    """The server refuses this caller."""


class NotFoundError(KubeError):
    """There is no such object, or no such kind."""

    def __init__(self, message: str, *, kind_missing: bool) -> None:
        super().__init__(message)
        self.kind_missing = kind_missing


class ConflictError(KubeError):
    """The object is not as the request assumed."""

    def __init__(self, message: str, fields: dict[str, str]) -> None:
        super().__init__(message)
        self.fields = fields  # path, as in ".metadata.labels.nvidia.com/gpu.count" -> the manager that owns it


class GoneError(KubeError):
    """The resource version, or the list that a continue token belongs to, is too old."""


class DamagedError(UnavailableError):
    """What was answered is no JSON, or not the JSON that it should be, as a whole."""


class _Cause(msgspec.Struct):
    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, rename="camel"):
    name: str = ""
    causes: list[_Cause] = []
    retry_after_seconds: float = 0


class _Status(msgspec.Struct):
    """``metav1.Status``: the body of every refusal that Kubernetes itself writes."""

    message: str = ""
    details: _Details | None = None


# kube-apiserver: `conflict with "kubectl-label" using v1`, with `using v1` or a time only for some operations.
_OWNER = re.compile(r'conflict with "(?P<manager>[^"]*)"')


def error_of_response(call: str, status: int, body: bytes, retry_after: str | None = None) -> KubeError:
    """The error that an answer of status 400 or more means. ``retry_after`` is the header of that name."""
    told = _status(body)
    details = told.details or _Details()
    message = f"{call}: {status}: {told.message}"
    if status in (401, 403):
        return ForbiddenError(message)
    if status == 404:
        return NotFoundError(message, kind_missing=not details.name)
    if status == 409:
        return ConflictError(message, _owners(details.causes))
    # A server that was restored from a backup would ask us to try again (504) for ever.
    if status == 410 or any(cause.reason == "ResourceVersionTooLarge" for cause in details.causes):
        return GoneError(message)
    if status == 429 or status >= 500:
        return UnavailableError(message, _seconds(retry_after) or details.retry_after_seconds or None)
    return KubeError(message)


def _status(body: bytes) -> _Status:
    """The body, where it is a Status; else (a proxy's page, "404 page not found") its beginning as the message."""
    try:
        return decode(body, _Status)
    except msgspec.DecodeError:
        return _Status(message=body[:200].decode(errors="replace").strip() or "(no body)")


def _owners(causes: list[_Cause]) -> dict[str, str]:
    owned = [cause for cause in causes if cause.reason == "FieldManagerConflict"]
    found = [(cause.field, _OWNER.search(cause.message)) for cause in owned]
    return {field: match["manager"] if match else "an unnamed manager" for field, match in found}


def _seconds(retry_after: str | None) -> float | None:
    """``Retry-After`` in seconds; kube-apiserver never sends the form that is a date."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
