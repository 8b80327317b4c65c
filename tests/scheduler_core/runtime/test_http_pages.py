"""The pages that every program serves: probes, metrics and documents."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge
from starlette.requests import Request
from starlette.responses import Response

from scheduler_core.runtime.http_pages import MAX_WAITING, json_page, program_app
from tests.scheduler_core.runtime.served import Running, serving


@pytest.fixture
def served() -> Iterator[Running]:
    with serving(
        program_app(lambda: None, CollectorRegistry(), {"/plans": json_page(lambda: {"plans": []})})
    ) as running:
        yield running


THERE = b"known are /healthz, /readyz, /metrics, /plans\n"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        pytest.param("/healthz", (200, b"ok\n"), id="health"),
        pytest.param("/readyz", (200, b"ok\n"), id="ready"),
        pytest.param("/metrics", (200, b""), id="metrics of nothing"),
        pytest.param("/plans", (200, b'{"plans":[]}'), id="its own"),
        pytest.param("/plans/", (404, b"unknown path '/plans/'; " + THERE), id="a slash too many"),
        pytest.param("/", (404, b"unknown path '/'; " + THERE), id="no page"),
    ],
)
def test_a_page(served: Running, path: str, answer: tuple[int, bytes]) -> None:
    assert served.ask("GET", path) == answer


def test_few_requests_wait_for_a_page_and_probes_are_answered_meanwhile() -> None:
    async def slow(_: Request) -> Response:
        await asyncio.sleep(60)
        return Response()

    with serving(program_app(lambda: None, CollectorRegistry(), {"/plans": slow})) as running:
        waiting = [running.connect() for _ in range(MAX_WAITING)]
        for each in waiting:
            each.sendall(b"GET /plans HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = []
        for _ in range(100):  # until all of them have arrived
            answers.append(running.ask("GET", "/metrics"))
            if answers[-1][0] == 503:
                break

        assert answers[-1] == (503, b"too many requests are waiting; try again\n")
        assert running.ask("GET", "/healthz") == (200, b"ok\n")
        for each in waiting:
            each.close()


def test_a_document_is_made_once_a_second() -> None:
    made = itertools.count()
    with serving(
        program_app(lambda: None, CollectorRegistry(), {"/plans": json_page(lambda: {"n": next(made)})})
    ) as running:
        answers = [running.ask("GET", "/plans") for _ in range(20)]
        elapsed = next(made)

    assert len(set(answers)) == elapsed < 20


def test_a_program_that_must_be_restarted_says_why() -> None:
    pages = program_app(lambda: "no news", CollectorRegistry(), {}, lambda: "the thread that watches pods has ended")
    with serving(pages) as running:
        assert running.ask("GET", "/healthz") == (503, b"the thread that watches pods has ended\n")
        assert running.ask("GET", "/readyz") == (503, b"no news\n")


def test_work_is_done_before_the_metrics_are_rendered() -> None:
    registry = CollectorRegistry()
    counted = Gauge("islands", "Of all nodes.", registry=registry)

    async def count() -> None:
        await asyncio.sleep(0.01)
        counted.set(3)

    with serving(program_app(lambda: None, registry, {}, before_metrics=count)) as running:
        status, body = running.ask("GET", "/metrics")

    assert (status, b"islands 3.0\n" in body) == (200, True)
