"""Fixtures for tests of the planner beside the real kube-scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.gangs.running import GATED, Planner, prepare, running
from tests.e2e.scheduler.conftest import agents_of, extender, gputopo_scheduler

__all__ = ["agents_of", "extender", "gputopo_scheduler"]
StartPlanner = Callable[..., Planner]


@pytest.fixture
def served(cluster: Cluster) -> None:
    """Serve reservations and ledgers. Request this before an extender: an extender checks again after 30 s."""
    prepare(cluster)


@pytest.fixture
def planner(cluster: Cluster, served: None) -> Iterator[StartPlanner]:
    """Return a function that starts a ready planner, by default for a pool where every GPU pod is gated."""
    assert served is None
    with ExitStack() as started:

        def start(*options: str, **how: str) -> Planner:
            each = started.enter_context(running(cluster, *(options or GATED), **how))
            each.wait_until_ready()
            return each

        yield start
