"""The three paths, over real HTTP."""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket
import threading
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.daemon.health_server import HANG_TIMEOUT_S, respond_to_path, respond_to_request, serve_health
from agent.daemon.metrics import AgentMetrics
from agent.daemon.status import AgentStatus

READY = AgentStatus(iterated_at=100.0, unready_reason=None)
REGISTRY = AgentMetrics().registry


@pytest.mark.parametrize(
    ("path", "status", "now", "code", "body"),
    [
        pytest.param("/healthz", READY, 100.0 + HANG_TIMEOUT_S, 200, b"ok\n", id="alive"),
        pytest.param(
            "/healthz", READY, 101.0 + HANG_TIMEOUT_S, 503, b"the loop has not run for 121 s\n", id="the loop hangs"
        ),
        pytest.param("/readyz?verbose", READY, 100.0, 200, b"ok\n", id="ready"),
        pytest.param(
            "/readyz",
            AgentStatus(iterated_at=100.0),
            100.0,
            503,
            b"nothing is published yet\n",
            id="nothing is published yet",
        ),
        pytest.param("/", READY, 100.0, 404, b"not found: use /metrics, /healthz or /readyz\n", id="another path"),
    ],
)
def test_responses_by_path(path: str, status: AgentStatus, now: float, code: int, body: bytes) -> None:
    assert respond_to_path(path, status, lambda: b"", now) == (code, "text/plain; charset=utf-8", body)


def ask(address: tuple[str, int], path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=20)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.fixture
def clock() -> Callable[[], float]:
    return lambda: 100.0


def test_metrics_are_served_in_the_exposition_format(clock: Callable[[], float]) -> None:
    metrics = AgentMetrics()
    metrics.register_status(lambda: READY)
    metrics.passes.labels("ok").inc()

    with serve_health(("127.0.0.1", 0), metrics.registry, lambda: READY, clock) as address:
        code, body = ask(address, "/metrics")

    samples = {
        each.name: each.value for family in text_string_to_metric_families(body.decode()) for each in family.samples
    }
    assert code == 200
    assert (samples["gputopo_passes_total"], samples["gputopo_ready"]) == (1.0, 1.0)


def test_the_status_is_current_and_a_connection_serves_many_requests(clock: Callable[[], float]) -> None:
    statuses = [AgentStatus(iterated_at=100.0), READY]

    with serve_health(("127.0.0.1", 0), REGISTRY, lambda: statuses[0], clock) as address:
        assert ask(address, "/readyz")[0] == 503
        statuses.pop(0)
        assert ask(address, "/readyz")[0] == 200


def test_other_methods_are_refused(clock: Callable[[], float]) -> None:
    with serve_health(("127.0.0.1", 0), REGISTRY, lambda: READY, clock) as address:
        assert ask(address, "/metrics", "POST")[0] == 501


def opened(address: tuple[str, int], data: bytes, source: str) -> socket.socket:
    made = socket.socket()
    made.settimeout(20)
    made.bind((source, 0))
    made.connect(address)
    with contextlib.suppress(OSError):
        made.sendall(data)
    return made


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nX-Half: ", b"GET /metrics HTTP/1.1\r\n\r\n" * 50])
def test_slow_peers_keep_no_probe_out_and_cost_no_threads(clock: Callable[[], float], sent: bytes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    try:
        with serve_health(("127.0.0.1", 0), REGISTRY, lambda: READY, clock) as address:
            threads, answers, held = threading.active_count(), [], []
            for number in range(1500):
                held.append(opened(address, sent, f"127.0.0.{1 + number % 3}"))
                if number % 15 == 0:
                    answers.append(ask(address, "/healthz"))
            most = threading.active_count()
            for each in held:
                each.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert answers == [(200, b"ok\n")] * 100
    assert most <= threads + 2


def test_a_head_without_end_is_cut(clock: Callable[[], float]) -> None:
    endless = b"GET / HTTP/1.1\r\n" + b"X-More: y\r\n" * 10_000
    with serve_health(("127.0.0.1", 0), REGISTRY, lambda: READY, clock) as address:
        with opened(address, endless, "127.0.0.1") as peer, contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""
        assert ask(address, "/healthz") == (200, b"ok\n")


@pytest.mark.parametrize(
    ("head", "code"),
    [
        pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n", 200, id="a request"),
        pytest.param(b"GET /healthz HTTP/1.0\r\nX: y\r\n\r\n", 200, id="an old one"),
        pytest.param(b"HEAD /healthz HTTP/1.1\r\n\r\n", 501, id="another method"),
        pytest.param(b"GET /healthz\r\n\r\n", 400, id="no version"),
        pytest.param(b"\xff\x00\r\n\r\n", 400, id="no request"),
        pytest.param(b"\r\n\r\n", 400, id="nothing"),
    ],
)
def test_a_request_head_gets_its_status(head: bytes, code: int) -> None:
    assert respond_to_request(head, lambda path: (200, "text/plain", path.encode()))[0] == code


def test_a_silent_peer_does_not_block_others(clock: Callable[[], float]) -> None:
    with (
        serve_health(("127.0.0.1", 0), REGISTRY, lambda: READY, clock) as address,
        socket.create_connection(address),
    ):
        assert ask(address, "/healthz") == (200, b"ok\n")


def test_without_a_host_every_address_is_served(clock: Callable[[], float]) -> None:
    with serve_health(("", 0), REGISTRY, lambda: READY, clock) as address:
        assert ask(("127.0.0.1", address[1]), "/healthz") == (200, b"ok\n")


def test_an_address_in_use_is_an_error(clock: Callable[[], float]) -> None:
    with serve_health(("127.0.0.1", 0), REGISTRY, lambda: READY, clock) as address:  # noqa: SIM117
        with pytest.raises(OSError, match="in use"), serve_health(address, REGISTRY, lambda: READY, clock):
            pass
