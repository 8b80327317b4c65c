"""``gputopo observe`` from the command line to the wire. What it judges is in ``tests/scheduler_core/observe``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from click.testing import CliRunner

from gputopo.cli import main
from gputopo.crd.nodegpus import content_hash
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from gputopo.kube.rbac import LEASES, NODE_GPUS, NODES, PODS
from gputopo.labels import encode_topology, keys
from tests.api_server import Answer, ApiServer, Asked, Stream, api_server, kubeconfig
from tests.gputopo.kube.serving import page
from tests.scheduler_core.explain.fleets import QUADS

FACTS = encode_topology(QUADS)
HASH = content_hash(FACTS.annotations[keys.TOPOLOGY.key])
UUIDS = [gpu.uuid for gpu in QUADS.gpus]
PATIENCE_S = 30.0


def versioned(name: str, uid: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "uid": uid, "resourceVersion": "5", **more}


def node(name: str, *taints: dict[str, str]) -> dict[str, Any]:
    """A node of two islands of four, as the agent labels it."""
    metadata = versioned(name, name, labels=FACTS.labels, annotations=FACTS.annotations)
    status = {"allocatable": {"nvidia.com/gpu": "8"}}
    return {"metadata": metadata, "spec": {"taints": list(taints)}, "status": status}


def pod(name: str, gpus: int, on: str) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    spec = {"containers": [{"name": "c", "resources": {"limits": limits}}], "nodeName": on}
    metadata = versioned(name, f"u-{name}", namespace="team-a")
    return {"metadata": metadata, "spec": spec | {"schedulerName": "default-scheduler"}, "status": {"phase": "Running"}}


def word(name: str, **held: tuple[int, ...]) -> dict[str, Any]:
    """A NodeGpus."""
    allocations = [
        {"gpu": UUIDS[gpu], "pod": {"namespace": "team-a", "name": holder, "container": "c"}}
        for holder, gpus in held.items()
        for gpu in gpus
    ]
    observed = {"observedAt": datetime.now(UTC).isoformat(), "contentHash": HASH, "agentVersion": "0.1.0"}
    return {"metadata": versioned(name, f"g-{name}"), **observed, "allocations": allocations}


HEARTBEATS = LEASES.path(namespace=HEARTBEAT_NAMESPACE)


class Cluster:
    """Lists as they are at first, and a watch of each kind that a test writes to."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.asked: list[Asked] = []
        self.forbidden: set[str] = set()
        ran = [pod("a", 2, "gpu-7"), pod("b", 2, "gpu-7"), pod("web", 0, "gpu-7")]
        words = [word("gpu-7", a=(0, 1), b=(4, 5)), word("gpu-2")]
        self._lists = {
            NODES.path(): page(5, node("gpu-7"), *(nodes or (node("gpu-2"),))),
            PODS.path(): page(5, *ran),
            NODE_GPUS.path(): page(5, *words),
            HEARTBEATS: page(5),
        }
        self._watches = {path: Stream() for path in self._lists}

    def __call__(self, asked: Asked) -> Answer:
        """The answer to one request."""
        self.asked.append(asked)
        if asked.path in self.forbidden:
            return Answer({"kind": "Status", "message": f"{asked.path} is forbidden", "code": 403}, 403)
        return Answer(self._watches[asked.path]) if "watch" in asked.query else self._lists[asked.path]

    def place(self, name: str, on: str, gpus: tuple[int, ...], **others: tuple[int, ...]) -> None:
        """The scheduler binds a pod, and its kubelet names its GPUs."""
        self._watches[PODS.path()].send({"type": "ADDED", "object": pod(name, len(gpus), on)})
        self._watches[NODE_GPUS.path()].send({"type": "MODIFIED", "object": word(on, **others, **{name: gpus})})

    def end(self) -> None:
        """End the watches."""
        for stream in self._watches.values():
            stream.end()


