"""The command, in separate processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.recording.io import dump_snapshot
from gputopo.labels import keys
from tests.agent.allocation.kubelet import kubelet, listing, pod
from tests.agent.recordings import gpu_lost, load_machine, nvml_of, ports_down
from tests.ports import free_port

COMMAND = [sys.executable, "-c", "from agent.daemon.command import agent; agent()"]
WELL = load_machine("dgx-a100")
BARE = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE", "NODE_NAME"))}
PATIENCE_S = 60.0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "machine.json"
    path.write_text(dump_snapshot(WELL))
    return path


def once(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "--once", *options]
    return subprocess.run(
        command, capture_output=True, text=True, env={**BARE, **environ}, timeout=PATIENCE_S, check=False
    )


def test_once_publishes_a_recorded_machine_and_its_allocations(source: Path, tmp_path: Path) -> None:
    uuid = nvml_of(WELL).gpus[1].uuid or ""
    with kubelet(tmp_path / "k.sock", lambda _: listing(pod("train-0", {"nvidia.com/gpu": [uuid]}))):
        done = once("--publish", "stdout", "--node-source", str(source), "--socket", str(tmp_path / "k.sock"))

    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert f"{keys.ISLANDS.key}=8" in lines
    assert json.loads(lines[-1])["allocations"] == [
        {
            "gpu": uuid,
            "pod": {"namespace": "default", "name": "train-0", "container": "main", "uid": None},
            "replica": None,
            "migDevice": None,
        }
    ]
    events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert events == ["podresources", "pass", "publish", "publish"]


def test_without_a_kubelet_the_agent_publishes_and_reports_it(source: Path, tmp_path: Path) -> None:
    done = once("--publish", "stdout", "--socket", str(tmp_path / "none"), GPUTOPO_NODE_SOURCE=str(source))

    (logged,) = [json.loads(line) for line in done.stderr.splitlines() if '"podresources"' in line]
    assert done.returncode == 0
    assert (logged["level"], logged["error"]) == ("warning", f"{tmp_path / 'none'}: No such file or directory")
    assert json.loads(done.stdout.splitlines()[-1])["allocations"] is None


def test_nfd_gets_a_file_that_expires(source: Path, tmp_path: Path) -> None:
    done = once("--publish", f"features.d:{tmp_path / 'gputopo'}", "--node-source", str(source), "--socket", "off")

    first, *labels = (tmp_path / "gputopo").read_text().splitlines()
    assert done.returncode == 0
    assert first.startswith("# +expiry-time=")
    assert f"{keys.GPUS.key}=8" in labels


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        pytest.param(
            ["--publish", "stdout", "--node-source", "/nowhere.json"],
            1,
            "gputopo: /nowhere.json: [Errno 2] No such file or directory: '/nowhere.json': the NVIDIA driver answered",
            id="no such machine",
        ),
        pytest.param(
            ["--interval", "often"],
            2,
            "gputopo: --interval: 'often': expected a time such as 90s, 5m or 1h",
            id="bad setting",
        ),
        pytest.param(
            ["--publish", "features.d:/nowhere/f", "--node-source", "SOURCE"],
            1,
            "gputopo: nothing is published yet: cannot write /nowhere/f: No such file or directory",
            id="cannot publish",
        ),
        pytest.param(["--node-source", "SOURCE"], 2, "gputopo: no cluster to connect to: ", id="no cluster"),
    ],
)
def test_once_that_fails_says_why(options: list[str], code: int, says: str, source: Path, tmp_path: Path) -> None:
    given = [str(source) if each == "SOURCE" else each for each in options]

    done = once(*given, "--socket", "off", HOME=str(tmp_path))

    assert done.returncode == code
    assert done.stderr.splitlines()[-1].startswith(says)


@contextmanager
def running(*options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "--publish", "stdout", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=BARE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def line_with(process: subprocess.Popen[str], start: str) -> str:
    """The next line of standard output with that prefix."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line.strip()
    raise AssertionError(f"the agent ended without a line that begins with {start!r}")


def test_a_running_agent_follows_its_machine_serves_health_and_stops_on_a_signal(source: Path) -> None:
    port = free_port()
    options = ("--node-source", str(source), "--socket", "off", "--listen", f"127.0.0.1:{port}", "--hold", "0")
    with running(*options) as process:
        assert line_with(process, keys.DEGRADED.key) == f"{keys.DEGRADED.key}=false"
        source.with_suffix(".new").write_text(dump_snapshot(ports_down(WELL, 3, 0)))
        source.with_suffix(".new").replace(source)
        assert line_with(process, keys.DEGRADED.key) == f"{keys.DEGRADED.key}=true"
        assert '"GpuTopologyDegraded"' in line_with(process, '{"reason"')
        assert [ask(port, path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]
        lanes = 'gputopo_link_lanes{a="3",b="nvswitch0"} 11.0'
        wait_until(lambda: lanes in ask(port, "/metrics")[1])  # the metrics follow the labels

        source.write_text(dump_snapshot(gpu_lost(WELL, 5)))
        process.send_signal(signal.SIGHUP)
        assert line_with(process, keys.GPUS.key) == f"{keys.GPUS.key}=7"
        process.terminate()

        assert process.wait(PATIENCE_S) == 0


def test_an_address_in_use_is_reported(source: Path) -> None:
    port = free_port()
    listen = ("--node-source", str(source), "--socket", "off", "--listen", f"127.0.0.1:{port}")
    with running(*listen) as first:
        line_with(first, keys.GPUS.key)
        wait_until_it_listens(port)
        with running(*listen) as second:
            assert second.wait(PATIENCE_S) == 2
            assert second.stderr is not None
            assert second.stderr.read().splitlines()[-1].endswith("Address already in use")


def ask(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def wait_until_it_listens(port: int) -> None:
    for _ in range(600):
        try:
            ask(port, "/healthz")
        except OSError:
            time.sleep(0.1)
        else:
            return
