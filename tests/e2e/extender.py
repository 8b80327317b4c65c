"""A scheduler extender that answers as a test tells it, and keeps what it was asked."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from tests.api_objects import Object


class Request(NamedTuple):
    """One call of kube-scheduler."""

    line: str  # "POST /filter HTTP/1.1"
    headers: tuple[tuple[str, str], ...]  # in the order sent
    body: Object

    @property
    def verb(self) -> str:
        """The last part of the path: "filter"."""
        return self.line.split()[1].rpartition("/")[2]


Answer = Callable[[Object], Any]


def pass_all(arguments: Object) -> Object:
    """A filter's answer that keeps every node, by name or as objects, whichever was asked."""
    return {"NodeNames": arguments["NodeNames"], "Nodes": arguments["Nodes"]}


def no_preference(arguments: Object) -> list[Object]:
    """A prioritize answer that scores every node alike."""
    names = arguments["NodeNames"] or [item["metadata"]["name"] for item in arguments["Nodes"]["items"]]
    return [{"Host": name, "Score": 5} for name in names]


class RecordingExtender:
    """Listens on loopback within its ``with`` block."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: dict[str, Answer] = {"filter": pass_all, "prioritize": no_preference}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.extender = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()

    @property
    def verbs(self) -> list[str]:
        """The verbs called, in order."""
        return [request.verb for request in self.requests]

    def config(self, **fields: Any) -> str:
        """A KubeSchedulerConfiguration that calls this extender for GPU pods; ``fields`` are more of its fields."""
        extender = {
            "urlPrefix": f"http://127.0.0.1:{self._server.server_port}",
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "weight": 1,
            "nodeCacheCapable": True,
            "managedResources": [{"name": "nvidia.com/gpu", "ignoredByScheduler": False}],
        }
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "percentageOfNodesToScore": 100,
            "extenders": [extender | fields],
        }
        return msgspec.json.encode(document).decode()  # JSON is YAML

    def answer(self, request: Request) -> Any:
        """Keep a request, and answer as the test wants it."""
        self.requests.append(request)
        return self.answers[request.verb](request.body)


class _Server(ThreadingHTTPServer):
    extender: RecordingExtender

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Close what keep-alive holds open; the threads of those connections end."""
        for connection in tuple(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keep-alive: kube-scheduler reuses its connection
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = Request(self.requestline, tuple(self.headers.items()), msgspec.json.decode(body))
        answer = msgspec.json.encode(self.server.extender.answer(request))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Keep quiet."""


def without(document: Any, *paths: str) -> Any:
    """A copy of a document without some values: "Pod.metadata.uid"."""
    for path in paths:
        document = _without(document, path.split("."))
    return document


def _without(document: Any, path: list[str]) -> Any:
    if not isinstance(document, Mapping):
        return document
    head, *rest = path
    if not rest:
        return {key: value for key, value in document.items() if key != head}
    return {key: _without(value, rest) if key == head else value for key, value in document.items()}
