"""Fixtures for tests against a real control plane. ``make e2e`` runs them; a plain ``pytest`` skips them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from itertools import chain

import pytest

from tests.e2e.browser import fail_if_required

# ``make test`` installs less than these tests import; the tests of the pure parts (simulation/) run all the same.
HAS_EXTRA = all(find_spec(name) for name in ("google", "grpc", "grpclib", "trustme", "urllib3"))
collect_ignore_glob = [] if HAS_EXTRA else ["test_*.py", "agent", "chaos", "daemonset", "gangs", "scheduler"]
if HAS_EXTRA:
    from tests.e2e.fixtures import (
        cluster,
        control_plane,
        controller_manager,
        controllers,
        fleet,
        gpu_nodes,
        pristine,
        scheduler,
    )

    __all__ = [
        "cluster",
        "control_plane",
        "controller_manager",
        "controllers",
        "fleet",
        "gpu_nodes",
        "pristine",
        "scheduler",
    ]


Timed = Callable[[str], AbstractContextManager[None]]
_MEASURED = "measured"  # a property of the test's report, which reaches the end of the run from other processes too


@pytest.fixture
def timed(request: pytest.FixtureRequest) -> Timed:
    """Measure a step for the report at the end. Nothing is asserted of it: machines are shared and noisy."""

    @contextmanager
    def measure(step: str) -> Generator[None]:
        before = time.perf_counter()
        yield
        request.node.user_properties.append((_MEASURED, f"{step}: {time.perf_counter() - before:.1f} s"))

    return measure


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests measured."""
    reports = chain.from_iterable(terminalreporter.stats.values())
    for report in reports:
        if isinstance(report, pytest.TestReport) and report.when == "call":
            for name, line in report.user_properties:
                if name == _MEASURED:
                    terminalreporter.write_line(str(line))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A plain run skips what needs servers, also where Go is there: it must stay fast."""
    if "e2e" in config.getoption("markexpr"):
        return
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.skip(reason="needs a control plane: `make e2e`"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the end of what the servers logged meanwhile, and where: the logs are kept.

    A browser test that is skipped where a browser is required has failed.
    """
    report = yield
    fail_if_required(report, getattr(item, "fixturenames", ()), os.environ)
    plane = getattr(item, "funcargs", {}).get("control_plane")
    if report.failed and plane is not None:
        logs = (plane.folder / "logs").glob("*.log")
        for log in sorted(each for each in logs if each.stat().st_mtime >= report.start):
            tail = log.read_text(errors="replace").splitlines()[-15:]
            report.sections.append((f"end of {log}", "\n".join(tail)))
    return report
