"""The commands of README, docs and help that read a cluster, run against a real API server with the objects they name.

Values that readers replace are replaced here. Commands that run until they are ended get Ctrl-C.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from tests.api_objects import pod
from tests.documented import CALLS, NEED_CLUSTER
from tests.e2e.cluster import Cluster
from tests.e2e.gangs import running as planners
from tests.e2e.gangs.members import Asked, gang
from tests.e2e.gangs.running import running as planner
from tests.e2e.scheduler.conftest import StartAgents
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e
OTHERS = {"agent", "extender", "planner", "ui-server", "replay"}  # daemons, and decisions of an extender
# They end the installation, so they run last.
REMOVING = ("release", "cleanup")
UNTIL_ENDED_S = 4.0
OK, INTERRUPTED = 0, 130


def is_run(call: tuple[str, ...]) -> bool:
    """Return whether the call reads a cluster, and no other file of the reader."""
    own = {"/var/log/gputopo/decisions.jsonl", "scheduler-config.yaml", "token"}
    return call[0] in NEED_CLUSTER - OTHERS and not own & set(call)


RUN = [call for _, call in CALLS if is_run(call)]


def runs_until_ended(call: Sequence[str]) -> bool:
    """Return whether the command ends only by Ctrl-C."""
    pages = call[0] == "ui" and "-o" not in call
    return pages or "-w" in call or (call[0] == "observe" and "0s" not in call)


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Path:
    """The reader's folder: a kubeconfig, manifests, a policy file, the cluster's objects."""
    config = yaml.safe_load(cluster.kubeconfig(tmp_path / "config").read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = "team-a"
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod"} | pod("new", 2)))
    template = {"metadata": {}, "spec": pod("new", 2)["spec"]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "new"}, "spec": {"template": template}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "docs").symlink_to(Path(__file__).parents[3] / "docs")
    (tmp_path / "policy.yaml").write_text("apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\n")
    return tmp_path


@pytest.fixture
def documented_cluster(cluster: Cluster, fleet: Fleet, agents_of: StartAgents) -> Iterator[planners.Planner]:
    """The nodes, pods and gangs that the documentation names, and a planner."""
    fleet.add(*(NodeSpec(name=name, shape=islands_4_4()) for name in ("gpu-0", "gpu-7")))
    agents_of()
    planners.prepare(cluster)
    for namespace in ("team-a", "training"):
        cluster.create_namespace(namespace)
    never_fits = Asked(3, 8)  # so its pods keep their gates
    named = [pod("train", 2), *(each for name in ("train", "llm-7", "llm-2") for each in gang(name, never_fits))]
    for each in named:
        each["metadata"]["namespace"] = "team-a"
        cluster.create_pod(each)
    with planner(cluster, *planners.GATED) as running:
        running.wait_until_ready()
        yield running


def test_every_documented_command_that_reads_a_cluster(
    cluster: Cluster, documented_cluster: planners.Planner, folder: Path
) -> None:
    kinds = ("nodes", "pods")
    items = [
        {"kind": kind[:-1].capitalize(), "apiVersion": "v1"} | each
        for kind in kinds
        for each in cluster.api.items(f"/api/v1/{kind}")
    ]
    for name in ("cluster.json", "c.json"):
        (folder / name).write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    replaced = {
        "http://127.0.0.1:9439": documented_cluster.pages,
        "http://POD-ADDRESS:9439": documented_cluster.pages,
        "NODE": "gpu-0",
        "NAME": "llm-7",
        "job.first": "llm-7",  # of a Job
        "NAMESPACE": "team-a",
    }
    wrong = {}
    for call in sorted(RUN, key=lambda each: each[0] in REMOVING):
        arguments = [replaced.get(word, word) for word in call]
        code, errors = run(arguments, folder)
        expected = {INTERRUPTED, OK} if runs_until_ended(call) else {OK}
        if code not in expected:
            wrong[" ".join(call)] = f"exit code {code}: {errors[-300:]}"
    assert wrong == {}
    assert len(RUN) > 40


def run(arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    """Return the exit code and the error output of a command, ended after a while if it goes on."""
    environ = os.environ | {"KUBECONFIG": str(folder / "config"), "HOME": str(folder)}
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # of a background job of a shell: a child would ignore it, too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-m", "gputopo", *arguments]
    if arguments[0] == "ui" and "-o" not in arguments:
        command += ["--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, errors = process.communicate(timeout=UNTIL_ENDED_S if runs_until_ended(arguments) else 60.0)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20.0)
    return process.returncode, errors
