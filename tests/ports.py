"""Ports for servers that cannot be told to take any."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator
from functools import cache

# Below the range that the kernel hands to outgoing connections (32768 and up on Linux), so that none of our own clients
# takes a port in the moment before the server does.
FIRST, END = 20000, 32000
_BLOCK = 100  # a process's own: another test process that looks for a port in that moment does not find the same


def free_port() -> int:
    """A loopback port that is free now, and that no other test process on this machine is given."""
    _, ports = _claimed()
    return next(filter(_is_free, ports))


@cache
def _claimed() -> tuple[socket.socket, Iterator[int]]:
    """A block of ports, in turns: it is for as long as this process lives the block of whoever has its first one."""
    firsts = range(FIRST, END, _BLOCK)
    for first in random.sample(firsts, len(firsts)):
        if (held := _bound(first)) is not None:
            return held, itertools.cycle(range(first + 1, first + _BLOCK))
    raise OSError(f"no free block of {_BLOCK} ports from {FIRST} to {END}: end other test runs")


def _is_free(port: int) -> bool:
    bound = _bound(port)
    if bound is not None:
        bound.close()
    return bound is not None


def _bound(port: int) -> socket.socket | None:
    """A socket that has a port of every address, which fails where anybody has it of one."""
    made = socket.socket()
    try:
        made.bind(("", port))
    except OSError:
        made.close()
        return None
    return made
