"""Tables on terminals that are narrower than they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gputopo.cli import main
from gputopo.cli import watch as module
from gputopo.render.report import text_table
from tests.gputopo.cli import gang_objects, pod_objects
from tests.gputopo.cli.cluster_files import file_of


def lines(columns: int | None, *arguments: str) -> list[str]:
    """Return the output on a terminal of this width; None: in a file."""
    found = CliRunner().invoke(main.main, list(arguments), env={"COLUMNS": None if columns is None else str(columns)})
    assert found.exit_code == 0, found.output
    return found.stdout.splitlines()


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("command", ["nodes", "pods", "gangs"])
def test_wide_tables_have_one_line_for_each_row(tmp_path: Path, command: str, columns: int) -> None:
    file = file_of(tmp_path, gang_objects.THERE if command == "gangs" else pod_objects.THERE)
    shown = lines(columns, command, "--from", file, "-o", "wide")

    assert max(map(len, shown)) > columns
    assert shown == lines(None, command, "--from", file, "-o", "wide")


def test_a_narrow_terminal_lists_machines_by_their_aliases() -> None:
    narrow, wide = lines(80, "machines"), lines(120, "machines")

    assert (narrow[0].split()[0], wide[0].split()[:2]) == ("no-gpu", ["0gpu-2n", "no-gpu"])
    assert len(narrow) == len(wide)  # no title is folded
    assert max(map(len, narrow)) <= 80
    assert wide == lines(None, "machines")


def test_a_redrawn_wide_table_counts_the_lines_that_the_terminal_wraps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = iter([text_table(("A", "B"), [("x" * 10, f"{n}" * 25) for n in range(9)])])

    def read() -> Any:
        found = next(tables, None)
        if found is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr("gputopo.cli.watch.time.sleep", lambda _: None)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("os.get_terminal_size", lambda: os.terminal_size((20, 8)))
    with pytest.raises(KeyboardInterrupt):
        module.watch_table(module.Watched(read, keys=1, ages=frozenset(), if_empty="none", wide=True))

    _, shown = capsys.readouterr().out.split("\x1b[H\x1b[J")
    head, *rows, last = shown.splitlines()
    assert (head.split(), [len(row) for row in rows], last) == (["A", "B"], [37, 37], "... 7 more lines")
