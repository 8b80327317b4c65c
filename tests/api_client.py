"""A small client of the Kubernetes API for tests: paths in, decoded JSON out, and nothing in between.

ApiError(Exception)      the server refused; ``status`` is the HTTP status, ``reason`` the API's word for it
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import urllib3

from gputopo.process.decoding import decode
from tests.api_objects import Object

CONTENT_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, call: str, status: int, body: bytes) -> None:
        try:
            answer = decode(body, dict)
        except msgspec.DecodeError:
            answer = {}
        self.status = status
        self.reason: str | None = answer.get("reason")
        self.message: str = answer.get("message") or body.decode(errors="replace")
        super().__init__(f"{call}: {status} {self.reason or ''}: {self.message}")


class Watch:
    """The events of a watch: (type, object), until the server ends it or another thread stops it."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._is_stopped = False

    def __iter__(self) -> Iterator[tuple[str, Object]]:
        rest = b""
        with contextlib.closing(self._response), contextlib.suppress(urllib3.exceptions.HTTPError):
            for chunk in self._response.stream():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if self._is_stopped:
                        return
                    event = decode(line, dict)
                    if event["type"] == "ERROR":  # most often 410: too old, list again
                        return
                    yield event["type"], event["object"]

    def stop(self) -> None:
        """End it; the thread that iterates goes on after its loop.

        What the socket still delivers after this is not decrypted any more.
        """
        self._is_stopped = True
        with contextlib.suppress(ValueError, RuntimeError, OSError):  # it has ended
            self._response.shutdown()


class Client:
    """Calls one API server as one user, from any number of threads."""

    def __init__(
        self,
        server: str,
        authority: Path | None,
        *,
        certificate: Path | None = None,
        token: str | None = None,
        connections: int = 64,
    ) -> None:
        self.server = server
        self._headers = {"User-Agent": "gputopo-e2e", "Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = urllib3.PoolManager(
            maxsize=connections,
            ca_certs=None if authority is None else str(authority),
            cert_file=None if certificate is None else str(certificate),
            retries=False,
            timeout=urllib3.Timeout(connect=5, read=60),
        )

    def impersonating(self, user: str, *groups: str, agent: str = "gputopo-e2e") -> Client:
        """The same connections as another user, whom the audit log then names; an administrator may ask that."""
        other = Client.__new__(Client)
        other.server, other._pool = self.server, self._pool
        other._headers = {**self._headers, "Impersonate-User": user, "User-Agent": agent}
        if groups:
            (other._headers["Impersonate-Group"],) = groups
        return other

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.clear()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One call; the decoded answer. Raises ``ApiError`` for a status of 300 or more."""
        response = self._pool.request(
            method,
            self._url(path, query),
            body=None if body is None else msgspec.json.encode(body),
            headers={**self._headers, "Content-Type": "application/json", **(headers or {})},
        )
        if response.status >= 300:
            raise ApiError(f"{method} {path}", response.status, response.data)
        if not response.headers.get("Content-Type", "").startswith("application/json"):
            return response.data.decode()  # /readyz, /metrics
        return decode(response.data, dict)

    def create_all(self, objects: Iterable[tuple[str, Object]], workers: int = 16) -> list[Object]:
        """POST many objects at a time: (collection, object). For 5,000 nodes one by one would take a minute."""
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda each: self.create(*each), objects))

    def get(self, path: str, **query: str) -> Any:
        """GET: an object, or a list."""
        return self.request("GET", path, query=query)

    def items(self, path: str, **query: str) -> list[Object]:
        """The items of a list, unpaged."""
        return list(self.get(path, **query).get("items") or ())

    def create(self, path: str, body: Object, **query: str) -> Any:
        """POST to a collection or a subresource; the object as stored."""
        return self.request("POST", path, body, query=query)

    def patch(self, path: str, body: Any, kind: str = "merge", **query: str) -> Any:
        """PATCH; ``kind`` is a key of ``CONTENT_TYPES``. Server-side apply wants ``fieldManager=``."""
        return self.request("PATCH", path, body, query=query, headers={"Content-Type": CONTENT_TYPES[kind]})

    def replace(self, path: str, body: Object) -> Any:
        """PUT."""
        return self.request("PUT", path, body)

    def delete(self, path: str, grace_s: int | None = 0, uid: str | None = None) -> None:
        """DELETE an object or a collection; an object that is gone already is fine."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            self.request("DELETE", path, options)
        except ApiError as refused:
            if refused.status != 404 and not (refused.status == 409 and uid is not None):
                raise

    def watch(self, path: str, version: str, timeout_s: int = 600, **query: str) -> Watch:
        """Events after a resource version. Raises ``ApiError`` if the server refuses; 410: that version is gone."""
        query |= {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(timeout_s)}
        response = self._pool.request(
            "GET",
            self._url(path, query),
            headers=self._headers,
            preload_content=False,
            timeout=urllib3.Timeout(connect=5, read=timeout_s + 10),
        )
        if response.status >= 300:
            raise ApiError(f"watch {path}", response.status, response.data)
        return Watch(response)

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        return f"{self.server}{path}?{urlencode(query)}" if query else f"{self.server}{path}"
