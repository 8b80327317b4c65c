"""Peers that mean harm, or are broken: no crash, bounded memory, and kube-scheduler is served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from scheduler_core.extender.http import BodyReader, BodyRejection
from scheduler_core.runtime.http_connection import PAGE_LIMITS, ConnectionLimits, HttpConnection
from scheduler_core.runtime.tls import CertificateError, Certificates, server_context
from scheduler_core.runtime.tls_handshakes import MAX_HANDSHAKES
from tests.scheduler_core.runtime.served import Passing, Running, app_of, call, read_rest, serving

MEBI = 2**20
HEAD = b"POST /filter HTTP/1.1\r\nHost: x\r\n"


def still_served(running: Running) -> bool:
    """Return whether a valid call is answered at once."""
    begun = time.monotonic()
    return running.ask("POST", "/filter", call("n1"))[0] == 200 and time.monotonic() - begun < 2


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(app_of(Passing())) as served:
        yield served


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["Pod", "NodeNames", "Nodes", "metadata", "uid", "items", "spec"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=300) | json_values.map(lambda each: json.dumps(each).encode()))
def test_whatever_body_comes_is_answered(running: Running, body: bytes) -> None:
    assert running.ask("POST", "/filter", body)[0] in (200, 400)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.binary(max_size=300) | st.binary(max_size=100).map(lambda each: HEAD + each + b"\r\n\r\n"))
def test_whatever_bytes_come_end_in_an_answer_or_a_closed_connection(running: Running, sent: bytes) -> None:
    with running.connect(timeout=2) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert read_rest(connection)[:9] in (b"", b"HTTP/1.1 ")


def test_after_all_that_calls_are_answered(running: Running) -> None:
    assert still_served(running)


@pytest.mark.parametrize(
    "length",
    [
        pytest.param(b"Content-Length: -1\r\n", id="negative"),
        pytest.param(b"Content-Length: many\r\n", id="no number"),
        pytest.param(b"Content-Length: 1\r\nContent-Length: 2\r\n", id="two that differ"),
        pytest.param(b"Content-Length: 99999999999999999999999\r\n", id="beyond 64 bits"),
        pytest.param(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", id="and chunks"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", id="a chunk without a size"),
    ],
)
def test_a_length_that_makes_no_sense_is_refused(running: Running, length: bytes) -> None:
    with running.connect() as connection:
        connection.sendall(HEAD + length + b"\r\n{}")
        assert read_rest(connection).startswith(b"HTTP/1.1 400 ")
    assert still_served(running)


def test_a_few_calls_may_be_sent_ahead_and_are_answered_in_order(running: Running) -> None:
    bodies = [call(f"n{number}") for number in range(4)]
    with running.connect() as connection:
        connection.sendall(b"".join(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies))
        answered = b""
        while answered.count(b"HTTP/1.1 200 ") < 4 or not answered.endswith(b"}"):
            answered += connection.recv(4096)
    places = [answered.index(f'"NodeNames":["n{number}"]'.encode()) for number in range(4)]

    assert places == sorted(places)
    assert still_served(running)


def test_a_thousand_calls_sent_ahead_end_the_connection(running: Running) -> None:
    with running.connect() as connection:
        with contextlib.suppress(OSError):
            connection.sendall((HEAD + b"Content-Length: 2\r\n\r\n{}") * 1000)
        answered = read_rest(connection)

    assert answered.count(b"HTTP/1.1 400 ") < 1000
    assert still_served(running)


def test_a_half_closed_connection_does_not_affect_others(running: Running) -> None:
    for cut in (20, len(HEAD), len(HEAD) + 30):
        with running.connect() as connection:
            connection.sendall((HEAD + b"Content-Length: 900\r\n\r\n" + b"x" * 100)[:cut])
            connection.shutdown(socket.SHUT_WR)
            read_rest(connection)
        gone = running.connect()
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST instead of FIN
        gone.sendall((HEAD + b"Content-Length: 900\r\n\r\n" + b"x" * 100)[:cut])
        gone.close()

    assert still_served(running)


def test_an_upgrade_is_refused(running: Running) -> None:
    body = call("n1")
    with running.connect(timeout=2) as connection:
        connection.sendall(
            HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        assert connection.recv(12) == b"HTTP/1.1 400"
    assert still_served(running)


def test_a_body_with_a_too_large_content_length_is_refused_before_it_is_read() -> None:
    with serving(app_of(Passing(), most=MEBI)) as running, running.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (MEBI + 1))

        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_body_in_chunks_is_refused_where_it_becomes_too_large() -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with serving(app_of(Passing(), most=MEBI)) as running, running.connect() as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(18):
            connection.sendall(chunk)

        assert connection.recv(12) == b"HTTP/1.1 413"
        assert still_served(running)


def test_bodies_of_50_mb_from_many_peers_cost_a_bounded_memory() -> None:
    process = psutil.Process(os.getpid())
    heavy = b" " * (50 * MEBI)
    statuses: list[int] = []

    def send() -> None:
        with contextlib.suppress(OSError):
            statuses.append(served.ask("POST", "/filter", heavy)[0])

    with serving(app_of(Passing(), most=16 * MEBI)) as served:
        before = process.memory_info().rss
        peers = [threading.Thread(target=send) for _ in range(6)]
        for peer in peers:
            peer.start()
        most = 0
        while any(peer.is_alive() for peer in peers):
            assert still_served(served)
            most = max(most, process.memory_info().rss - before)
        assert most < 6 * 50 * MEBI / 2
    assert statuses == [413] * 6


def test_a_body_of_50_mb_below_the_limit_is_read() -> None:
    with serving(app_of(Passing(), most=64 * MEBI)) as running:
        assert running.ask("POST", "/filter", call("n1") + b" " * (50 * MEBI))[0] == 200


def test_bodies_that_are_being_read_are_bounded_together() -> None:
    bodies = BodyReader(10)

    async def begun(size: int, finish: asyncio.Event) -> bytes | BodyRejection | None:
        parts = iter([{"type": "http.request", "body": b"x" * size, "more_body": True}])

        async def receive() -> Message:
            if (part := next(parts, None)) is not None:
                return part
            await finish.wait()
            return {"type": "http.request", "body": b"", "more_body": False}

        return await bodies.read_body({"headers": []}, receive)

    async def main() -> None:
        finish = asyncio.Event()
        four = [asyncio.create_task(begun(10, finish)) for _ in range(4)]
        await asyncio.sleep(0)
        assert await begun(1, finish) == BodyRejection(503, "too many large bodies are being read; try again")
        finish.set()
        assert [await each for each in four] == [b"x" * 10] * 4
        assert await begun(1, finish) == b"x"

    asyncio.run(main())


def test_slow_peers_are_disconnected_and_others_are_served_meanwhile() -> None:
    with serving(app_of(Passing()), ConnectionLimits(request_s=0.5)) as running:
        slow_head, slow_body = running.connect(), running.connect()
        slow_body.sendall(HEAD + b"Content-Length: 900\r\n\r\n")
        begun = time.monotonic()
        for byte in (HEAD + b"X: y\r\n" * 99)[:5]:
            slow_head.sendall(bytes([byte]))
            slow_body.sendall(b" ")
            assert still_served(running)

        assert (read_rest(slow_head), read_rest(slow_body)) == (b"", b"")
        assert time.monotonic() - begun < 3
        assert running.listener.closed == {"slow": 2}
        slow_head.close()
        slow_body.close()


def test_a_head_without_end_is_cut() -> None:
    with serving(app_of(Passing())) as running, running.connect() as connection:
        with contextlib.suppress(OSError):
            for _ in range(1000):
                connection.sendall(b"POST /filter HTTP/1.1\r\nX-More: " if _ == 0 else b"y" * 1000)
        assert read_rest(connection) == b""
        assert still_served(running)
        assert running.listener.closed == {"head": 1}


def test_a_peer_that_sends_empty_lines_is_as_idle_as_one_that_sends_nothing() -> None:
    with serving(app_of(Passing()), ConnectionLimits(keep_alive_s=1)) as running, running.connect() as connection:
        connection.sendall(b"\r\n")
        begun = time.monotonic()

        assert read_rest(connection) == b""
        assert time.monotonic() - begun < 5


def test_a_peer_that_does_not_read_its_answer_is_disconnected() -> None:
    names = call(*(f"node-{number:090}" for number in range(100_000)))
    with serving(app_of(Passing(), most=64 * MEBI), ConnectionLimits(keep_alive_s=1)) as running:
        deaf = running.connect()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(names) + names)
        _until(lambda: running.listener.closed == {"stuck": 1})
        assert still_served(running)
        deaf.close()


def test_two_thousand_idle_connections_do_not_block_others() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    try:
        with serving(app_of(Passing()), ConnectionLimits(connections=200)) as running:
            scheduler = running.client()
            scheduler.request("POST", "/filter", call("n1"))
            scheduler.getresponse().read()
            idle = []
            for number in range(2000):
                idle.append(running.connect())
                if number % 250 == 0:
                    assert still_served(running)
            # The one that asked something has not given way to those that never did.
            scheduler.request("POST", "/filter", call("n1"))
            assert scheduler.getresponse().status == 200
            _until(lambda: running.listener.closed["capacity"] >= 1800)
            assert len(running.listener.server_state.connections) <= 200
            for each in idle:
                each.close()
            scheduler.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_where_all_connections_are_busy_a_new_one_is_refused() -> None:
    with serving(app_of(Passing()), ConnectionLimits(connections=2)) as running:
        busy = [running.connect(), running.connect()]
        for each in busy:
            each.sendall(HEAD + b"Content-Length: 900\r\n\r\n")
        time.sleep(0.2)
        with running.connect() as late:
            assert read_rest(late) == b""
        assert running.listener.closed == {"capacity": 1}
        for each in busy:
            each.close()


def source(running: Running, address: str, sent: bytes = b"") -> socket.socket:
    """A connection from that address that reads nothing, once all that was sent on it has arrived."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(10)
    made.bind((address, 0))
    made.connect(("127.0.0.1", running.port))
    made.sendall(sent)
    return made


