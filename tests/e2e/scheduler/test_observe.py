"""The observer beside the stock kube-scheduler: it says what a bad placement cost, and writes nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputopo.kube.rbac import OBSERVER
from tests.api_objects import Object, container, pod
from tests.e2e.agent.access import grant, user
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.process import Server
from tests.e2e.scheduler.allocations import alternating
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import started
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e
ACCOUNT = "observer"
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE"))}


class Observer:
    """``gputopo observe -o jsonl`` as a process, with the rights that its role lists."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def documents(self, kind: str) -> list[Object]:
        """Return all printed documents of a kind."""
        lines = self.server.log.read_text().split("\n")[:-1]  # what follows the last newline is still being written
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [each for each in found if each.get("kind") == kind]

    def placement(self, name: str) -> Object:
        """Wait until it has judged a pod."""

        def judged() -> Object | None:
            return next((each for each in self.documents("ObservedPlacement") if each["pod"] == name), None)

        return wait_for(judged, f"a word on {name}")


@pytest.fixture
def observer(cluster: Cluster, fleet: Fleet, agents_of: StartAgents, tmp_path: Path) -> Iterator[Observer]:
    """An observer that follows a cluster of two nodes, of which ``split`` has two GPUs free in each of two islands."""
    fleet.add(NodeSpec(name="split", shape=islands_4_4(), policy=alternating))
    fleet.add(NodeSpec(name="whole", shape=islands_4_4()))
    cluster.create_pod(pod("holder", 4, nodeName="split"))
    assert fleet.gpus_of(started(cluster, "holder")) == (0, 1, 4, 5)
    # The stock scheduler balances CPU: it likes the node that has more of it.
    hungry = container("main") | {"resources": {"requests": {"cpu": "8"}}}
    cluster.create_pod(pod("web", nodeName="whole", containers=[hungry]))
    agents_of()
    grant(cluster, ACCOUNT, OBSERVER)
    config = cluster.kubeconfig(tmp_path / "kubeconfig", cluster.token(ACCOUNT))
    command = [sys.executable, "-m", "gputopo", "observe", "--kubeconfig", str(config), "-o", "jsonl"]
    server = Server("observer", command, tmp_path / "observer.log", _CLEAN)
    try:
        running = Observer(server)
        server.wait_until(lambda: bool(running.documents("PlacementReport")))
        yield running
    finally:
        server.stop()


def test_a_bad_placement_is_reported_with_the_better_choice(
    cluster: Cluster, fleet: Fleet, observer: Observer, scheduler: StartScheduler
) -> None:
    scheduler()
    cluster.create_pod(pod("train", 4))
    train = started(cluster, "train")
    found = observer.placement("train")

    assert (train["spec"]["nodeName"], fleet.gpus_of(train)) == ("split", (2, 3, 6, 7))
    assert (found["node"], found["indices"], found["verdict"]) == ("split", [2, 3, 6, 7], "worse")
    assert found["scheduler"] == "default-scheduler"
    assert found["got"]["worst"]["oneIsland"] is False
    assert (found["byUs"]["node"], found["byUs"]["oneIsland"], found["byUs"]["ring"]["gbps"]) == ("whole", True, 200.0)
    assert found["text"].endswith("; whole had 4 free in one island (200 GB/s)")

    (holder,) = (each for each in observer.documents("ObservedPlacement") if each["pod"] == "holder")
    assert (holder["ranBefore"], holder["indices"], holder["verdict"]) == (True, [0, 1, 4, 5], "worse")
    cluster.create_pod(pod("next", 4))
    assert observer.placement("next")["verdict"] == "good"
    assert [write for write in cluster.writes() if write.user == user(cluster, ACCOUNT)] == []
