"""The rates of network cards count in the choice of a gang's nodes: agents, planner and stock kube-scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gputopo.cli import main
from gputopo.kube.rbac import GANG_READER
from tests.e2e.agent.access import grant
from tests.e2e.cluster import Cluster
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import Asked, create, gang, wait_until_whole
from tests.e2e.scheduler.conftest import StartAgents
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import nvswitch_8, with_nics

pytestmark = pytest.mark.e2e


def test_a_gang_takes_the_nodes_with_the_fastest_network_cards(
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    scheduler: StartScheduler,
    planner: StartPlanner,
    tmp_path: Path,
) -> None:
    """All nodes have the same GPUs. Those with the first names have slow cards, or ports that are down."""
    rates = {"a-down": None, "b-slow": 100, "c-slow": 100, "x-fast": 400, "y-fast": 400, "z-slow": 100}
    fleet.add(*(NodeSpec(name=name, shape=with_nics(nvswitch_8(), gbps)) for name, gbps in rates.items()))
    agents_of()
    scheduler()
    running = planner()

    create(cluster, *gang("train", Asked(2, 8, {}, "default-scheduler")))

    pods = wait_until_whole(cluster, "train", 2)
    assert sorted(each["spec"]["nodeName"] for each in pods) == ["x-fast", "y-fast"]
    grant(cluster, "gang-reader", GANG_READER)
    config = str(cluster.kubeconfig(tmp_path / "kubeconfig", cluster.token("gang-reader")))
    asked = ["why", "gang", "train", "-n", cluster.namespace, "--server", running.pages, "-o", "json"]
    shown = CliRunner().invoke(main.main, [*asked, "--kubeconfig", config])
    assert shown.exit_code == 0, shown.output
    (place,) = json.loads(shown.stdout)["places"]
    # 8 cards of 400 Gbit/s, both ways, in bytes.
    assert (place["networkGbps"], place["networkSource"]) == (800.0, "NICs near the GPUs of x-fast, per node")
