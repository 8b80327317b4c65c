"""A daemon's peers come and go."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from gputopo.process.daemon import bind_socket

WRITES_TO_NOBODY = """
import os, signal
from gputopo.process.daemon import ignore_sigpipe
from gputopo.cli.terminal import run_program

def program():
    {first}
    reading, writing = os.pipe()
    os.close(reading)
    try:
        os.write(writing, b"x")
    except BrokenPipeError:
        raise SystemExit(7)

run_program(program)
"""


@pytest.mark.parametrize(
    ("first", "end"),
    [("ignore_sigpipe()", 7), ("pass", -signal.SIGPIPE)],
    ids=["a daemon is told", "another program ends"],
)
def test_writing_to_a_peer_that_has_gone(first: str, end: int) -> None:
    done = subprocess.run([sys.executable, "-c", WRITES_TO_NOBODY.format(first=first)], env=os.environ, check=False)

    assert done.returncode == end


@pytest.mark.parametrize(
    ("address", "family"),
    [
        pytest.param(("127.0.0.1", 0), socket.AF_INET, id="IPv4"),
        pytest.param(("", 0), socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, id="every address"),
    ],
)
def test_a_socket_is_bound(address: tuple[str, int], family: socket.AddressFamily) -> None:
    with bind_socket(address) as made:
        assert made.family is family
        with socket.create_connection(("127.0.0.1", made.getsockname()[1])), made.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_an_address_that_is_taken_is_an_error() -> None:
    with bind_socket(("127.0.0.1", 0)) as made, pytest.raises(OSError, match=r"Address already in use$"):
        bind_socket(made.getsockname())
