"""Enough nodes and pods for a benchmark."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.api_objects import gpu_node, pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.conftest import Timed
from tests.e2e.fixtures import StartScheduler
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.podresources_client import pod_resources
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e


def test_5000_nodes_and_5000_pods_are_created_side_by_side(cluster: Cluster, timed: Timed) -> None:
    with timed("5,000 nodes and 5,000 pods"):
        cluster.api.create_all([("/api/v1/nodes", gpu_node(f"gpu-{number}", 8)) for number in range(5000)])
        cluster.api.create_all([(cluster.pods(), pod(f"train-{number}", gpus=4)) for number in range(5000)])

    assert [len(cluster.api.items(path)) for path in ("/api/v1/nodes", cluster.pods())] == [5000, 5000]


def test_thousand_simulated_nodes_fit_in_this_process(
    cluster: Cluster, fleet: Fleet, scheduler: StartScheduler, timed: Timed
) -> None:
    """Each has a socket that answers, and together they run what a scheduler binds to them."""
    memory = psutil.Process().memory_info().rss
    shape = islands_4_4()
    with timed("1,000 simulated nodes"):
        fleet.add(*(NodeSpec(name=f"gpu-{number}", shape=shape) for number in range(1000)))
    grown = (psutil.Process().memory_info().rss - memory) / 2**20

    with ThreadPoolExecutor(8) as pool:
        counts = Counter(pool.map(lambda name: _devices(fleet[name].socket), fleet.names))
    scheduler()
    cluster.api.create_all([(cluster.pods(), pod(f"train-{number}", gpus=4)) for number in range(500)])
    wait_for(lambda: _phases(cluster) == {"Running": 500}, "500 running pods", 60)
    given = [fleet.gpus_of(each) for each in cluster.api.items(cluster.pods())]

    assert counts == {8: 1000}
    assert set(given) == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert grown < 100  # MiB


def _devices(socket: Path) -> int:
    """Return the number of devices in the PodResources report of a node."""
    with pod_resources(socket) as ask:
        return len(ask("GetAllocatableResources").devices)


def _phases(cluster: Cluster) -> Counter[str]:
    return Counter(each["status"]["phase"] for each in cluster.api.items(cluster.pods()))
