"""Runs ``nvidia-smi`` and keeps its output; other modules parse it."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING

from agent.snapshot import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

# The fastest first: it fails quickly where no driver is loaded.
COMMANDS = ("-L", "topo -m", "topo -p2p n", "nvlink -s", "-q -x")
TIMEOUT_S = 60.0  # without persistence mode nvidia-smi initialises every GPU, up to 5 s each

# Exit codes as in a shell; nvidia-smi's own are nvmlReturn_t.
NOT_STARTED = 127
NO_ANSWER = 124


def read_smi(executable: str, environ: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> dict[str, Output]:
    """Run all commands. Returns their outputs by arguments.

    If a command cannot be started, or does not end in time, the remaining ones are skipped: they would fail too.
    """
    outputs: dict[str, Output] = {}
    for command in COMMANDS:
        outputs[command] = run_smi(executable, command, environ, timeout_s)
        if outputs[command].exit_code in (NOT_STARTED, NO_ANSWER):
            break
    return outputs


def run_smi(executable: str, arguments: str, environ: Mapping[str, str], timeout_s: float) -> Output:
    """Run one command. Errors of the command are not raised: see ``NOT_STARTED`` and ``NO_ANSWER``."""
    command = [executable, *arguments.split()]
    # Files, not pipes: a child that hangs in the driver cannot be killed, and reading its pipe would block.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        try:
            child = subprocess.Popen(  # noqa: S603  no shell, and the arguments are ours
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env={**environ, "LC_ALL": "C"}
            )
        except OSError as error:
            return Output("", NOT_STARTED, f"{executable}: {error.strerror}\n")
        try:
            return Output(exit_code=child.wait(timeout_s), stdout=_text(stdout), stderr=_text(stderr))
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process that sleeps in the kernel ends later
                child.wait(1)
            return Output(_text(stdout), NO_ANSWER, f"{_text(stderr)}no answer within {timeout_s:g} s\n")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