def from_addresses(running: Running) -> dict[str, int]:
    """Return the number of the listener's connections by peer address."""
    return Counter(each.peer for each in running.listener.server_state.connections if isinstance(each, HttpConnection))


def test_a_peer_beyond_its_limit_takes_the_place_of_its_own_oldest_unfinished_request() -> None:
    with serving(app_of(Passing()), ConnectionLimits(connections=10, per_peer=3)) as running:
        other = source(running, "127.0.0.2", HEAD)
        kept = source(running, "127.0.0.3", HEAD + b"Content-Length: 900\r\n\r\n")  # its head is there
        half = []
        for _ in range(5):
            half.append(source(running, "127.0.0.3", HEAD))
            _until(lambda: from_addresses(running)["127.0.0.3"] == min(3, len(half) + 1))
        _until(lambda: running.listener.closed == {"capacity": 3})

        assert [read_rest(each) for each in half[:3]] == [b""] * 3
        assert from_addresses(running) == {"127.0.0.2": 1, "127.0.0.3": 3}
        for each in (other, kept, *half):
            each.close()


def test_idle_peers_give_way_to_a_new_one_until_its_request_arrives() -> None:
    with serving(app_of(Passing()), PAGE_LIMITS._replace(connections=8, per_peer=8, heads=4)) as running:
        idle = []
        for number in range(8):
            idle.append(source(running, f"127.0.0.{number + 2}", asked("/nothing")))
            _until(lambda: running.listener.server_state.total_requests == len(idle))
        probe = source(running, "127.0.0.10", HEAD)
        newer = [source(running, "127.0.0.11") for _ in range(3)]
        _until(lambda: running.listener.closed == {"capacity": 4})
        probe.sendall(b"Connection: close\r\nContent-Length: 2\r\n\r\n{}")

        assert read_rest(probe).startswith(b"HTTP/1.1 400 ")  # answered: this is no call
        assert [len(read_rest(each)) > 0 for each in idle[:4]] == [True] * 4
        for each in (probe, *idle, *newer):
            each.close()


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    """Eight MiB, or what a path says of itself: never an answer, or a short one."""
    if scope["path"] == "/never":
        await asyncio.sleep(60)
    await PlainTextResponse("ok" if scope["path"] == "/short" else b" " * 8 * MEBI)(scope, receive, send)


