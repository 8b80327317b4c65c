"""Fixtures for all tests."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared and slow at times; what is slow is measured in bench/, not here.
# CI draws the same examples every time, so that a red run is about the change; a run by hand goes on looking.
settings.register_profile(
    "gputopo", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("gputopo")

# https://github.com/python/cpython/issues/113280: a socket whose peer reset it before it was wrapped for TLS is dropped
# unclosed, by every client that uses ``ssl``. Mended in 3.11.8, 3.12.2 and 3.13.
_TLS_LEAK = sys.version_info < (3, 11, 8) or (3, 12) <= sys.version_info < (3, 12, 2)
# Without ``raddr``: a socket that the programs leave open has a peer.
_LEAKED = r"ignore:unclosed <ssl\.SSLSocket [^>]*, laddr=\([^)]*\)>:ResourceWarning"

Golden = Callable[[Path, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files; then read the difference")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("COLUMNS", None)  # the width of the tester's terminal
    if _TLS_LEAK:
        config.addinivalue_line("filterwarnings", _LEAKED)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with a file, exactly; with --update-golden write the file instead."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"{path.name} is missing: run pytest --update-golden, then read what it wrote"
        assert text == path.read_text(encoding="utf-8")

    return compare
