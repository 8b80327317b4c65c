"""Calls to the API server, with the credentials, TLS and connections of the official client package.

The package's models are never imported: bodies are decoded into ``gputopo.kube.objects``. Every call has a timeout and
is not retried here. Calls raise the errors of ``gputopo.kube.errors``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec
import urllib3

from gputopo.kube.errors import GoneError, KubeError, TooLongError, UnavailableError, error_of_response
from gputopo.kube.objects import ListPage, ObjectMeta, PartialObject, Unreadable
from gputopo.kube.paging import MAX_PAGE_BYTES, PAGE, following_size, smaller_size
from gputopo.kube.rbac import EVICTIONS, Resource, Role
from gputopo.kube.run_ahead import run_ahead
from gputopo.kube.transport import Request, Transport
from gputopo.kube.watch_stream import WatchStream, name_of
from gputopo.process.connection_errors import no_answer_reason
from gputopo.process.decoding import decode, decoder_without_repair
from gputopo.timing import WATCH_TIMEOUT_S

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from urllib3 import BaseHTTPResponse

T = TypeVar("T")
P = TypeVar("P", bound=ListPage[Any])
CONNECT_S, READ_S = 5.0, 30.0
_CHUNK_BYTES = 1 << 16  # of a page, per read: glibc maps longer pieces anew, and the kernel clears them
APPLY = "application/apply-patch+yaml"  # JSON is YAML
MERGE = "application/merge-patch+json"
JSON = "application/json"
_NO_PARAMETERS: Mapping[str, str] = {}
_METADATA_ONLY = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


class ListOptions(NamedTuple):
    """Options of a list, a watch or a get."""

    namespace: str | None = None
    labels: str = ""  # a label selector
    fields: str = ""  # a field selector: "status.phase=Running"
    metadata_only: bool = False  # the server sends only the metadata
    most_bytes: int | None = None  # a list: of all pages together; else ``TooLongError``
    version: str = ""  # get: not older than this resource version, from the server's cache; "0": any


class Kube:
    """A connection to an API server, as a user, with a role. Thread-safe."""

    from_file = False  # True: the objects are those of a file

    def __init__(
        self,
        api: ApiClient,
        role: Role,
        *,
        connect_s: float = CONNECT_S,
        read_s: float = READ_S,
        silence_s: float = WATCH_TIMEOUT_S,
    ) -> None:
        self._api = api
        self._transport = Transport(api)
        self._role = role
        self._timeout = (connect_s, read_s)
        self._watch_timeout = (connect_s, silence_s)
        # Objects of lists that could not be decoded, for the caller to report. Reflectors report those of watches.
        self.unreadable: list[Unreadable] = []

    def lists(self, resource: Resource) -> bool:  # noqa: ARG002  a file may lack kinds
        """Return whether a list shows all objects of a kind; False: the file has none, although the cluster may."""
        return True

    def with_timeout(self, seconds: float) -> Kube:
        """Return the same connection with another timeout; it is closed with this connection."""
        return Kube(self._api, self._role, connect_s=min(seconds, CONNECT_S), read_s=seconds)

    def with_role(self, role: Role) -> Kube:
        """Return the same connection, of the same user, with the permitted calls of another role."""
        return Kube(self._api, role, connect_s=self._timeout[0], read_s=self._timeout[1])

    def now(self) -> float:
        """Return the time that the ages of objects are counted to, in seconds since 1970."""
        return time.time()

    def recorded_at(self) -> float | None:
        """Return the time of the objects that are listed now, in seconds since 1970; None: unknown."""
        return time.time()

    def close(self) -> None:
        """Close the idle connections."""
        self._api.close()

    def get(self, resource: Resource, name: str, kind: type[T], query: ListOptions = ListOptions()) -> T:  # noqa: B008  frozen
        """Return an object. Raises ``NotFoundError``."""
        self._assert_permitted(resource, "get")
        parameters = {"resourceVersion": query.version} if query.version else {}
        path = resource.path(name, query.namespace)
        return _decoded(self._call("GET", path, parameters, _accept(query, "")), kind, path)

    def list_pages(
        self,
        resource: Resource,
        kind: type[T],
        query: ListOptions = ListOptions(),  # noqa: B008
    ) -> Iterator[ListPage[T]]:
        """Yield all objects in pages. Raises ``GoneError`` if the list expires between two pages."""
        page_of: Any = ListPage  # the type is made at run time
        path = resource.path(namespace=query.namespace)
        return self._decoded_pages(resource, query, lambda body: _decoded(body, page_of[kind], path))

    def list_readable(
        self,
        resource: Resource,
        kind: type[T],
        query: ListOptions = ListOptions(),  # noqa: B008
    ) -> Iterator[ListPage[T | msgspec.Raw]]:
        """Yield all objects in pages. A page with an object that cannot be decoded consists of undecoded objects.

        So a usual page is parsed once, and a damaged object cannot hide the others. Raises as ``list_pages``.
        """
        page_of: Any = ListPage
        path = resource.path(namespace=query.namespace)
        decode_page = decoder_without_repair(page_of[kind])

        def decoded(body: bytes | bytearray) -> ListPage[T | msgspec.Raw]:
            try:
                return cast("ListPage[T | msgspec.Raw]", decode_page(body))
            except (ValueError, RecursionError):  # ValueError includes DecodeError and UnicodeError
                return cast("ListPage[T | msgspec.Raw]", _decoded(body, page_of[msgspec.Raw], path))

        return self._decoded_pages(resource, query, decoded)

    def list_objects(self, resource: Resource, kind: type[T], query: ListOptions = ListOptions()) -> list[T]:  # noqa: B008
        """Return all objects that can be decoded; add the others to ``unreadable``.

        If the list expires between two pages, it is repeated once.
        """
        try:
            found, unreadable = self._decode_items(resource, kind, query)
        except GoneError:
            found, unreadable = self._decode_items(resource, kind, query)
        self.unreadable += unreadable
        return found

    def watch(self, resource: Resource, query: ListOptions, version: str, seconds: float) -> WatchStream:
        """Watch objects from a resource version, with bookmarks, for about ``seconds``.

        Raises ``GoneError`` if the version is too old (the watch may also raise it later), ``NotFoundError`` if the
        kind is not served.
        """
        self._assert_permitted(resource, "watch")
        following = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(round(seconds))}
        parameters = _selectors(query) | following | {"allowWatchBookmarks": "true"}
        request = Request("GET", resource.path(namespace=query.namespace), parameters, _accept(query, ""))
        return WatchStream(f"watch {request.path}", self._open(request, self._watch_timeout))

    def apply(self, resource: Resource, manager: str, body: dict[str, Any], *, force: bool = False) -> ObjectMeta:
        """Apply an object (server-side apply). Return its new metadata.

        Fields that ``manager`` applied before and that are missing in ``body`` are removed. With ``metadata.uid``, and
        for a subresource, no object is created. Raises ``ConflictError``, with the ``fields`` of other owners, and
        changes nothing then. With ``force``, fields of other owners are overwritten.
        """
        self._assert_permitted(resource, "patch")
        if "uid" not in body["metadata"] and not resource.subresource:
            self._assert_permitted(resource, "create")
        parameters = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"}
        return self._write("PATCH", resource, body, APPLY, parameters)

    def create(self, resource: Resource, body: dict[str, Any]) -> ObjectMeta:
        """Create an object. Raises ``ConflictError`` if it exists."""
        self._assert_permitted(resource, "create")
        return self._write("POST", resource, body, JSON)

    def review(self, resource: Resource, body: dict[str, Any], kind: type[T]) -> T:
        """Return the answer to a review, such as a TokenReview, which the API server does not store."""
        self._assert_permitted(resource, "create")
        headers = {"Content-Type": JSON, "Accept": JSON}
        return _decoded(self._call("POST", resource.path(), {}, headers, body), kind, resource.path())

    def replace(self, resource: Resource, body: dict[str, Any]) -> ObjectMeta:
        """Replace the object with the resource version in the metadata.

        Raises ``ConflictError`` if it has changed since, ``NotFoundError`` if it does not exist.
        """
        self._assert_permitted(resource, "update")
        _assert_preconditions(resource, body["metadata"], "resourceVersion")
        return self._write("PUT", resource, body, JSON)

    def patch(self, resource: Resource, body: dict[str, Any]) -> ObjectMeta:
        """Merge a body into the object with the uid and the resource version in its metadata (RFC 7396).

        None removes a field; a list is replaced as a whole. Raises ``ConflictError`` if the object has changed since or
        has another uid, ``NotFoundError`` if it does not exist.
        """
        self._assert_permitted(resource, "patch")
        _assert_preconditions(resource, body["metadata"], "uid", "resourceVersion")
        return self._write("PATCH", resource, body, MERGE)

    def delete(
        self, resource: Resource, metadata: ObjectMeta, *, unchanged: bool = False, only_ask: bool = False
    ) -> None:
        """Delete the object with this uid. Raises ``NotFoundError``, ``ConflictError``.

        ``unchanged``: only if it still has this resource version. ``only_ask``: a dry run.
        """
        self._assert_permitted(resource, "delete")
        version = {"resourceVersion": metadata.resource_version} if unchanged else {}
        dry = {"dryRun": ["All"]} if only_ask else {}
        header = {"kind": "DeleteOptions", "apiVersion": "v1"}
        body = {**header, "preconditions": {"uid": metadata.uid, **version}, **dry}
        path = resource.path(metadata.name, metadata.namespace or None)
        self._call("DELETE", path, {}, {"Content-Type": JSON, "Accept": JSON}, body)

    def evict(self, metadata: ObjectMeta, grace_s: int | None = None, *, dry_run: bool = False) -> None:
        """Evict the pod with this uid (policy/v1 Eviction), within its disruption budgets.

        ``grace_s``: the grace period in place of ``terminationGracePeriodSeconds``, also of a pod that terminates
        already and has a longer one. None: the pod's own. ``dry_run``: only check it; the budgets are not charged.

        Raises ``BudgetError``, ``NotFoundError``, and ``ConflictError`` if another pod has its name.
        """
        self._assert_permitted(EVICTIONS, "create")
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": metadata.name, "namespace": metadata.namespace},
            "deleteOptions": {"preconditions": {"uid": metadata.uid}}
            | ({} if grace_s is None else {"gracePeriodSeconds": grace_s}),
        }
        path = EVICTIONS.path(metadata.name, metadata.namespace)
        query = {"dryRun": "All"} if dry_run else {}
        self._call("POST", path, query, {"Content-Type": JSON, "Accept": JSON}, body)

    def _decode_items(self, resource: Resource, kind: type[T], query: ListOptions) -> tuple[list[T], list[Unreadable]]:
        found: list[T] = []
        unreadable: list[Unreadable] = []
        for page in self.list_readable(resource, kind, query):
            for each in page.items:
                try:
                    found.append(decode(each, kind) if isinstance(each, msgspec.Raw) else each)
                except msgspec.DecodeError as error:
                    unreadable.append(Unreadable(resource.plural, name_of(cast("msgspec.Raw", each)), str(error)))
        return found, unreadable

    def _decoded_pages(
        self, resource: Resource, query: ListOptions, decoded: Callable[[bytes | bytearray], P]
    ) -> Iterator[P]:
        """Yield all pages. The next page is requested while the caller works on the current one."""
        self._assert_permitted(resource, "list")
        path, headers = resource.path(namespace=query.namespace), _accept(query, "List")
        parameters = _selectors(query)
        body, size = self._read_page(path, parameters, headers, PAGE, left := query.most_bytes)
        page = decoded(body)
        while page.metadata.next:
            following = parameters | {"continue": page.metadata.next}
            left = None if left is None else left - len(body)
            wait = run_ahead(partial(self._read_page, path, following, headers, size, left))
            yield page
            body, size = wait()
            page = decoded(body)
        yield page

    def _read_page(
        self, path: str, parameters: Mapping[str, str], headers: Mapping[str, str], size: int, most: int | None
    ) -> tuple[bytes | bytearray, int]:
        """Return a page of at most ``size`` objects, and the size of the next one. ``most``: bytes that may be read."""
        call = f"GET {path}"
        while True:
            request = Request("GET", path, {**parameters, "limit": str(size)}, headers)
            response = self._open(request, self._timeout)
            body = self._read_at_most(call, response, MAX_PAGE_BYTES if most is None else min(MAX_PAGE_BYTES, most))
            if body is not None:
                return body, following_size(size, len(body))
            if most is not None and most <= MAX_PAGE_BYTES:
                raise TooLongError(f"{call}: the list has more bytes than are read")
            if size == 1:
                raise KubeError(f"{call}: the answer to limit=1 has more than {MAX_PAGE_BYTES >> 20} MiB")
            size = smaller_size(size)

    def _assert_permitted(self, resource: Resource, verb: str) -> None:
        if not self._role.allows(resource, verb):
            raise AssertionError(
                f"the role {self._role.name!r} may not {verb} {resource.rbac_name}: add it in gputopo.kube.rbac"
            )

    def _write(
        self,
        method: str,
        resource: Resource,
        body: dict[str, Any],
        content_type: str,
        parameters: Mapping[str, str] = _NO_PARAMETERS,
    ) -> ObjectMeta:
        """Write an object. Return its new metadata only, because objects can be large."""
        metadata = body["metadata"]
        path = resource.path(None if method == "POST" else metadata["name"], metadata.get("namespace"))
        headers = {"Content-Type": content_type, **_accept(ListOptions(metadata_only=True), "")}
        return _decoded(self._call(method, path, parameters, headers, body), PartialObject, path).metadata

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: dict[str, str],
        body: dict[str, Any] | None = None,
    ) -> bytes:
        request = Request(method, path, query, headers, body)
        return self._read_body(request.title, self._open(request, self._timeout))

    def _open(self, request: Request, timeout: tuple[float, float]) -> BaseHTTPResponse:
        """Send a request. Return the response, with a status below 400."""
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415  0.7 s; already loaded here
        from kubernetes.config import ConfigException  # noqa: PLC0415

        try:
            response = self._transport.send(request, timeout)
        except (urllib3.exceptions.HTTPError, ApiException, ConfigException, OSError) as error:
            raise self._no_answer_error(request.title, error) from error
        if response.status >= 400:
            body = self._read_body(request.title, response)
            raise error_of_response(request.title, response.status, body, response.headers.get("Retry-After"))
        return response

    def _read_body(self, call: str, response: BaseHTTPResponse) -> bytes:
        try:
            return response.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._no_answer_error(call, error) from error

    def _read_at_most(self, call: str, response: BaseHTTPResponse, most: int) -> bytearray | None:
        """Return the body; None: it is longer, and the connection is closed.

        The body is in memory once only: ``response.read()`` of recent Python versions has it there twice.
        """
        encoded = "Content-Encoding" in response.headers
        length = -1 if encoded else int(response.headers.get("Content-Length", -1))
        body = bytearray()
        try:
            if length > most:
                response.close()
                return None
            for chunk in response.stream(_CHUNK_BYTES, decode_content=encoded):
                body += chunk
                if len(body) > most:
                    response.close()
                    return None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._no_answer_error(call, error) from error
        return body

    def _no_answer_error(self, call: str, error: Exception) -> UnavailableError:
        return UnavailableError(f"{call}: no answer from {self._api.configuration.host}: {no_answer_reason(error)}")


def _assert_preconditions(resource: Resource, metadata: dict[str, Any], *preconditions: str) -> None:
    for each in preconditions:
        if not metadata.get(each):
            raise AssertionError(
                f"{resource.rbac_name} {metadata['name']}: without its {each}, changes by other clients would be lost"
            )


def _selectors(query: ListOptions) -> dict[str, str]:
    selected = {"labelSelector": query.labels, "fieldSelector": query.fields}
    return {name: value for name, value in selected.items() if value}


def _accept(query: ListOptions, suffix: str) -> dict[str, str]:
    return {"Accept": _METADATA_ONLY.format(suffix) if query.metadata_only else JSON}


def _decoded(body: bytes | bytearray, kind: type[T], path: str) -> T:
    try:
        return decode(body, kind)
    except msgspec.DecodeError as error:
        raise KubeError(f"{path}: the response cannot be decoded ({error}): {body[:80]!r}") from error
