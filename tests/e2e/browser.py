"""Find the Chromium of the browser tests, and fail a browser test that is skipped where it must run."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

REQUIRED = "GPUTOPO_REQUIRE_BROWSER"  # environment variable: "1" where browser tests must run, as in CI
FIXTURE = "browser"  # tests with this fixture are browser tests
MISSING = "no Chromium: run `make browser`, or install one on PATH (Debian: apt install chromium)"
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find_chromium(of_playwright: str, path: str | None = None) -> str | None:
    """Return the Chromium that Playwright installed, else the one on PATH, else None."""
    if Path(of_playwright).is_file():
        return of_playwright
    return next(filter(None, (shutil.which(each, path=path) for each in _PROGRAMS)), None)


def fail_if_required(report: pytest.TestReport, fixtures: Collection[str], environment: Mapping[str, str]) -> None:
    """Turn the report of a skipped browser test into a failure if the environment requires browser tests."""
    if report.skipped and FIXTURE in fixtures and environment.get(REQUIRED) == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.outcome = "failed"
        report.longrepr = f"{REQUIRED}=1, but this test was skipped: {reason}"
