"""Pods without GPUs and memory: no pod is evicted where the gang would not fit all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api_objects import pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import nodes
from tests.e2e.gangs.members import Asked, create, gang, wait_until_whole
from tests.e2e.gangs.preempting import CHEAP, CRITICAL, create_classes, on_node, options, running_pods
from tests.e2e.scheduler.conftest import StartAgents
from tests.simulated_node.fleet import Fleet

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("served", "gputopo_scheduler")]


@pytest.fixture(autouse=True)
def _priority_classes(cluster: Cluster) -> None:
    create_classes(cluster)


def use_memory(cluster: Cluster, name: str, node: str, amount: str) -> None:
    """Run a pod without GPUs on a node, which has 1 TiB of memory."""
    made = pod(name, nodeName=node)
    made["spec"]["containers"][0]["resources"] = {"requests": {"memory": amount}}
    cluster.create_pod(made)


@pytest.mark.parametrize("full", ["gpu-0", "both"])
def test_where_memory_would_be_missing_the_next_cheapest_pod_is_evicted_or_none(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path, full: str
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    amount = "800Gi" if full == "both" else "500Gi"  # a member fits beside 500 GiB, two members do not
    use_memory(cluster, "loader-0", "gpu-0", amount)
    if full == "both":
        use_memory(cluster, "loader-1", "gpu-1", amount)
    on_node(cluster, "cheap", "gpu-0", CHEAP)
    on_node(cluster, "dear", "gpu-1", {"restart-time": "1h"})
    leader = planner(*options(tmp_path))

    asked = gang("urgent", Asked(2, 4), priorityClassName=CRITICAL)
    for each in asked:
        each["spec"]["containers"][0]["resources"]["requests"] = {"memory": "300Gi"}
    create(cluster, *asked)

    loaders = {"loader-0", "loader-1"} if full == "both" else {"loader-0"}
    if full == "both":
        wait_for(lambda: leader.count("gputopo_planner_preemptions_total", outcome="none") >= 1, "no eviction", 60)
        assert leader.count("gputopo_planner_preemptions_total", outcome="planned") == 0
        assert running_pods(cluster) == {"cheap", "dear", *loaders}
    else:
        wait_until_whole(cluster, "urgent", 2, 100)
        assert running_pods(cluster) == {"cheap", "urgent-0", "urgent-1", *loaders}
