"""Child processes: awaited, explained, and gone when they should be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.process import Server, ServerError

ROOT = Path(__file__).parents[3]


def test_server_that_ends_is_explained_by_its_log(tmp_path: Path) -> None:
    server = Server("sh", ["/bin/sh", "-c", "echo cannot bind; exit 3"], tmp_path / "sh.log")

    with pytest.raises(ServerError, match="sh ended with 3\ncannot bind"):
        server.wait_until(lambda: False)


def test_server_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    server = Server("sleep", ["/bin/sleep", "60"], tmp_path / "sleep.log")
    try:
        with pytest.raises(ServerError, match=r"sleep was not ready after 0\.1 s"):
            server.wait_until(lambda: False, timeout_s=0.1)
    finally:
        server.stop()

    assert not server.running


def test_a_server_that_does_not_listen_yet_is_no_failure(tmp_path: Path) -> None:
    server = Server("sleep", ["/bin/sleep", "60"], tmp_path / "sleep.log")
    answers = iter([ConnectionRefusedError(), None])

    def ready() -> bool:
        if (answer := next(answers)) is not None:
            raise answer
        return True

    server.wait_until(ready)
    server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a process that was killed")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_server_does_not_outlive_the_test_run(tmp_path: Path, end: signal.Signals) -> None:
    program = (
        "import signal, sys, time; from pathlib import Path; from tests.e2e.process import Server\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell has it ignored in the background
        f"server = Server('sleep', ['/bin/sleep', '60'], Path({str(tmp_path / 'sleep.log')!r}))\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        run.send_signal(end)
        run.wait()

    assert _gone(pid)


def _gone(pid: int) -> bool:
    """Return whether a process ends within 10 s; a zombie counts as ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False
