"""What commands that run for long have in common."""

from __future__ import annotations

import signal
import socket
import sys
from typing import NoReturn

import click

BAD_USAGE = 2


def ignore_sigpipe() -> None:
    """Let a connection that its peer has closed be an error of the write, not the end of the process.

    ``gputopo.cli.terminal`` has the whole program end by SIGPIPE, as a shell expects of what writes into a pipe.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def bind_socket(address: tuple[str, int]) -> socket.socket:
    """A socket at an address; "" is every address, of IPv6 too where there is that. Raises ``OSError``."""
    host, port = address
    host = host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")  # noqa: S104  kubelet and Prometheus
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:  # not by socket.create_server: its errors name the address, as do those who tell them
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by what it accepts. Not every event loop sets it; without it an answer in two writes takes 40 ms.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if made.family is socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        made.bind((host, port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def fail(message: str, code: int = BAD_USAGE) -> NoReturn:
    """End the process with a sentence on standard error, before it has begun its work."""
    click.echo(f"gputopo: {message}", err=True)
    sys.exit(code)
