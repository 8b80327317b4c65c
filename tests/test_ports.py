"""No two test processes are given one port."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.ports import END, FIRST, free_port

MANY = 250  # more than there are in one block
ASK = f"from tests.ports import free_port; print(*(free_port() for _ in range({MANY}))); input()"


def asking() -> subprocess.Popen[str]:
    """A process that is given many."""
    return subprocess.Popen([sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> set[str]:
    assert process.stdout is not None
    return set(process.stdout.readline().split())


def test_free_ports_are_below_those_of_outgoing_connections() -> None:
    assert FIRST <= free_port() < END <= 32768


def test_a_port_in_use_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        assert taken.getsockname()[1] not in {free_port() for _ in range(MANY)}


def test_processes_that_live_at_the_same_time_are_given_different_ports() -> None:
    with asking() as one, asking() as other:
        given = [said(each) for each in (one, other)]
        for each in (one, other):
            each.communicate("\n")

    assert len(given[0]) == len(given[1]) == 99
    assert given[0].isdisjoint(given[1])
