"""Fixtures for tests of the commands."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.gputopo.cli import cluster_objects, gang_objects


@pytest.fixture(autouse=True)
def fresh_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports be of now: all tests together may take longer than a report stays fresh."""
    for report in (cluster_objects.STATE, gang_objects.REPORT):
        monkeypatch.setitem(report, "observedAt", datetime.now(UTC).isoformat())
