"""Signals, sockets and start-up errors of the long-running programs."""

from __future__ import annotations

import signal
import socket
import sys
from typing import NoReturn

import click

BAD_USAGE = 2


def ignore_sigpipe() -> None:
    """Ignore SIGPIPE: a write to a connection that the peer has closed fails, but does not end the process.

    ``gputopo.cli.terminal`` enables SIGPIPE for all commands, because shells expect it of a program in a pipe.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def bind_socket(address: tuple[str, int]) -> socket.socket:
    """Return a listening socket; host "" is every address, IPv6 included if available. Raises ``OSError``."""
    host, port = address
    host = host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")  # noqa: S104  kubelet and Prometheus
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:  # not socket.create_server: its errors repeat the address
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by accepted sockets. Not every event loop sets it; without it a response in two writes takes 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if listener.family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listener.bind((host, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def fail(message: str, code: int = BAD_USAGE) -> NoReturn:
    """Print an error and exit, before the program has started."""
    click.echo(f"gputopo: {message}", err=True)
    sys.exit(code)
