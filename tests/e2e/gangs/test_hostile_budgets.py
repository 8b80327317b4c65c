"""A tenant's PodDisruptionBudgets, and its pods without GPUs, do not keep pods of others from being evicted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.api_client import Client
from tests.api_objects import Object
from tests.e2e.attacks import FIGURE
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import nodes
from tests.e2e.gangs.members import Asked, create, gang, node_of, wait_until_whole
from tests.e2e.gangs.preempting import (
    CHEAP,
    COSTLY,
    CRITICAL,
    create_classes,
    on_node,
    options,
    running_pods,
    when_a_pod_terminates,
)
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import gpu_pod, started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
OTHER = "other-tenant"
MEBI = 1 << 20
BUDGETS, VALUES = 300, 9_000  # of 300 kB each
Record = Callable[[str, object], None]


@pytest.fixture(autouse=True)
def _priority_classes(cluster: Cluster) -> None:
    create_classes(cluster)
    cluster.create_namespace(OTHER)


def budgets(cluster: Cluster) -> str:
    return f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets"


def bound(cluster: Cluster, name: str) -> bool:
    """Return whether a pod of the other tenant is on a node, and not terminating."""
    found = [each for each in cluster.api.items(cluster.pods(namespace=OTHER)) if each["metadata"]["name"] == name]
    return any(node_of(each) and "deletionTimestamp" not in each["metadata"] for each in found)


def run_other(cluster: Cluster, node: str) -> None:
    """Run a pod of another tenant on a node, whose eviction costs more."""
    pod = gpu_pod("dear", 8, COSTLY, nodeSelector={"kubernetes.io/hostname": node}, terminationGracePeriodSeconds=1)
    pod["metadata"]["namespace"] = OTHER
    cluster.create_pod(pod)
    wait_for(lambda: bound(cluster, "dear"), "the pod of another tenant", 60)


def seconds_until_whole(cluster: Cluster, name: str) -> float:
    began = time.monotonic()
    wait_until_whole(cluster, name, 1, 180)
    return time.monotonic() - began


@pytest.mark.usefixtures("controller_manager", "served", "gputopo_scheduler")
def test_a_budget_that_allows_nothing_once_the_first_pod_terminates_delays_a_gang_by_half_a_minute(
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    planner: StartPlanner,
    tmp_path: Path,
    record_property: Record,
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    planner(*options(tmp_path))
    run_other(cluster, "gpu-1")
    trap = {"nodeSelector": {"kubernetes.io/hostname": "gpu-0"}, "terminationGracePeriodSeconds": 2}
    pods = gang("trap", Asked(8, 1, CHEAP), **trap)
    create(cluster, *({**each, "metadata": {**each["metadata"], "labels": {"app": "trap"}}} for each in pods))
    wait_until_whole(cluster, "trap", 8)
    budget = {"metadata": {"name": "trap"}, "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": "trap"}}}}
    cluster.api.create(budgets(cluster), budget)
    allowed = f"{budgets(cluster)}/trap"
    wait_for(lambda: cluster.api.get(allowed).get("status", {}).get("disruptionsAllowed") == 8, "the budget", 60)

    def forbid(api: Client) -> None:
        """Let the budget of the tenant allow nothing."""
        api.patch(f"{budgets(cluster)}/trap", {"spec": {"minAvailable": 8}})

    with when_a_pod_terminates(cluster, cluster.namespace, forbid):
        create(cluster, *gang("urgent", Asked(1, 8), priorityClassName=CRITICAL))
        waited = seconds_until_whole(cluster, "urgent")

    assert not bound(cluster, "dear")
    assert len([each for each in running_pods(cluster) if each.startswith("trap")]) > 0
    record_property(FIGURE, f"the gang starts after {waited:.0f} s: other pods are evicted for it")


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_large_budgets_neither_delay_a_preemption_nor_take_the_memory_of_the_planner(
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    planner: StartPlanner,
    tmp_path: Path,
    record_property: Record,
) -> None:
    """They select no running pod. The API server reads all of them for each eviction in their namespace."""
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    run_other(cluster, "gpu-1")
    on_node(cluster, "cheap", "gpu-0", CHEAP)
    values = [f"v{number:07d}" for number in range(VALUES)]
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}
    large: Object = {"spec": {"maxUnavailable": 0, "selector": selector}}
    made = ({"metadata": {"name": f"b{at}", "annotations": {"a": "x" * 200_000}}, **large} for at in range(BUDGETS))
    cluster.api.create_all(((budgets(cluster), each) for each in made), 4)
    leader = planner(*options(tmp_path))
    wait_for(lambda: leader.count("gputopo_planner_leader") == 1, "the planner to lead", 60)
    memory = psutil.Process(leader.server.pid).memory_info
    before, most = memory().rss, 0

    create(cluster, *gang("urgent", Asked(1, 8), priorityClassName=CRITICAL))
    waited = seconds_until_whole(cluster, "urgent")
    most = max(most, memory().rss)

    assert "cheap" in running_pods(cluster)
    assert not bound(cluster, "dear")
    assert most - before < 64 * MEBI
    figures = f"planner {before / MEBI:.0f} to {most / MEBI:.0f} MiB"
    record_property(FIGURE, f"{BUDGETS} budgets: the gang starts after {waited:.0f} s; {figures}")


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_members_without_gpus_and_evictions_of_own_pods_protect_no_gang(
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    planner: StartPlanner,
    tmp_path: Path,
    record_property: Record,
) -> None:
    """One eviction is allowed in an hour. The tenant uses it for its own gang, and has a gang of six pods."""
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    on_node(cluster, "bait", "gpu-0", {"gang": "bait", **COSTLY})
    for number in range(5):
        name, where = f"bait-{number}", {"kubernetes.io/hostname": "gpu-0"}
        cluster.create_pod(gpu_pod(name, 0, {"gang": "bait"}, nodeSelector=where))
        started(cluster, name)
    on_node(cluster, "own", "gpu-1", CHEAP)
    planner(*options(tmp_path, maxEvictionsPerHour=1))
    create(cluster, *gang("for-itself", Asked(1, 8), priorityClassName=CRITICAL))
    wait_until_whole(cluster, "for-itself", 1, 180)
    assert "bait" in running_pods(cluster)

    (urgent,) = gang("urgent", Asked(1, 8), priorityClassName=CRITICAL)
    began = time.monotonic()
    cluster.api.create(cluster.pods(namespace=OTHER), urgent)
    wait_for(lambda: bound(cluster, "urgent-0"), "the gang of another tenant", 180)

    assert not {"bait", *(f"bait-{number}" for number in range(5))} & running_pods(cluster)
    record_property(FIGURE, f"the gang starts after {time.monotonic() - began:.0f} s")
