"""Running nvidia-smi: real processes, with short scripts in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.snapshot import Output
from agent.sources.smi.runner import COMMANDS, read_smi, run_smi

if TYPE_CHECKING:
    from pathlib import Path

PATH = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "nvidia-smi"
    path.touch(mode=0o755)
    return path


def test_every_command_is_run_with_its_arguments_in_the_c_locale(script: Path) -> None:
    script.write_text('#!/bin/sh\necho "$* $LC_ALL $HOME"\n')

    assert read_smi(str(script), {**PATH, "HOME": "/h", "LC_ALL": "de_DE"}) == {
        command: Output(f"{command} C /h\n") for command in ("-L", "topo -m", "topo -p2p n", "nvlink -s", "-q -x")
    }


def test_a_failed_command_is_kept_and_the_next_one_runs(script: Path) -> None:
    script.write_text("#!/bin/sh\necho out\necho bad >&2\nexit 18\n")

    assert read_smi(str(script), PATH) == dict.fromkeys(COMMANDS, Output("out\n", 18, "bad\n"))


def test_a_missing_program_is_started_once(tmp_path: Path) -> None:
    absent = str(tmp_path / "nvidia-smi")

    assert read_smi(absent, PATH) == {"-L": Output("", 127, f"{absent}: No such file or directory\n")}


def test_after_a_timeout_no_command_is_run(script: Path) -> None:
    script.write_text("#!/bin/sh\necho first\necho second >&2\nexec sleep 60\n")

    assert read_smi(str(script), PATH, timeout_s=0.5) == {
        "-L": Output("first\n", 124, "second\nno answer within 0.5 s\n")
    }


def test_bytes_that_are_not_utf8_stay_readable(script: Path) -> None:
    script.write_text("#!/bin/sh\nprintf 'a\\377b'\n")

    assert run_smi(str(script), "-L", PATH, 10) == Output("a\ufffdb")
