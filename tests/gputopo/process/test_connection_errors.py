"""The reasons of connections that fail, with real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
import urllib3

from gputopo.process.connection_errors import no_answer_reason


@contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that answers each connection so; its address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            while True:
                try:
                    connected, _ = listener.accept()
                except OSError:
                    return
                with connected:
                    answer(connected)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def reason_of(url: str) -> str:
    try:
        urllib3.request("GET", url, retries=False, timeout=0.5)
    except urllib3.exceptions.HTTPError as error:
        return no_answer_reason(error)
    raise AssertionError("it answered")


def ends_early(connected: socket.socket) -> None:
    connected.recv(1000)
    connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")


def is_no_http(connected: socket.socket) -> None:
    connected.recv(1000)
    connected.sendall(b"hello there\r\n\r\n")


def closes(connected: socket.socket) -> None:
    connected.recv(1000)


def says_nothing(connected: socket.socket) -> None:
    connected.recv(1000)
    connected.recv(1000)


@pytest.mark.parametrize(
    ("answer", "scheme", "reason"),
    [
        pytest.param(ends_early, "http", "the answer broke off", id="a body that is too short"),
        pytest.param(is_no_http, "http", "the answer is not HTTP", id="another protocol"),
        pytest.param(is_no_http, "https", "no TLS connection: wrong version number", id="no TLS"),
        pytest.param(closes, "http", "it closed the connection without an answer", id="closed"),
        pytest.param(says_nothing, "http", "it did not answer in time, within 0.5 s", id="silent"),
    ],
)
def test_the_reason_names_no_class_of_python(answer: Callable[[socket.socket], None], scheme: str, reason: str) -> None:
    with peer(answer) as address:
        assert reason_of(f"{scheme}://{address}/") == reason


def test_nobody_listens_there() -> None:
    assert reason_of("http://127.0.0.1:9/") == "connection refused"
    assert reason_of("https://nowhere.invalid/").startswith("the name of the host cannot be resolved (")


def test_a_proxy_that_cannot_be_reached() -> None:
    with pytest.raises(urllib3.exceptions.HTTPError) as caught:
        urllib3.ProxyManager("http://127.0.0.1:9").request("GET", "https://example.com/", retries=False)

    assert no_answer_reason(caught.value) == "the proxy cannot be used: connection refused"
