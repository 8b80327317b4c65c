"""Pages of a server that is slow, or ends too early."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from gputopo.process.page_reader import PageError, read_pages

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"


@contextmanager
def server(pieces: Iterator[bytes]) -> Iterator[str]:
    """Answer one request with these pieces, then close the connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(4096)
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/gangs"
        thread.join()


def one_byte_after_another() -> Iterator[bytes]:
    yield HEAD
    for _ in range(100):
        time.sleep(0.02)
        yield b"x"


def test_a_server_that_sends_byte_by_byte_keeps_no_command_waiting() -> None:
    """Each byte comes in time; all of them would take two seconds."""
    with server(one_byte_after_another()) as url, pytest.raises(PageError, match=r"the page took more than 0\.2 s"):
        list(read_pages(url, timeout_s=0.2))


def test_a_page_that_ends_too_early_is_an_error() -> None:
    with server(iter([HEAD, b"half"])) as url, pytest.raises(PageError, match="no answer from"):
        list(read_pages(url))


def test_a_page_in_pieces_is_whole() -> None:
    with server(iter([HEAD, b"a" * 60, b"b" * 40])) as url:
        assert b"".join(read_pages(url)) == b"a" * 60 + b"b" * 40


def test_a_refused_connection_is_reported_without_the_client_library() -> None:
    with pytest.raises(PageError, match=r"^no answer from http://127\.0\.0\.1:9/gangs: connection refused$"):
        list(read_pages("http://127.0.0.1:9/gangs", None))
