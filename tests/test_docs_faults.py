"""The table of faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent


def test_every_fault_is_proved_by_a_test_that_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (REPOSITORY / "docs" / "faults.md").read_text("utf-8")))
    defined = {
        name
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }

    assert len(named) > 20
    assert named <= defined
