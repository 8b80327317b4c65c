"""The verbs and the pages over real sockets: what is answered, to whom, and how it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from gputopo.labels.reasons import Reason, malformed_text
from scheduler_core.extender.decision_log import NumberedLines
from scheduler_core.extender.extender import NotReadyError
from scheduler_core.extender.handlers import SLOW_S, handlers
from scheduler_core.extender.http import Handler, Reply
from scheduler_core.extender.metrics import ExtenderMetrics
from scheduler_core.extender.node_choice import FilterResult
from scheduler_core.extender.pages import PageSources, pages_app
from scheduler_core.request.pod import Pod
from scheduler_core.runtime.calls_in_progress import CallsInProgress
from scheduler_core.runtime.paging import PAGE_BYTES
from tests.scheduler_core.runtime.served import Passing, Running, app_of, call, serving


async def answer_of(handler: Handler, body: bytes, receive_s: float = 0.0) -> Reply:
    return await handler(body, receive_s)


@pytest.fixture
def running() -> Iterator[Running]:
    with serving(app_of(Passing(), prefix="/gputopo")) as served:
        yield served


def test_filter_answers_nodes(running: Running) -> None:
    status, body = running.ask("POST", "/gputopo/filter", call("n1", "n2"))

    assert (status, json.loads(body)["NodeNames"]) == (200, ["n1", "n2"])


def test_prioritize_answers_scores(running: Running) -> None:
    assert running.ask("POST", "/gputopo/prioritize", call("n1")) == (200, b'[{"Host":"n1","Score":5}]')


def test_a_peer_that_does_not_speak_http_writes_nothing_to_the_terminal_of_a_user(
    running: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    """A program that configures no logging, as `gputopo ui`: Python prints warnings then."""
    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    for sent in (b"\x16\x03\x01\x02", b"\x00\r\n\r\n", upgrade):
        with running.connect() as peer:
            peer.sendall(sent)
            assert peer.recv(100)

    assert capfd.readouterr().err == ""
    assert not logging.getLogger("uvicorn.error").isEnabledFor(logging.WARNING)


def test_one_connection_carries_many_calls_and_every_answer_has_its_length(running: Running) -> None:
    client = running.client()
    sent: set[Any] = set()
    for number in range(5):
        client.request("POST", "/gputopo/filter", call(*(f"n{at}" for at in range(number * 100))))
        answer = client.getresponse()
        assert answer.getheader("Content-Length") == str(len(answer.read()))
        assert answer.getheader("Content-Type") == "application/json"
        sent.add(client.sock.getsockname())
    client.close()

    assert len(sent) == 1


def test_a_body_in_chunks_is_read(running: Running) -> None:
    client = running.client()
    client.request("POST", "/gputopo/filter", iter([b'{"Pod":{"metadata":{"uid":"u"}},', b'"NodeNames":["n1"]}']))
    answer = client.getresponse()

    assert (answer.status, json.loads(answer.read())["NodeNames"]) == (200, ["n1"])
    client.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        pytest.param("POST", "/gputopo/filter", 400, b"Input data was truncated; expected a call", id="no call"),
        pytest.param("POST", "/filter", 404, b"unknown path '/filter'; known are /gputopo/filter,", id="no prefix"),
        pytest.param("POST", "/gputopo/bind", 404, b"unknown path '/gputopo/bind'", id="a verb that is not ours"),
        pytest.param("GET", "/gputopo/filter", 405, b"GET is not allowed; use POST", id="a browser"),
    ],
)
def test_an_invalid_call_is_answered_with_the_expected_form(
    running: Running, method: str, path: str, status: int, says: bytes
) -> None:
    answered = running.ask(method, path, b"")

    assert answered[0] == status
    assert says in answered[1]


def test_a_call_before_all_is_known_gets_503_with_a_sentence_and_lets_the_connection_go() -> None:
    trouble: list[str] = ["waiting for the first list of pods"]
    with serving(app_of(Passing(), unready=lambda: trouble[0] if trouble else None)) as running:
        client = running.client()
        client.request("POST", "/filter", call(*(f"node-{at}" for at in range(50_000))))
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (503, b"waiting for the first list of pods\n")
        assert answer.getheader("Connection") == "close"
        trouble.clear()

        client.request("POST", "/filter", call("n1"))
        assert client.getresponse().status == 200
        client.close()


class Failing(Passing):
    def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:  # noqa: ARG002
        raise ZeroDivisionError(pod.metadata.name)

    def prioritize(self, pod: Pod, names: AbstractSet[str]) -> list[tuple[str, int]]:  # noqa: ARG002
        raise ZeroDivisionError(pod.metadata.name)


def test_an_error_of_our_own_is_said_at_the_pod_and_the_log_has_it(caplog: pytest.LogCaptureFixture) -> None:
    metrics = ExtenderMetrics()
    with serving(app_of(Failing(), metrics=metrics)) as running:
        filtered = running.ask("POST", "/filter", call("n1"))
        scored = running.ask("POST", "/prioritize", call("n1"))

    assert filtered == (200, b'{"Error":"internal error of the gputopo extender; see its log"}')
    assert scored == (500, b"internal error of the gputopo extender; see its log")
    assert [record.exc_info is not None for record in caplog.records if record.getMessage() == "call"] == [True, True]
    assert metrics.registry.get_sample_value("gputopo_extender_internal_errors_total", {"verb": "filter"}) == 1


class Unready(Passing):
    def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:  # noqa: ARG002
        raise NotReadyError("not all pods of the cluster are known yet")


def test_an_extender_that_knows_too_little_answers_503() -> None:
    with serving(app_of(Unready())) as running:
        assert running.ask("POST", "/filter", call("n1")) == (503, b"not all pods of the cluster are known yet\n")


class Refusing(Passing):
    def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:  # noqa: ARG002
        reasons = [Reason.ISLAND.value, Reason.MODEL.value, malformed_text("gputopo.io/island", "yes", "required")]
        return FilterResult((), dict(zip(sorted(names), reasons, strict=False)))


def test_whole_nodes_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    whole = call(NodeNames=None, Nodes={"items": [{"metadata": {"name": "n1"}}]})
    with serving(app_of(Passing(), clock=lambda: 0.0)) as running:
        answers = [running.ask("POST", f"/{verb}", whole)[0] for verb in ("filter", "prioritize", "filter")]

    (record,) = caplog.records
    assert (answers, record.levelname, record.getMessage()) == ([200, 200, 200], "WARNING", "complete nodes received")
    assert "set nodeCacheCapable: true" in record.__dict__["fields"]["advice"]


def test_rejections_are_counted_by_reason_once_for_each_pod() -> None:
    metrics = ExtenderMetrics()
    answers = handlers(Refusing(), metrics, time.monotonic)
    for names in (("n1",), ("n1", "n2"), ("n1", "n2", "n3")):
        asyncio.run(answer_of(answers["filter"], call(*names)))

    sample = metrics.registry.get_sample_value
    reasons = [sample("gputopo_rejections_total", {"reason": each}) for each in ("island", "model", "malformed")]
    assert reasons == [3, 2, 1]
    malformed_ones = {"workload_type": "unspecified", "result": "malformed"}
    assert sample("ai_scheduler_attempts_total", malformed_ones) == 1


def test_calls_are_timed_and_counted_and_slow_calls_logged_with_their_phases(caplog: pytest.LogCaptureFixture) -> None:
    metrics = ExtenderMetrics()
    ticks = iter([10.0, 10.01, 10.02 + SLOW_S, 10.03 + SLOW_S, 20.0, 20.001, 20.002, 20.003, 30.0, 30.0])
    answers = handlers(Passing(), metrics, lambda: next(ticks))
    with caplog.at_level(logging.WARNING):
        asyncio.run(answer_of(answers["filter"], call("n1", "n2"), 0.005))
        asyncio.run(answer_of(answers["filter"], call("n1"), 0.001))
        asyncio.run(answer_of(answers["prioritize"], b"", SLOW_S * 2))

    slow, late = caplog.records
    assert slow.__dict__["fields"] == {
        "verb": "filter",
        "status": 200,
        "pod": "team/a1",
        "nodes": 2,
        "receive_s": 0.005,
        "total_s": 0.085,
        "decode_s": 0.01,
        "decide_s": 0.06,
        "encode_s": 0.01,
    }
    assert late.__dict__["fields"] == {"verb": "prioritize", "status": 400, "receive_s": 0.1, "total_s": 0.1}
    sample = metrics.registry.get_sample_value
    assert sample("gputopo_extender_calls_total", {"verb": "filter", "status": "200"}) == 2
    assert sample("gputopo_extender_calls_total", {"verb": "prioritize", "status": "400"}) == 1
    assert sample("gputopo_extender_slow_calls_total", {"verb": "filter"}) == 1
    assert sample("gputopo_extender_call_duration_seconds_sum", {"verb": "filter"}) == pytest.approx(0.085 + 0.004)


@pytest.fixture
def pages() -> Iterator[Running]:
    registry = CollectorRegistry()
    Counter("looks", "How often.", registry=registry).inc()
    known = {("team", "a1"): {"pod": "team/a1"}}
    threads: list[int] = []

    def explain(namespace: str, pod: str) -> Any:
        asked_on = threading.get_ident()

        def job() -> dict[str, str]:
            threads.append(threading.get_ident())
            assert threads[-1] != asked_on
            return known[namespace, pod]

        return job if (namespace, pod) in known else None

    def decided(start: int) -> NumberedLines:
        return (each for each in islice(enumerate([b'{"a":1}\n', b'{"a":2}\n']), start % 2, None))

    shown = PageSources(lambda: "draining" if threads else None, registry, decided, explain)
    with serving(pages_app(shown)) as served:
        yield served


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        pytest.param("/healthz", 200, b"ok\n", id="health"),
        pytest.param("/readyz", 200, b"ok\n", id="ready"),
        pytest.param("/metrics", 200, b"# HELP looks_total How often.", id="metrics"),
        pytest.param("/decisions", 200, b'{"a":1}\n{"a":2}\n', id="decisions"),
        pytest.param("/decisions?continue=1", 200, b'{"a":2}\n', id="decisions from a number on"),
        pytest.param("/decisions?last=1", 200, b'{"a":2}\n', id="the last decision"),
        pytest.param("/decisions?continue=-1", 400, b"invalid query; write ?continue=NUMBER", id="no number"),
        pytest.param("/explain/team/a1", 200, b'{"pod":"team/a1"}', id="a pod explained"),
        pytest.param("/explain/team/a2", 404, b"no GPU pod 'a2' in the namespace 'team'\n", id="unknown pod"),
        pytest.param("/decisions/", 404, b"unknown path '/decisions/'; known are /healthz", id="a slash too many"),
        pytest.param("/filter", 404, b"unknown path '/filter'; known are /healthz, /readyz", id="no verbs here"),
    ],
)
def test_a_page(pages: Running, path: str, status: int, says: bytes) -> None:
    answered = pages.ask("GET", path)

    assert answered[0] == status
    assert answered[1].startswith(says)


def test_decisions_that_do_not_fit_on_a_page_are_freed_on_the_thread_that_encoded_them() -> None:
    threads = list[int]()

    def decided(_: int) -> NumberedLines:
        threads.append(threading.get_ident())  # of the event loop
        return lines()

    def lines() -> NumberedLines:
        try:
            yield from enumerate([b"a" * PAGE_BYTES] * 3)
        finally:
            threads.append(threading.get_ident())

    with serving(pages_app(PageSources(lambda: None, CollectorRegistry(), decided, lambda *_: None))) as served:
        status, _ = served.ask("GET", "/decisions")

    assert (status, len(set(threads))) == (200, 2)


def test_unready_says_why(pages: Running) -> None:
    pages.ask("GET", "/explain/team/a1")

    assert pages.ask("GET", "/readyz") == (503, b"draining\n")


def test_the_end_waits_for_what_is_being_asked_and_takes_nothing_new(running: Running) -> None:
    idle, busy = running.connect(), running.connect()
    body = call("n1")
    busy.sendall(b"POST /gputopo/filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
    time.sleep(0.1)

    running.stop()
    assert idle.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        running.connect()
    busy.sendall(body)
    answer = busy.makefile("rb").read()

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" in answer
    assert answer.endswith(b'"Error":""}')
    idle.close()
    busy.close()


def test_a_call_comes_first_from_its_first_byte_until_it_is_answered() -> None:
    calls, seen = CallsInProgress(lambda: 0.0), list[bool]()

    class Watching(Passing):
        def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:
            seen.append(calls.come_first)
            return super().filter(pod, names, final=final)

    with serving(app_of(Watching()), calls=calls) as running:
        assert not calls.come_first
        first, second = running.client(), running.client()
        for client in (first, second):
            client.request("POST", "/filter", call("n1"))
            assert client.getresponse().read()
            assert eventually(lambda: not calls.come_first)
        second.putrequest("POST", "/filter")
        second.putheader("Content-Length", "5")
        second.endheaders(b"")
        assert eventually(lambda: calls.come_first)
        second.close()
        assert eventually(lambda: not calls.come_first)
        first.close()

    assert seen == [True, True]


def eventually(condition: Callable[[], bool]) -> bool:
    """Return whether the condition becomes true within seconds."""
    until = time.monotonic() + 5.0
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def test_a_peer_that_closes_its_side_and_reads_nothing_is_no_call() -> None:
    calls = CallsInProgress()

    async def large_answer(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(50 * 2**20)})

    with serving(large_answer, calls=calls) as running, running.connect() as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert peer.recv(1)
        peer.shutdown(socket.SHUT_WR)

        assert eventually(lambda: not calls.come_first)
        time.sleep(0.1)
        assert not calls.come_first
