"""``gputopo gangs`` and ``why gang`` beside a running planner, with read-only rights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gputopo.cli import main
from gputopo.kube.rbac import GANG_READER, READER, Role
from gputopo.labels import keys
from tests.api_objects import pod
from tests.e2e.agent.access import grant
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import GATES, Asked, create, gang, member, wait_until_whole
from tests.e2e.gangs.running import LEASE, expire_lease
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import started
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e
STOCK = "default-scheduler"
RACK = "cloud.provider.com/topology-rack"
KUEUE = {"name": "kueue.x-k8s.io/admission"}


def allowed(cluster: Cluster, folder: Path, account: str, role: Role) -> str:
    """Return a kubeconfig with only the rights of a role."""
    grant(cluster, account, role)
    return str(cluster.kubeconfig(folder / f"{account}.kubeconfig", cluster.token(account)))


def output_of(config: str, *arguments: str) -> Any:
    """Return the output of the command line."""
    shown = CliRunner().invoke(main.main, [*arguments, "--kubeconfig", config, "-o", "json"])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def test_gangs_and_why_gang(
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    scheduler: StartScheduler,
    planner: StartPlanner,
    tmp_path: Path,
) -> None:
    fleet.add(*(NodeSpec(name=f"gpu-{at}", shape=islands_4_4(), labels={RACK: "r1"}) for at in range(2)))
    agents_of()
    cluster.create_pod(pod("holder", 1, nodeName="gpu-1"))
    started(cluster, "holder")
    scheduler()
    running = planner()
    create(cluster, *gang("runs", Asked(2, 4, scheduler=STOCK)))
    wait_until_whole(cluster, "runs", 2)
    create(cluster, *gang("large", Asked(3, 4, scheduler=STOCK)))
    create(cluster, *gang("few", Asked(3, 4, scheduler=STOCK))[:2])
    create(cluster, member("kueued", 0, Asked(1, 4, scheduler=STOCK), schedulingGates=[*GATES, KUEUE]))
    unnamed = member("unnamed", 0, Asked(1, 4, {keys.POD_GANG.key: "Bad_Name"}, STOCK))
    create(cluster, unnamed, member("ungated", 0, Asked(1, 8, scheduler=STOCK), schedulingGates=[]))
    namespace = ("-n", cluster.namespace)
    config = allowed(cluster, tmp_path, "gang-reader", GANG_READER)
    plain = allowed(cluster, tmp_path, "reader", READER)

    listed = output_of(config, "gangs", *namespace)["items"]
    large = output_of(config, "why", "gang", "large", *namespace, "--server", running.pages)
    runs = output_of(plain, "why", "gang", "runs", *namespace)
    ungated = output_of(config, "why", "gang", "ungated", *namespace)
    running.kill()
    expire_lease(cluster)
    ended = wait_for(lambda: output_of(config, "why", "gang", "large", *namespace)["unplanned"], "its Lease to run out")

    found = {each["pod"] or each["name"]: [each[key] for key in ("phase", "there", "bound", "gpus")] for each in listed}
    assert found == {
        "unnamed-0": ["refused", 1, 0, None],
        "runs": ["running", 2, 2, 8],
        "large": ["queued", 3, 0, 12],
        "few": ["waiting for members", 2, 0, 8],
        "kueued": ["waiting", 1, 0, 4],
    }
    assert f" last renewed its Lease {cluster.namespace}/{LEASE} " in ended
    assert "kubectl label namespace" in ungated["gang"]["advice"]
    assert large["unfit"]["best"] == 1
    assert [each["members"] for each in large["unfit"]["lacks"]] == [["large-1", "large-2"]]
    assert large["relief"]["nodes"] == ["gpu-0"]
    assert sorted(large["relief"]["pods"]) == [f"{cluster.namespace}/runs-{at}" for at in range(2)]
    assert large["gang"]["rollbacks"] == 0
    assert (runs["gang"]["domain"], runs["gang"]["nodes"]) == ("rack=r1", ["gpu-0"])
