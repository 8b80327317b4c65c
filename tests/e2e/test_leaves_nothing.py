"""Nothing is left running: after a test run that ends, that fails, and that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.e2e import servers
from tests.e2e.cluster import wait_for
from tests.e2e.conftest import Timed
from tests.e2e.fixtures import PLAIN
from tests.e2e.servers import ControlPlane

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
RUN = """
import os, signal, sys, time
from pathlib import Path
from tests.e2e import binaries, fixtures, servers

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in what it runs in the background
found, folder = binaries.find(os.environ), Path(sys.argv[1])
with servers.control_plane(found, folder) as plane, servers.scheduler(plane, fixtures.PLAIN) as scheduler:
    print(scheduler.pid, *(server.pid for server in plane.servers), flush=True)
    time.sleep(300)
"""


def test_ready_beside_another_and_gone_after_a_failure(
    control_plane: ControlPlane, controllers: tuple[str, ...], tmp_path: Path, timed: Timed
) -> None:
    """Beside the control plane of this run: a second one, as a second checkout would start."""
    with ExitStack() as running:
        with timed("etcd and API server ready"):
            plane = running.enter_context(servers.control_plane(control_plane.binaries, tmp_path))
        others = [servers.scheduler(plane, PLAIN), servers.controller_manager(plane, controllers)]
        pids = [server.pid for server in (*plane.servers, *map(running.enter_context, others))]
        running.enter_context(pytest.raises(KeyboardInterrupt))
        assert [pid for pid in pids if psutil.pid_exists(pid)] == pids
        raise KeyboardInterrupt

    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not (tmp_path / "etcd").exists()


@pytest.mark.usefixtures("control_plane")  # where there is none, there is nothing to leave behind
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=lambda each: each.name)
def test_gone_after_the_test_run_was_ended(tmp_path: Path, end: signal.Signals) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as run:
        assert run.stdout is not None
        pids = [int(pid) for pid in run.stdout.readline().split()]
        run.send_signal(end)
        run.wait(timeout=30)

    assert len(pids) == 3
    wait_for(lambda: not [pid for pid in pids if psutil.pid_exists(pid)], "the servers to end")
