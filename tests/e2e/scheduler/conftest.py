"""Fixtures for tests of the extender with the real kube-scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.e2e.browser import MISSING, find_chromium
from tests.e2e.cluster import Cluster
from tests.e2e.fixtures import StartScheduler
from tests.e2e.scheduler.agents import Agents, agents
from tests.e2e.scheduler.running import Extender, prepare, running
from tests.simulated_node.fleet import Fleet

StartAgents = Callable[[], Agents]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium of Playwright or of the system; without one the test is skipped, or fails where it is required."""
    with sync_playwright() as playwright:
        program = find_chromium(playwright.chromium.executable_path)
        if program is None:
            pytest.skip(MISSING)
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def agents_of(cluster: Cluster, fleet: Fleet, tmp_path: Path) -> Iterator[StartAgents]:
    """Starts an agent on each node that the fleet has; returns when all have published."""
    with ExitStack() as started:

        def start() -> Agents:
            opened: AbstractContextManager[Agents] = agents(cluster, fleet, tmp_path)
            return started.enter_context(opened)

        yield start


@pytest.fixture
def extender(cluster: Cluster) -> Iterator[Extender]:
    """An extender that is ready."""
    prepare(cluster)
    with running(cluster) as started:
        started.wait_until_ready()
        yield started


@pytest.fixture
def gputopo_scheduler(extender: Extender, scheduler: StartScheduler) -> Extender:
    """A ready extender, and a kube-scheduler with the shipped configuration that calls it."""
    scheduler(extender.configuration())
    return extender
