"""Runs ``nvidia-smi`` and keeps what it printed. Parsing is another module's business."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING

from agent.snapshot import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

# The quickest first: it tells whether there is a driver to talk to.
COMMANDS = ("-L", "topo -m", "topo -p2p n", "nvlink -s", "-q -x")
TIMEOUT_S = 60.0  # without persistence mode nvidia-smi wakes every GPU, up to 5 s each

# What a shell would say; nvidia-smi's own exit codes are nvmlReturn_t.
NOT_STARTED = 127
NO_ANSWER = 124


def read_smi(executable: str, environ: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> dict[str, Output]:
    """Run every command: its arguments -> what it printed.

    Where one cannot be started, or does not end in time, the rest is not tried: they would fare no better, and a
    driver that hangs would be asked five times.
    """
    outputs: dict[str, Output] = {}
    for command in COMMANDS:
        outputs[command] = run_smi(executable, command, environ, timeout_s)
        if outputs[command].exit_code in (NOT_STARTED, NO_ANSWER):
            break
    return outputs


def run_smi(executable: str, arguments: str, environ: Mapping[str, str], timeout_s: float) -> Output:
    """Run one command. Never raises for what the command does: see ``NOT_STARTED`` and ``NO_ANSWER``."""
    command = [executable, *arguments.split()]
    # Files, not pipes: a child that hangs in the driver cannot be killed, and a pipe would be waited for.
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
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that sleeps in the kernel dies when it wakes
                child.wait(1)
            return Output(_text(stdout), NO_ANSWER, f"{_text(stderr)}no answer within {timeout_s:g} s\n")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
