"""The browser of the browser tests: found, and required in CI."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.browser import fail_if_required, find_chromium


def _program(file: Path) -> str:
    file.parent.mkdir(exist_ok=True)
    file.touch(0o755)
    return str(file)


def _skipped() -> pytest.TestReport:
    reason = ("conftest.py", 27, "Skipped: no Chromium")
    return pytest.TestReport("test_ui.py::test_page", ("test_ui.py", 1, "test_page"), {}, "skipped", reason, "setup")


def test_the_browser_of_playwright_is_used_before_one_on_the_path(tmp_path: Path) -> None:
    pinned, on_path = _program(tmp_path / "pinned"), _program(tmp_path / "bin/google-chrome")

    assert find_chromium(pinned, str(tmp_path / "bin")) == pinned
    assert find_chromium(str(tmp_path / "missing"), str(tmp_path / "bin")) == on_path
    assert find_chromium(str(tmp_path / "missing"), str(tmp_path / "empty")) is None


def test_a_skipped_browser_test_fails_where_a_browser_is_required() -> None:
    report = _skipped()

    fail_if_required(report, ["browser", "cluster"], {"GPUTOPO_REQUIRE_BROWSER": "1"})

    assert report.failed
    assert report.longreprtext == "GPUTOPO_REQUIRE_BROWSER=1, but this test was skipped: Skipped: no Chromium"


@pytest.mark.parametrize(
    ("fixtures", "environment"),
    [
        pytest.param(["cluster"], {"GPUTOPO_REQUIRE_BROWSER": "1"}, id="no browser test"),
        pytest.param(["browser"], {}, id="not required"),
        pytest.param(["browser"], {"GPUTOPO_REQUIRE_BROWSER": "0"}, id="switched off"),
    ],
)
def test_other_skipped_tests_stay_skipped(fixtures: list[str], environment: dict[str, str]) -> None:
    report = _skipped()

    fail_if_required(report, fixtures, environment)

    assert report.skipped
