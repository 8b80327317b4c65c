"""docs/architecture.md names only files that exist, and enough of them to find the file of a change."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TABLE = re.search(r"^## I want to change X: open Y\n\n\| X \| Y \|\n\|---\|---\|\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
FILE = re.compile(r"`([\w./-]+\.(?:py|css|json|yaml))`")


def rows() -> list[tuple[str, list[str]]]:
    """Return the change and the files of each row."""
    assert TABLE is not None
    cells = [line.strip("| \n").split(" | ") for line in TABLE.group(1).splitlines()]
    return [(change, FILE.findall(files)) for change, files in cells]


def test_every_change_names_one_or_two_files_that_exist() -> None:
    missing = [file for _, files in rows() for file in files if not (ROOT / file).is_file()]

    assert missing == []
    assert {change: len(files) for change, files in rows() if len(files) not in (1, 2)} == {}


def test_the_table_has_at_least_twenty_changes_and_names_none_twice() -> None:
    changes = [change for change, _ in rows()]

    assert len(changes) >= 20
    assert len(set(changes)) == len(changes)


def test_every_module_that_the_page_names_exists() -> None:
    """Paths outside the table may leave out their top-level folder."""
    folders = (ROOT, ROOT / "scheduler_core", ROOT / "scheduler_core" / "planner", ROOT / "agent", ROOT / "gputopo")
    named = set(FILE.findall(TEXT))

    assert {name for name in named if not any((folder / name).is_file() for folder in folders)} == set()
