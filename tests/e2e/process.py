"""Servers as child processes: started with their own log, awaited, and ended by their own process id.

ServerError(Exception)   a server ended or did not become ready; the message has the end of its log
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# A server must not outlive a test run that was killed. PR_SET_PDEATHSIG (1) has the kernel end it (9: SIGKILL); it is
# set by a small launcher, since code between fork and exec (preexec_fn) can deadlock in a process with threads. The
# launcher's own parent may have died meanwhile: then it is an orphan already, and nobody would be told. (The kernel
# takes the thread that started it for its parent: start servers on a thread that lasts.)
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]): sys.exit("the test run is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
LOG_TAIL = 30  # lines of a log that a failure shows


class ServerError(Exception):
    """A server ended, or did not become ready in time."""


class Server:
    """A running server. It ends with the context, with ``stop``, or with the test run, whichever is first."""

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self.url: str | None = None  # where it serves health and metrics, for those that do
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
        self._argv = [str(part) for part in command]
        self._environ = None if environ is None else dict(environ)
        self._process = self._started()

    @property
    def pid(self) -> int:
        """Process id: the launcher's, and since exec keeps it, the server's."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Return whether the process is running."""
        return self._process.poll() is None

    def wait_until(self, ready: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait for ``ready``, which may raise OSError while nobody listens yet. Raises ``ServerError``."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if ready():
                    return
            if not self.running:
                raise ServerError(f"{self.name} ended with {self._process.returncode}\n{self.tail()}")
            time.sleep(0.02)
        raise ServerError(f"{self.name} was not ready after {timeout_s:g} s\n{self.tail()}")

    def tail(self, lines: int = LOG_TAIL) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def send(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def ended(self, timeout_s: float = 60.0) -> int:
        """The exit code, None while the process runs; negative: the signal that ended it."""
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """End it at once: nothing that these servers hold is worth a graceful end, which takes seconds."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """End it at once, and start it anew with the same command; the log goes on."""
        self.stop()
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return subprocess.Popen(_tied_to_us(self._argv), stdout=output, stderr=subprocess.STDOUT, env=self._environ)


def _tied_to_us(argv: list[str]) -> list[str]:
    if sys.platform != "linux":  # prctl is Linux's; elsewhere a killed test run leaves its servers to the user
        return argv
    import os

    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *argv]