def asked(path: str = "/", *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *headers, "", "")).encode()


@pytest.mark.parametrize(
    ("sent", "then"),
    [
        pytest.param(asked(), b"", id="kept alive"),
        pytest.param(asked("/", "Connection: close"), b"", id="to be closed"),
        pytest.param(asked(), None, id="half closed"),
        pytest.param(asked(), b"no request", id="refused meanwhile"),
    ],
)
def test_an_answer_that_is_not_read_ends_its_connection(sent: bytes, then: bytes | None) -> None:
    with serving(large, ConnectionLimits(write_s=0.5)) as running:
        deaf = source(running, "127.0.0.1", sent)
        _until(lambda: running.listener.server_state.total_requests == 1)
        if then is None:
            deaf.shutdown(socket.SHUT_WR)
        else:
            deaf.sendall(then)
        _until(lambda: running.listener.closed == {"stuck": 1})
        _until(lambda: not running.listener.server_state.connections)
        deaf.close()


def test_of_a_page_no_second_one_is_rendered_before_the_first_was_read() -> None:
    with serving(large, PAGE_LIMITS) as running, source(running, "127.0.0.1", asked() * 3) as peer:
        answered = read_rest(peer)

    assert answered.count(b"HTTP/1.1 200 OK") <= 1


def test_answers_that_are_not_read_are_bounded_together_and_the_greediest_peer_loses_its_oldest() -> None:
    with serving(large, PAGE_LIMITS) as running:  # 32 MiB: four answers, less what the kernel holds
        first = source(running, "127.0.0.2", asked("/", "Connection: close"))
        _until(lambda: len(running.listener.server_state.connections) == 1)
        greedy = []
        for _ in range(6):
            greedy.append(source(running, "127.0.0.3", asked()))
            _until(lambda: sum(from_addresses(running).values()) + running.listener.closed["stuck"] == len(greedy) + 1)
        _until(lambda: running.listener.closed["stuck"] == 3)

        assert from_addresses(running) == {"127.0.0.2": 1, "127.0.0.3": 3}
        assert all(len(read_rest(each)) < MEBI for each in greedy[:3])
        assert len(read_rest(first)) > 8 * MEBI
        for each in (first, *greedy):
            each.close()


