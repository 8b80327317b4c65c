"""Requests over the connections, and with the credentials, of the official client package. I/O.

The package prepares each request anew: for a patch of a pod this takes a third of the client's CPU time, most of it for
reading the proxy settings from the environment. So the host and the headers that it returns are used for some seconds.
It renews credentials minutes before they expire.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from urllib3.connection import HTTPSConnection
from urllib3.poolmanager import pool_classes_by_scheme
from urllib3.util import Url, parse_url
from urllib3.util.ssl_ import create_urllib3_context, resolve_cert_reqs

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from urllib3 import BaseHTTPResponse

_PREPARED_S = 5.0


class Request(NamedTuple):
    """A request to the API server."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Mapping[str, object] | None = None

    @property
    def title(self) -> str:
        """Method and path."""
        return f"{self.method} {self.path}"


class _Prepared(NamedTuple):
    host: Url
    headers: dict[str, str]
    until: float  # by the monotonic clock


class _Connection(HTTPSConnection):
    """A connection that does without ``VERIFY_X509_STRICT``.

    From Python 3.13 on, OpenSSL would also require extensions of RFC 5280 that the certificates of some clusters lack,
    such as key identifiers.
    """

    def _new_conn(self) -> socket.socket:
        """Connect, then make a context of its own: the files of the CA may have been replaced."""
        connected = super()._new_conn()
        context = create_urllib3_context(cert_reqs=resolve_cert_reqs(self.cert_reqs))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self.ca_certs and not self.ca_cert_data:
            context.load_default_certs()
        self.ssl_context = context
        return connected


class _Pool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Connection


def relax_certificate_checks(api: ApiClient) -> None:
    """Make a client accept all certificates that kubectl accepts. Connections through a SOCKS proxy stay strict."""
    manager = api.rest_client.pool_manager
    if manager.pool_classes_by_scheme is pool_classes_by_scheme:
        manager.pool_classes_by_scheme = {**pool_classes_by_scheme, "https": _Pool}


class Transport:
    """Sends requests. Thread-safe."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._prepared: _Prepared | None = None

    def send(self, request: Request, timeout: tuple[float, float]) -> BaseHTTPResponse:
        """Return the response, of any status, without its body. Raises the errors of urllib3 and of the package."""
        prepared = self._prepared
        if prepared is None or time.monotonic() > prepared.until:
            prepared = self._prepared = self._prepare()
        host, manager = prepared.host, self._api.rest_client.pool_manager
        target = (host.path or "").rstrip("/") + request.path
        if request.query:
            target += f"?{urlencode(request.query, quote_via=quote)}"
        options = {
            "body": None if request.body is None else msgspec.json.encode(request.body),
            "headers": {**prepared.headers, **request.headers},
            "timeout": urllib3.Timeout(*timeout),
            "retries": False,
            "redirect": False,
            "preload_content": False,
        }
        response: BaseHTTPResponse
        if manager.proxy is None:  # without parsing the URL and merging options for each request
            pool = manager.connection_from_host(host.host, host.port, host.scheme)
            response = pool.urlopen(request.method, target, **options)
        else:
            response = manager.urlopen(request.method, f"{host.scheme}://{host.netloc}{target}", **options)
        if response.status == 401:
            self._prepared = None
        return response

    def _prepare(self) -> _Prepared:
        until = time.monotonic() + _PREPARED_S
        _, url, headers, *_ = self._api.param_serialize("GET", "", auth_settings=["BearerToken"])
        return _Prepared(parse_url(url), headers, until)
