"""Peers that send half a request, or do not read their answers: probes are answered and memory is bounded meanwhile.

The servers are processes of their own, wired as their commands wire them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.api_server import Answer, api_server
from tests.ports import free_port

MEBI = 2**20
HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Half: "
PEERS, PROBES = 1500, 100
READERS, SENT_AHEAD = 300, 8
GANGS = 4000
# 32 MiB of answers that are not read, one page of a MiB more, 64 KiB of buffers for each of 256 connections, and what
# rendering takes. Without limits it is a page of 1.6 MiB, twice, for each of the 300 peers.
MOST_GROWTH = 100 * MEBI


@pytest.fixture(autouse=True)
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def one_address(_: int) -> str:
    return "127.0.0.1"


def many_addresses(number: int) -> str:
    return f"127.0.{1 + number // 200}.{1 + number % 200}"


def get(port: int, path: str) -> tuple[int, dict[str, str], bytes]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        client.close()


def probe(port: int) -> bytes:
    """The body of /healthz; the error's name where there is no answer."""
    try:
        return get(port, "/healthz")[2]
    except OSError as error:
        return type(error).__name__.encode()
    except http.client.HTTPException as error:
        return type(error).__name__.encode()


def send(port: int, data: bytes, source: str = "127.0.0.1") -> socket.socket:
    """A connection on which that was sent, as far as the peer took it, and of which nothing is read."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(10)
    made.bind((source, 0))
    made.connect(("127.0.0.1", port))
    with contextlib.suppress(OSError):
        made.sendall(data)
    return made


@contextmanager
def process(*command: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE"))}
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        env=bare | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as started:
        try:
            yield started
        finally:
            started.terminate()


def until(said: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not said():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("source", [one_address, many_addresses])
@pytest.mark.parametrize("program", ["extender", "planner", "observe"])
def test_half_sent_requests_keep_no_probe_out(
    program: str, source: Callable[[int], str], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    port, verbs = free_port(), ("--verbs", "127.0.0.1:0")
    options = verbs if program == "extender" else ()
    with (
        api_server(lambda _: Answer("not now", 503)) as server,
        process(
            "gputopo",
            program,
            "--listen",
            f"127.0.0.1:{port}",
            *options,
            KUBECONFIG=server.kubeconfig(tmp_path / "config"),
        ),
    ):
        until(lambda: probe(port) == b"ok\n")
        held, answers, slowest = [], [], 0.0
        for number in range(PEERS):
            held.append(send(port, HALF, source(number)))
            if number % (PEERS // PROBES) == 0:
                begun = time.monotonic()
                answers.append(probe(port))
                slowest = max(slowest, time.monotonic() - begun)
        for each in held:
            each.close()

    assert answers == [b"ok\n"] * PROBES
    where = "one address" if source is one_address else "many addresses"
    record_property("attack", f"{program}, {where}: {PROBES} of {PROBES} probes answered, slowest {slowest:.2f} s")


@pytest.fixture
def planner() -> Iterator[tuple[int, psutil.Process]]:
    with process("tests.scheduler_core.planner.many_gangs", str(GANGS)) as started:
        assert started.stdout is not None
        yield int(started.stdout.readline()), psutil.Process(started.pid)


def test_peers_that_pipeline_and_never_read_cost_a_bounded_memory(
    planner: tuple[int, psutil.Process], record_property: Callable[[str, object], None]
) -> None:
    port, server = planner
    assert get(port, "/gangs")[0] == 200
    before, most, answers = server.memory_info().rss, 0, []
    peers = [send(port, pipelined(number), many_addresses(number)) for number in range(READERS)]
    for _ in working(server):
        answers.append(probe(port))
        most = max(most, server.memory_info().rss - before)
    record_property(
        "attack", f"{before / MEBI:.0f} to {(before + most) / MEBI:.0f} MiB; all {len(answers)} probes answered"
    )
    for each in peers:
        each.close()

    assert set(answers) == {b"ok\n"}
    assert most < MOST_GROWTH


def pipelined(number: int) -> bytes:
    """One request, or several at once; every third of a page that no other peer asks for."""
    query = f"?continue=gangs/team-0/training-run-{number:05}" if number % 3 == 0 else ""
    return f"GET /gangs{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * (SENT_AHEAD if number % 2 else 1)


def working(server: psutil.Process) -> Iterator[None]:
    """Turns of a fifth of a second until the process has had nothing to do for ten of them; 300 at most."""
    idle = 0
    for _ in range(300):
        busy = sum(server.cpu_times()[:2])
        yield
        time.sleep(0.2)
        idle = 0 if sum(server.cpu_times()[:2]) - busy > 0.02 else idle + 1
        if idle == 10:
            return


def test_the_pages_of_gangs_are_bounded_and_together_have_all(planner: tuple[int, psutil.Process]) -> None:
    port, _ = planner
    names, query, sizes = [], "", []
    while True:
        status, headers, body = get(port, f"/gangs{query}")
        page = json.loads(body)
        sizes.append(len(body))
        names += [(each["namespace"], each["name"]) for each in page["gangs"]]
        link = {name.lower(): value for name, value in headers.items()}.get("link")
        if link is None:
            assert page["continue"] is None
            break
        query = link.partition("<")[2].partition(">")[0]

    assert status == 200
    assert len(names) == len(set(names)) == GANGS
    assert names == sorted(names)
    assert len(sizes) > 1
    assert max(sizes) < 1.01 * MEBI
    assert get(port, "/gangs?continue=nowhere")[0] == 400


def test_a_peer_that_reads_is_served_page_after_page_on_one_connection(planner: tuple[int, psutil.Process]) -> None:
    client = http.client.HTTPConnection("127.0.0.1", planner[0], timeout=30)
    statuses, ports = [], set()
    for _ in range(200):
        client.request("GET", "/gangs")
        ports.add(client.sock.getsockname()[1])
        answer = client.getresponse()
        statuses.append((answer.status, len(answer.read()) > MEBI / 2))
    client.close()

    assert statuses == [(200, True)] * 200
    assert len(ports) == 1