class Running:
    """The command as a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def lines_until(self, start: str) -> list[str]:
        """Return the lines up to the first that matches a regular expression at its start."""
        assert self.process.stdout is not None
        found: list[str] = []
        for line in self.process.stdout:
            found.append(line.rstrip("\n"))
            if re.match(start, found[-1]):
                return found
        raise AssertionError(f"it ended before it printed {start!r}: {found}, {self.errors()}")

    def errors(self) -> str:
        """Return the content of standard error, once the process has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def end(self, how: signal.Signals) -> tuple[int, str]:
        """End the process with a signal. Returns its exit code, and its remaining output."""
        self.process.send_signal(how)
        assert self.process.stdout is not None
        rest = self.process.stdout.read()
        return self.process.wait(PATIENCE_S), rest


@contextmanager
def running(server: ApiServer, folder: Path, *options: str) -> Iterator[Running]:
    """Run the command within the block."""
    command = [sys.executable, "-m", "gputopo", "observe", "--kubeconfig", server.kubeconfig(folder / "config")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE"))}
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def served(cluster: Cluster) -> Iterator[ApiServer]:
    with api_server(cluster) as server:
        try:
            yield server
        finally:
            cluster.end()


def test_placements_are_printed_at_once_and_summed_up_at_the_end(tmp_path: Path) -> None:
    cluster = Cluster()
    with served(cluster) as server, running(server, tmp_path) as observer:
        first = observer.lines_until("Since then")
        cluster.place("train-3", "gpu-7", (2, 3, 6, 7), a=(0, 1), b=(4, 5))
        *_, line = observer.lines_until(r"\d\d:\d\d:\d\dZ")
        code, rest = observer.end(signal.SIGINT)

    assert first[3:5] == [
        "Now: 2 nodes with 16 GPUs, 12 free; 33% of the free GPUs with NVLink are in partly used islands.",
        "     Islands: 2 with 4 free, 2 with 2 free.",
    ]
    assert first[-1] == "Since then, no GPU pod was placed."
    assert line[9:] == (
        "   -73.9 GB/s  team-a/train-3 got 4 GPUs of gpu-7 over PCIe (SYS, at most 126.1 GB/s); "
        "gpu-2 had 4 free in one island (200 GB/s)"
    )
    assert code == 0
    assert "Since then, 1 GPU pod was placed: 1 compared.\n" in rest
    assert (
        "  all                               1         1           0         1           1      1       73.9\n" in rest
    )
    assert {(each.method, each.path) for each in cluster.asked} == {
        ("GET", path) for path in (NODES.path(), PODS.path(), NODE_GPUS.path(), HEARTBEATS)
    }


def test_lines_of_json_and_the_pages(tmp_path: Path) -> None:
    cluster = Cluster()
    options = ("-o", "jsonl", "--listen", "127.0.0.1:0", "--log", "json", "--every", "1s")
    with served(cluster) as server, running(server, tmp_path, *options) as observer:
        assert observer.process.stderr is not None
        port = json.loads(observer.process.stderr.readline())["port"]
        *ran, report = (
            json.loads(line) for line in observer.lines_until('{"apiVersion":"gputopo.io/v1","kind":"Place')
        )
        cluster.place("train-3", "gpu-7", (2, 3, 6, 7), a=(0, 1), b=(4, 5))
        (placed,) = [
            found
            for line in observer.lines_until('{"apiVersion":"gputopo.io/v1","kind":"Obs')
            if (found := json.loads(line))["kind"] == "ObservedPlacement"
        ]
        every = [json.loads(observer.lines_until('{"apiVersion":"gputopo.io/v1","kind":"Place')[-1]) for _ in range(2)]
        pages = {page: get(port, page) for page in ("/healthz", "/readyz", "/metrics", "/report", "/else")}
        code, rest = observer.end(signal.SIGTERM)

    assert [(each["pod"], each["ranBefore"]) for each in ran] == [("a", True), ("b", True)]
    assert report["placed"]["total"]["placed"] == 0
    assert (placed["pod"], placed["verdict"], placed["lostGbps"]) == ("train-3", "worse", 73.9)
    assert every[-1]["placed"]["total"]["lostGbps"] == 73.9
    assert {page: status for page, (status, _) in pages.items()} == {
        "/healthz": 200,
        "/readyz": 200,
        "/metrics": 200,
        "/report": 200,
        "/else": 404,
    }
    metrics = pages["/metrics"][1].splitlines()
    for sample in (
        'gputopo_observed_placements_total{island="split",scheduler="default-scheduler",size="4"} 1.0',
        'gputopo_observed_verdicts_total{scheduler="default-scheduler",verdict="worse"} 1.0',
        'gputopo_observed_lost_gbps_total{scheduler="default-scheduler",size="4"} 73.9',
        'gputopo_free_gpus{island="whole"} 8.0',
        'gputopo_watch_synced{kind="pods"} 1.0',
        "gputopo_observe_ready 1.0",
    ):
        assert sample in metrics, sample
    assert json.loads(pages["/report"][1])["kind"] == "PlacementReport"
    assert code == 0
    assert json.loads(rest.splitlines()[-1])["kind"] == "PlacementReport"


def get(port: int, page: str) -> tuple[int, str]:
    answer = urllib3.request("GET", f"http://127.0.0.1:{port}{page}", timeout=10.0, retries=False)
    return answer.status, answer.data.decode()


def test_pods_that_run_at_the_start_are_compared(tmp_path: Path) -> None:
    with served(Cluster()) as server:
        there = ["--kubeconfig", server.kubeconfig(tmp_path / "config")]
        shown = CliRunner().invoke(main.main, ["observe", *there, "--for", "0s"])

    assert shown.exit_code == 0
    assert "At the start, 2 GPU pods ran: 2 compared.\n" in shown.output
    assert shown.output.count("gputopo observe: ") == 1


def test_a_taint_that_a_pod_does_not_tolerate_is_looked_at(tmp_path: Path) -> None:
    cluster = Cluster(node("gpu-2", {"key": "team", "value": "b", "effect": "NoSchedule"}))
    with served(cluster) as server, running(server, tmp_path, "-o", "jsonl") as observer:
        observer.lines_until('{"apiVersion":"gputopo.io/v1","kind":"Place')
        cluster.place("train-3", "gpu-7", (2, 3, 6, 7), a=(0, 1), b=(4, 5))
        found = json.loads(observer.lines_until('{"apiVersion":"gputopo.io/v1","kind":"Obs')[-1])

    assert (found["verdict"], found["byUs"]["node"]) == ("good", "gpu-7")


def test_it_ends_when_its_reader_has_gone(tmp_path: Path) -> None:
    with served(Cluster()) as server, running(server, tmp_path, "--every", "1s") as observer:
        observer.lines_until("Since then")
        assert observer.process.stdout is not None
        observer.process.stdout.close()

        assert observer.process.wait(PATIENCE_S) == 0
        assert observer.errors() == ""


def test_without_permission_to_list_the_error_is_logged_and_the_list_retried(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.forbidden.add(PODS.path())
    with served(cluster) as server, running(server, tmp_path) as observer:
        assert observer.process.stderr is not None
        warning = observer.process.stderr.readline()
        code, _ = observer.end(signal.SIGTERM)
        errors = observer.errors()

    assert "warning watch kind=pods trouble=" in warning
    assert "/api/v1/pods is forbidden" in warning
    assert code == 4
    assert errors.startswith("gputopo: could not list all objects: ")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        pytest.param(["--for", "soon"], 2, "--for: 'soon': expected a time such as 90s, 5m or 1h", id="no-duration"),
        pytest.param(["-o", "yaml"], 2, "--output: 'yaml': expected one of text, jsonl", id="no-format"),
        pytest.param(["--kubeconfig", "/nowhere"], 4, "/nowhere", id="no-kubeconfig"),
        pytest.param(["--listen", "203.0.113.1:1"], 2, "cannot listen on 203.0.113.1:1", id="no-address"),
    ],
)
def test_unsuitable_settings_are_refused(tmp_path: Path, options: list[str], code: int, message: str) -> None:
    config = tmp_path / "config"
    config.write_text(yaml.safe_dump(kubeconfig("http://127.0.0.1:1", "token")))
    shown = CliRunner().invoke(main.main, ["observe", "--kubeconfig", str(config), *options])

    assert shown.exit_code == code
    assert message in shown.output


def test_time_alone_ends_it(tmp_path: Path) -> None:
    with served(Cluster()) as server, running(server, tmp_path, "--for", "1s") as observer:
        began = time.monotonic()
        assert observer.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - began >= 1.0