def test_where_all_pages_are_being_answered_the_oldest_is_cut_and_a_probe_is_answered() -> None:
    with serving(large, PAGE_LIMITS._replace(connections=4)) as running:
        busy = [source(running, f"127.0.0.{number + 2}", asked("/never")) for number in range(4)]
        _until(lambda: len(from_addresses(running)) == 4)

        assert running.ask("GET", "/short") == (200, b"ok")
        assert read_rest(busy[0]) == b""
        for each in busy:
            each.close()


# TLS -----------------------------------------------------------------------------------------------------------------


class Authority(NamedTuple):
    """Certificates of one CA, as a cluster would mount them."""

    ca: trustme.CA
    files: Certificates

    def write(self, ca: trustme.CA, clients: trustme.CA) -> None:
        """Rotate: a certificate of ``ca``, for clients of ``clients``."""
        ours = ca.issue_cert("localhost")
        ours.private_key_pem.write_to_path(self.files.key)
        ours.cert_chain_pems[0].write_to_path(self.files.certificate)
        assert self.files.client_ca is not None
        clients.cert_pem.write_to_path(self.files.client_ca)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(trustme.CA(), Certificates(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt"))
    made.write(made.ca, made.ca)
    return made


def secured(server: trustme.CA, client: trustme.CA | None) -> ssl.SSLContext:
    """A client's side: trusts ``server``, shows a certificate of ``client``."""
    made = ssl.create_default_context()
    server.configure_trust(made)
    if client is not None:
        client.issue_cert("kube-scheduler@example.org").configure_cert(made)
    return made


def ask(running: Running, secure: ssl.SSLContext) -> int:
    """The status of one call on a new connection."""
    client = running.client(secure, "localhost")
    try:
        client.request("POST", "/filter", call("n1"))
        return client.getresponse().status
    finally:
        client.close()


def test_a_client_of_the_ca_is_served_and_others_are_refused(authority: Authority) -> None:
    stranger = trustme.CA()
    with serving(app_of(Passing()), certificates=authority.files) as running:
        good = secured(authority.ca, authority.ca)
        assert ask(running, good) == 200
        for wrong in (secured(authority.ca, None), secured(authority.ca, stranger)):
            with pytest.raises(OSError, match=r"alert|reset|EOF|closed|Broken"):
                ask(running, wrong)
        old = secured(authority.ca, authority.ca)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError, match=r"alert|unsupported|protocol|PROTOCOL"):
            ask(running, old)
        with running.connect() as plain:
            plain.sendall(HEAD + b"Content-Length: 0\r\n\r\n")
            assert b"HTTP" not in read_rest(plain)
        stalled = [running.connect() for _ in range(50)]
        assert ask(running, good) == 200
        for each in stalled:
            each.close()


def test_unfinished_tls_handshakes_are_bounded_and_do_not_block_others(authority: Authority) -> None:
    process = psutil.Process(os.getpid())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    try:
        with serving(app_of(Passing()), certificates=authority.files) as running:
            before, silent = process.num_fds(), [running.connect() for _ in range(1500)]
            _until(lambda: running.listener.closed["capacity"] >= 1500 - MAX_HANDSHAKES)
            assert ask(running, secured(authority.ca, authority.ca)) == 200
            _until(lambda: process.num_fds() - before - len(silent) <= MAX_HANDSHAKES + 10)
            for each in silent:
                each.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_certificates_rotate_under_traffic_and_no_connection_is_dropped(authority: Authority) -> None:
    other = trustme.CA()
    stop = threading.Event()
    statuses: list[int] = []

    def traffic(running: Running) -> None:
        client = running.client(secured(authority.ca, authority.ca), "localhost")
        while not stop.is_set():
            client.request("POST", "/filter", call("n1"))
            answer = client.getresponse()
            answer.read()
            statuses.append(answer.status)
        client.close()

    with serving(app_of(Passing()), certificates=authority.files) as running:
        scheduler = threading.Thread(target=traffic, args=(running,))
        scheduler.start()
        _until(lambda: len(statuses) > 5)

        authority.files.certificate.write_text("half a file")
        running.look_at_certificates()
        assert ask(running, secured(authority.ca, authority.ca)) == 200  # the old ones are kept

        authority.write(other, other)
        running.look_at_certificates()
        assert ask(running, secured(other, other)) == 200
        with pytest.raises(OSError, match=r"alert|reset|EOF|closed|Broken"):
            ask(running, secured(other, authority.ca))  # whom the new CA does not certify
        before = len(statuses)
        _until(lambda: len(statuses) > before + 5)
        stop.set()
        scheduler.join()

    assert set(statuses) == {200}


def test_files_that_cannot_be_used_are_named(authority: Authority) -> None:
    with pytest.raises(CertificateError, match=r"missing\.crt, .*tls\.key, .*ca\.crt: no usable certificate"):
        server_context(authority.files._replace(certificate=authority.files.key.parent / "missing.crt"))


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
