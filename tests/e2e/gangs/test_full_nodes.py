"""Nodes that pods without GPUs fill: gangs of other tenants go to other nodes at once, and wait where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.api_objects import Object, pod
from tests.e2e.attacks import FIGURE
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import nodes
from tests.e2e.gangs.members import Asked, create, gang, node_of, of, wait_until_whole
from tests.e2e.gangs.running import GATED
from tests.e2e.scheduler import volumes
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import gpu_pod
from tests.simulated_node.fleet import Fleet

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("served", "gputopo_scheduler")]
# A node has 128 CPUs, 1 TiB of memory and 110 pod slots.
FILLED_BY = {
    "CPU": ("Insufficient cpu", 1, {"cpu": "124"}),
    "memory": ("Insufficient memory", 1, {"memory": "1000Gi"}),
    "pod slots": ("Too many pods", 110, {}),
}


def fill(cluster: Cluster, node: str, number: int, requests: dict[str, str]) -> list[Object]:
    """Run pods without GPUs on a node."""
    found = [pod(f"{node}-{at}", nodeName=node) for at in range(number)]
    for each in found:
        each["spec"]["containers"][0]["resources"] = {"requests": requests}
    create(cluster, *found)
    return found


def asking(name: str, requests: dict[str, str]) -> list[Object]:
    """Return a gang of two members with eight GPUs each. ``requests``: of each member."""
    found = gang(name, Asked(2, 8))
    for each in found:
        each["spec"]["containers"][0]["resources"]["requests"] = requests
    return found


def reasons(cluster: Cluster) -> str:
    """The messages of the planner's Events about gangs that do not fit."""
    found = cluster.api.items(f"/api/v1/namespaces/{cluster.namespace}/events", fieldSelector="reason=GangUnplaced")
    return "; ".join(each.get("message") or each.get("note") or "" for each in found)


@pytest.mark.parametrize("resource", FILLED_BY)
def test_gangs_start_beside_full_nodes_and_a_waiting_gang_when_pods_end(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, resource: str
) -> None:
    """Not after a roll back: a gang of bare pods that is rolled back never starts."""
    reason, number, requests = FILLED_BY[resource]
    nodes(fleet, **{f"gpu_{at}": {} for at in range(5)})
    agents_of()
    filled = {name: fill(cluster, name, number, requests) for name in ("gpu-0", "gpu-1", "gpu-2")}
    leader = planner(*GATED)
    own: dict[str, Any] = {"cpu": "8", "memory": "64Gi"}

    create(cluster, *asking("first", own))

    assert {node_of(each) for each in wait_until_whole(cluster, "first", 2, 20)} == {"gpu-3", "gpu-4"}
    create(cluster, *asking("second", own))
    wait_for(lambda: reason in reasons(cluster), f"the reason: {reason}", 20)
    assert not any(map(node_of, of(cluster, "second")))
    for name in ("gpu-1", "gpu-2"):
        for each in filled[name]:
            cluster.api.delete(cluster.pods(each["metadata"]["name"]))
    assert {node_of(each) for each in wait_until_whole(cluster, "second", 2, 20)} == {"gpu-1", "gpu-2"}
    assert leader.count("gputopo_planner_rollbacks_total") == 0


def test_gangs_start_beside_a_node_where_a_pod_without_gpus_waits_for_its_volume(
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    planner: StartPlanner,
    record_property: Callable[[str, object], None],
) -> None:
    """kube-scheduler counts the pod on the node, to which it is not bound yet."""
    nodes(fleet, gpu_0={}, gpu_1={}, gpu_2={})
    agents_of()
    leader = planner(*GATED)
    volumes.offer(cluster, "gpu-0")
    slow = volumes.using(gpu_pod("slow", 0))
    slow["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "124"}}
    cluster.create_pod(slow)
    volumes.wait_for_pre_bind(cluster, "gpu-0")

    began = time.monotonic()
    create(cluster, *asking("first", {"cpu": "8"}))

    assert {node_of(each) for each in wait_until_whole(cluster, "first", 2, 60)} == {"gpu-1", "gpu-2"}
    assert leader.count("gputopo_planner_rollbacks_total") == 0
    record_property(
        FIGURE, f"the gang starts on other nodes after {time.monotonic() - began:.1f} s, without a rollback"
    )
