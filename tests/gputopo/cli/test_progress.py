"""The progress of long work: a line on a terminal that is removed at the end, and nothing anywhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest

from scheduler_core.extender.decision_record import encode_decision
from tests.scheduler_core.extender.decisions import PODS, decided

ROOT = Path(__file__).parents[3]
WORK = """
import gputopo.cli.progress as kit
kit._DELAY_S = kit._PERIOD_S = 0.0
{body}
"""
SIMULATE = 'from gputopo.cli import run; import sys; sys.argv = ["gputopo", *{}]; run()'
JOBS = ["simulate", "--cluster", "dgx-a100*2", "--jobs", "30", "--policies", "ours,spread"]


def on_terminal(
    body: str, environment: Mapping[str, str] = {}, *, columns: int = 80, together: bool = False, code: int = 0
) -> tuple[str, str]:
    """Run Python with standard error on a terminal. Return what the terminal and standard output got.

    ``together``: standard output is the terminal, too.
    """
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", WORK.format(body=body)],
        stdout=terminal if together else subprocess.PIPE,
        stderr=terminal,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", **environment},
    )
    os.close(terminal)
    seen = bytearray()
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the last writer has closed the terminal
            break
        if not part:
            break
        seen += part
    os.close(master)
    output = process.communicate()[0]
    assert process.returncode == code, seen.decode()
    return seen.decode(), (output or b"").decode()


def last_line(seen: str) -> str:
    """Return the line of the cursor as a terminal shows it in the end."""
    shown = ""
    for part in seen.rpartition("\n")[2].split("\r"):
        shown = part + shown[len(part) :]
    return shown.rstrip()


def test_a_line_counts_the_steps_and_is_removed_at_the_end() -> None:
    seen, _ = on_terminal('with kit.ProgressLine("work", 4) as shown:\n    for _ in range(4): shown.advance()')

    assert [part.strip() for part in seen.split("\r") if part.strip()] == [f"work: {n} %" for n in (25, 50, 75, 100)]
    assert last_line(seen) == ""


def test_an_error_removes_the_line_before_its_message() -> None:
    seen, _ = on_terminal(
        "try:\n    with kit.ProgressLine('work', 9) as shown:\n        shown.advance(); raise ValueError\n"
        "except ValueError:\n    import sys; print('refused', file=sys.stderr, end='')"
    )

    assert "work: 11 %" in seen
    assert last_line(seen) == "refused"


@pytest.mark.parametrize("columns", [12, 30, 200])
def test_the_line_is_never_wider_than_the_terminal(columns: int) -> None:
    seen, _ = on_terminal(
        'with kit.ProgressLine("work " * 20) as shown:\n    for _ in range(3): shown.advance()', columns=columns
    )

    assert seen.strip()
    assert max(map(len, seen.replace("\n", "\r").split("\r"))) < columns


def test_a_shorter_line_leaves_nothing_of_a_longer_one() -> None:
    seen, _ = on_terminal(
        'shown = kit.ProgressLine("work")\nshown.detail = "a long name"\nshown.draw()\nshown.detail = "b"\nshown.draw()'
    )

    assert last_line(seen) == "work (b) ..."


def test_simulate_names_the_policy_on_a_terminal_and_prints_only_its_report_elsewhere() -> None:
    seen, output = on_terminal(SIMULATE.format(JOBS))
    plain = subprocess.run(
        [sys.executable, "-m", "gputopo", *JOBS], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert "simulate, seed 42: " in seen
    assert "% (spread)" in seen
    assert last_line(seen) == ""
    assert output.startswith("2 nodes with 16 GPUs")
    assert plain.stderr == ""


@pytest.mark.parametrize(
    ("environment", "shown"),
    [({"NO_COLOR": "1"}, True), ({"TERM": "dumb"}, False), ({}, True)],
    ids=["no colour", "dumb", "terminal"],
)
def test_no_escape_codes_and_nothing_on_a_terminal_that_cannot_overwrite(
    environment: dict[str, str], shown: bool
) -> None:
    seen, _ = on_terminal(SIMULATE.format(JOBS), environment)

    assert ("simulate" in seen) is shown
    assert "\x1b" not in seen


def test_a_large_file_is_named_while_it_is_read_and_its_name_cannot_move_the_cursor() -> None:
    seen, _ = on_terminal(
        "with kit.input_progress('cl\\x1b[2Juster.json', 5 << 20): pass\nwith kit.input_progress('x', 100): pass"
    )

    assert "reading cl\\x1b[2Juster.json, 5 MiB ..." in seen
    assert "reading x" not in seen


def test_record_names_the_source_that_it_reads() -> None:
    body = (
        "from gputopo.cli.main import main\n"
        "try:\n    main(['record', '-o', '/dev/null'])\n"
        "except SystemExit as ended:\n    assert ended.code in (0, 3)"
    )
    seen, _ = on_terminal(body)

    assert [f"record ({name}) ..." in seen for name in ("sysfs", "host", "nvml", "smi")] == [True] * 4


def test_replay_counts_decisions_and_removes_its_line_before_a_difference(tmp_path: Path) -> None:
    lines = [encode_decision(each).rstrip(b"\n") + b"\n" for each in decided(*PODS.values())]
    recorded = tmp_path / "decisions.jsonl"
    recorded.write_bytes(b"".join([lines[0], lines[0].replace(b'"answer":["n', b'"answer":["m', 1)]))
    seen, _ = on_terminal(SIMULATE.format(["replay", str(recorded)]), together=True, code=1)

    assert "replay: 1 decisions" in seen
    assert "\r" + " " * len("replay: 1 decisions") + "\rline 2: pod team/a" in seen
    assert "2 decisions replayed, 1 differ" in seen
