"""One call of the registry protocol (OCI distribution specification 1.1): the digest behind a tag."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import urlencode

import msgspec
import urllib3

from gputopo.process.decoding import decode

MAX_BYTES = 4 << 20  # of a manifest, as registries limit them
# An index before a manifest of one platform: the digest must be valid on all platforms.
_MEDIA_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ACCEPT = ", ".join(_MEDIA_TYPES)
_HOSTS = {"docker.io": "registry-1.docker.io"}
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class RegistryError(Exception):
    """A registry did not answer, or refused."""


class _RegistryToken(msgspec.Struct):
    token: str = ""
    access_token: str = ""


def fetch_digest(http: urllib3.PoolManager, name: str, tag: str, scheme: str = "https") -> str:
    """Return "sha256:..." of the manifest of NAME:TAG, computed from its bytes. Raises ``RegistryError``."""
    host, _, repository = name.partition("/")
    url = f"{scheme}://{_HOSTS.get(host, host)}/v2/{repository}/manifests/{tag}"
    status, headers, body = _get(http, url, {"Accept": _ACCEPT})
    if status == 401:  # anonymous access needs a token, too
        token = _fetch_token(http, url, headers.get("WWW-Authenticate", ""))
        status, headers, body = _get(http, url, {"Accept": _ACCEPT, "Authorization": f"Bearer {token}"})
    if status != 200:
        raise RegistryError(f"{name}:{tag}: {url} answers {status}: {body[:200]!r}")
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    named = headers.get("Docker-Content-Digest", digest)
    if named != digest:
        raise RegistryError(f"{name}:{tag}: the registry names {named}, but its bytes have {digest}")
    return digest


def _fetch_token(http: urllib3.PoolManager, url: str, challenge: str) -> str:
    fields = dict(_CHALLENGE.findall(challenge))
    if not challenge.startswith("Bearer ") or "realm" not in fields:
        raise RegistryError(f"{url} asks for credentials that are not a bearer token: {challenge!r}")
    query = urlencode({key: value for key, value in fields.items() if key in {"service", "scope"}})
    status, _, body = _get(http, f"{fields['realm']}?{query}", {})
    try:
        found = decode(body, _RegistryToken)
    except msgspec.DecodeError as error:
        raise RegistryError(f"{fields['realm']} answers {status} without a token: {error}") from error
    return found.token or found.access_token


def _get(http: urllib3.PoolManager, url: str, headers: dict[str, str]) -> tuple[int, urllib3.HTTPHeaderDict, bytes]:
    try:
        response = http.request("GET", url, headers=headers, preload_content=False)
        body = response.read(MAX_BYTES + 1)
        response.drain_conn() if len(body) <= MAX_BYTES else response.close()
    except urllib3.exceptions.HTTPError as error:
        raise RegistryError(f"{url}: no answer: {error}") from error
    if len(body) > MAX_BYTES:
        raise RegistryError(f"{url}: more than {MAX_BYTES} bytes")
    return response.status, urllib3.HTTPHeaderDict(response.headers), body
