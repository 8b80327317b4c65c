"""``gputopo release`` removes the gates when no planner is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.kube.rbac import RELEASER
from tests.e2e.agent.access import grant
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.members import GATES, Asked, create, gang, node_of, of, wait_until_whole
from tests.e2e.gangs.running import define_reservations
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
KUEUE = {"name": "kueue.x-k8s.io/admission"}
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE"))}


def release(cluster: Cluster, folder: Path, *options: str) -> str:
    """Run the command with the rights of its role; return its output."""
    grant(cluster, "releaser", RELEASER)
    kubeconfig = cluster.kubeconfig(folder / "releaser.kubeconfig", cluster.token("releaser"))
    command = [sys.executable, "-m", "gputopo", "release", *options]
    environ = _CLEAN | {"KUBECONFIG": str(kubeconfig)}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_release_gives_every_pod_to_ordinary_scheduling(
    cluster: Cluster, gpu_nodes: Fleet, scheduler: StartScheduler, tmp_path: Path
) -> None:
    assert gpu_nodes.names
    define_reservations(cluster)
    scheduler()
    asked = Asked(3, 8, scheduler="default-scheduler")
    create(cluster, *gang("train", asked), *gang("queued", asked, schedulingGates=[KUEUE, *GATES]))

    release(cluster, tmp_path, "--all")

    wait_until_whole(cluster, "train", 3)
    wait_for(lambda: gates(cluster, "queued") == [[KUEUE]] * 3, "our gate to go, and no other")
    assert [node_of(each) for each in of(cluster, "queued")] == [None] * 3


def gates(cluster: Cluster, name: str) -> list[list[dict[str, str]]]:
    """Return the gates of each member."""
    return [each["spec"].get("schedulingGates", []) for each in of(cluster, name)]
