"""Requests that are large without a body: many headers, trailers, sizes of chunks, long URLs."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest
from starlette.types import Receive, Scope, Send

from tests.scheduler_core.runtime.served import Running, read_rest, serving

CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
KIBI = 1024


async def headers_after_body(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the number of bytes of the body, and the names of the headers when it has been read."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    answer = json.dumps([size, [name.decode() for name, _ in scope["headers"]]]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": answer})


def sent(running: Running, *parts: bytes) -> bytes:
    """Send the parts on a connection, as far as the server takes them; what it answers."""
    with running.connect() as connection:
        with contextlib.suppress(OSError):
            for each in parts:
                connection.sendall(each)
            connection.shutdown(socket.SHUT_WR)
        return read_rest(connection)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((CHUNKED, b"0\r\n", *[b"T: %s\r\n" % (b"v" * 16 * KIBI)] * 64), id="long trailers"),
        pytest.param((CHUNKED, b"0\r\nT: ", *[b"v" * 64 * KIBI] * 16), id="one long trailer"),
        pytest.param((CHUNKED, *[b"1;" + b"e" * 16 * KIBI + b"\r\na\r\n"] * 64), id="chunk extensions"),
        pytest.param((CHUNKED, *[b"0" * 64 * KIBI] * 16), id="a long size of a chunk"),
        pytest.param((b"GET / HTTP/1.1\r\nX: ", *[b"v" * 64 * KIBI] * 16), id="one long header"),
    ],
)
def test_a_request_that_grows_without_its_body_is_cut(parts: tuple[bytes, ...]) -> None:
    with serving(headers_after_body) as running:
        sent(running, *parts)
        assert running.listener.closed["head"] == 1


@pytest.mark.parametrize(
    "request_text",
    [
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n", id="headers"),
        pytest.param(CHUNKED + b"0\r\n" + b"X: y\r\n" * 99 + b"\r\n", id="headers and trailers"),
        pytest.param(b"GET /" + b"%61" * 3 * KIBI + b" HTTP/1.1\r\n\r\n", id="escapes in the URL"),
        pytest.param(b"GET /?" + b"a=1&" * 3 * KIBI + b" HTTP/1.1\r\n\r\n", id="parameters"),
    ],
)
def test_a_request_of_many_parts_is_refused(request_text: bytes) -> None:
    with serving(headers_after_body) as running:
        assert sent(running, request_text).startswith(b"HTTP/1.1 400 ")


def test_trailers_are_no_headers_and_chunks_may_be_small() -> None:
    body = b"".join(b"1\r\na\r\n" for _ in range(8 * KIBI)) + b"0\r\nAuthorization: Bearer x\r\n\r\n"
    with serving(headers_after_body) as running:
        answer = sent(running, CHUNKED + body).partition(b"\r\n\r\n")[2]

    assert json.loads(answer[answer.index(b"[") : answer.rindex(b"]") + 1]) == [
        8 * KIBI,
        ["host", "transfer-encoding"],
    ]


def test_a_large_body_is_no_credit_for_trailers() -> None:
    body = b"100000\r\n" + b" " * KIBI * KIBI + b"\r\n0\r\nT: "
    with serving(headers_after_body) as running:
        sent(running, CHUNKED + body, *[b"v" * 64 * KIBI] * 16)
        assert running.listener.closed["head"] == 1
