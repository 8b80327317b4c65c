"""The agent as a process of its own, against the real API server and a simulated node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gputopo.kube.rbac import AGENT, NODE_GPUS
from tests.api_client import ApiError
from tests.api_objects import Object
from tests.e2e.agent.access import define_node_gpus, grant, user
from tests.e2e.agent.conftest import ACCOUNT
from tests.e2e.cluster import Cluster, wait_for

COMMAND = [sys.executable, "-c", "from agent.daemon.command import agent; agent()"]
PATIENCE_S = 60.0  # for a busy machine; nothing here waits longer than it must
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE", "NODE_NAME"))}


class Agent:
    """A running agent and what it logged."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The logged lines of one event so far."""
        whole = self._log.read_bytes().rpartition(b"\n")[0]
        found: list[dict[str, Any]] = [msgspec.json.decode(line) for line in whole.splitlines() if line[:1] == b"{"]
        return [each for each in found if each["event"] == event]

    def looks(self, more: int) -> None:
        """Wait until it has looked at its machine that many times more."""
        until = len(self.lines("pass")) + more
        wait_for(lambda: len(self.lines("pass")) >= until, f"{until} looks", PATIENCE_S)

    def send(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def ended(self) -> int:
        """Wait for the end of the agent. Returns its exit code."""
        return self._process.wait(PATIENCE_S)

    def end(self) -> int:
        """End the agent with SIGTERM, as the kubelet does. Returns its exit code."""
        self._process.terminate()
        return self.ended()


def prepare(cluster: Cluster) -> None:
    """Create the custom resource, and a service account with the agent's role, as the manifests do."""
    define_node_gpus(cluster)
    grant(cluster, ACCOUNT, AGENT)


@contextmanager
def running(cluster: Cluster, folder: Path, *options: str, kubeconfig: Path | None = None) -> Iterator[Agent]:
    """Run an agent within the block; ``options`` beside those that make it quick."""
    number = len(list(folder.glob("agent-*.log")))
    config = kubeconfig or cluster.kubeconfig(folder / "agent.kubeconfig", cluster.token(ACCOUNT))
    log = folder / f"agent-{number}.log"
    quick = ("--interval", "1", "--hold", "3", "--heartbeat", "1h", "--listen", "off")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, *quick, *options], stdout=file, stderr=file, env={**_CLEAN, "KUBECONFIG": str(config)}
        )
    try:
        yield Agent(process, log)
    finally:
        process.kill()
        process.wait()


def node_labels(cluster: Cluster, name: str) -> dict[str, str]:
    """The labels of a Node."""
    return dict(cluster.api.get(f"/api/v1/nodes/{name}")["metadata"].get("labels", {}))


def wait_for_label(cluster: Cluster, node: str, key: str, value: str) -> None:
    """Wait until a Node carries that label."""
    wait_for(lambda: node_labels(cluster, node).get(key) == value, f"{key}={value} on {node}", PATIENCE_S)


def node_gpus(cluster: Cluster, name: str) -> Object | None:
    """The ``NodeGpus`` of a node; None while there is none."""
    try:
        return dict(cluster.api.get(NODE_GPUS.path(name)))
    except ApiError as refused:
        if refused.status != 404:
            raise
        return None


def agent_writes(cluster: Cluster) -> list[tuple[str, str]]:
    """Return all writes of the agents of this test as (resource, verb), rejected writes included."""
    mine = user(cluster, ACCOUNT)
    return [(write.resource, write.verb) for write in cluster.writes() if write.user == mine]
