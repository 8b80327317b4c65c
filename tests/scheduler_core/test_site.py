"""What every program serves beside its own pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from scheduler_core.site import json_page, site
from tests.scheduler_core.served import Running, serving


@pytest.fixture
def served() -> Iterator[Running]:
    with serving(site(lambda: None, CollectorRegistry(), {"/plans": json_page(lambda: {"plans": []})})) as running:
        yield running


THERE = b"there are /healthz, /readyz, /metrics, /plans\n"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        pytest.param("/healthz", (200, b"ok\n"), id="health"),
        pytest.param("/readyz", (200, b"ok\n"), id="ready"),
        pytest.param("/metrics", (200, b""), id="metrics of nothing"),
        pytest.param("/plans", (200, b'{"plans":[]}'), id="its own"),
        pytest.param("/plans/", (404, b"there is no '/plans/' here; " + THERE), id="a slash too many"),
        pytest.param("/", (404, b"there is no '/' here; " + THERE), id="no page"),
    ],
)
def test_a_page(served: Running, path: str, answer: tuple[int, bytes]) -> None:
    assert served.ask("GET", path) == answer


def test_a_program_that_must_be_restarted_says_why() -> None:
    pages = site(lambda: "no news", CollectorRegistry(), {}, lambda: "the thread that watches pods has ended")
    with serving(pages) as running:
        assert running.ask("GET", "/healthz") == (503, b"the thread that watches pods has ended\n")
        assert running.ask("GET", "/readyz") == (503, b"no news\n")
