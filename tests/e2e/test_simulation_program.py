"""Simulated nodes of a program of their own, in a cluster that judges nodes by their heartbeats."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api_objects import pod
from tests.e2e import servers
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
NODES = {"gputopo-sim-0", "gputopo-sim-1"}


@pytest.mark.usefixtures("controllers")
def test_nodes_join_any_cluster_run_pods_and_leave(
    cluster: Cluster, scheduler: StartScheduler, controllers: tuple[str, ...], tmp_path: Path
) -> None:
    _make_administrator(cluster)
    (tmp_path / "token").write_text(cluster.token("default"))
    command = [sys.executable, "-m", "tests.simulated_node", f"--server={cluster.url}", "--nodes=2"]
    command += [f"--certificate-authority={cluster.plane.authority.certificate}", f"--token-file={tmp_path / 'token'}"]
    scheduler()
    with (
        servers.controller_manager(cluster.plane, (*controllers, "node-lifecycle-controller")),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program,
    ):
        assert program.stdout is not None
        listed = [program.stdout.readline().split() for _ in NODES]
        cluster.create_pod(pod("train", gpus=8))
        cluster.wait_for_pod("train", lambda each: each["status"]["phase"] == "Running")
        leases = cluster.api.items("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
        nodes = cluster.api.items("/api/v1/nodes")
        program.send_signal(signal.SIGTERM)

    assert program.returncode == 0
    assert {name for name, _, _ in listed} == {node["metadata"]["name"] for node in nodes} == NODES
    assert {lease["spec"]["holderIdentity"] for lease in leases} == NODES
    assert not [path for _, *paths in listed for path in paths if Path(path).exists()]
    wait_for(lambda: not cluster.api.items("/api/v1/nodes"), "the nodes to leave")


def _make_administrator(cluster: Cluster) -> None:
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": cluster.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"metadata": {"name": "administrator"}, "roleRef": role, "subjects": [subject]}
    cluster.api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
