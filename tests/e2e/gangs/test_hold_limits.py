"""A gang that cannot be placed keeps no GPUs from pods of a higher priority, and limited GPUs from other pods."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gputopo.labels.reasons import Reason
from scheduler_core.policy.limits import LIMITS
from tests.api_client import ApiError
from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import held, nodes
from tests.e2e.gangs.members import Asked, create, gang, unschedulable, wait_until_whole
from tests.e2e.gangs.policies import policy_file
from tests.e2e.gangs.running import Planner
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import condition, gpu_pod, started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
IDLE, URGENT = "idle", "urgent"
MIXED = ("--settle", "1s", "--patience", "1s")


@pytest.fixture(autouse=True)
def _priority_classes(cluster: Cluster) -> None:
    for name, value in ((IDLE, -1000), (URGENT, 100_000)):
        cluster.api.create(CLASSES, {"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"})


def a_gang_that_waits_for_ever(cluster: Cluster, fleet: Fleet, agents_of: StartAgents) -> None:
    """Of two nodes with eight GPUs, one GPU each is in use for ever; a gang of the lowest priority needs all 16."""
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    for name in fleet.names:
        cluster.create_pod(gpu_pod(f"on-{name}", 1, nodeSelector={"kubernetes.io/hostname": name}))
        started(cluster, f"on-{name}")
    create(cluster, *gang("greedy", Asked(2, 8), priorityClassName=IDLE))


def refused_for_a_reservation(cluster: Cluster, name: str) -> Object | None:
    """Return the pod once kube-scheduler has refused it because of reserved GPUs."""
    found: Object = cluster.api.get(f"{cluster.pods()}/{name}")
    return found if unschedulable(found) and Reason.RESERVED.value in condition(found)["message"] else None


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_hold_yields_to_ungated_pods_of_a_higher_priority(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner
) -> None:
    running = planner(*MIXED)
    a_gang_that_waits_for_ever(cluster, fleet, agents_of)
    hold = wait_for(lambda: held(cluster, "greedy"), "a capacity hold")
    assert sum(each["gpus"] for each in hold["spec"]["held"]) == 16
    assert hold["spec"]["priority"] == -1000

    cluster.create_pod(gpu_pod("equal", 4, priorityClassName=IDLE))
    cluster.create_pod(gpu_pod("urgent", 4, {"island": "required"}, priorityClassName=URGENT))
    cluster.create_pod(gpu_pod("usual", 3))
    started(cluster, "urgent")
    started(cluster, "usual")

    wait_for(lambda: refused_for_a_reservation(cluster, "equal"), "the pod of the same priority to be refused")
    users = f"pods of a higher priority on these nodes: {cluster.namespace}/urgent and 1 more"
    wait_for(lambda: users in (held(cluster, "greedy") or {"status": {}})["status"].get("reason", ""), users)
    assert running.count("gputopo_planner_capacity_hold_higher_priority_pods") == 2


def status_of(planner: Planner, name: str) -> Object:
    """Return what the planner's page says of a gang."""
    page = json.loads(planner.text("/gangs"))
    return next(each for each in page["gangs"] if each["name"] == name)


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_hold_ends_at_its_age(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    running = planner(*MIXED, "--policy", policy_file(tmp_path, maxHoldAge="8s"))
    a_gang_that_waits_for_ever(cluster, fleet, agents_of)
    wait_for(lambda: held(cluster, "greedy"), "a capacity hold")
    cluster.create_pod(gpu_pod("equal", 7, priorityClassName=IDLE))
    wait_for(lambda: refused_for_a_reservation(cluster, "equal"), "the pod of the same priority to be refused")

    found = wait_for(lambda: (each := status_of(running, "greedy"))["limit"] and each, "the limit")
    assert found["limit"] == "maxHoldAge"
    assert "ended at its age limit" in found["reason"]
    assert held(cluster, "greedy") is None
    cluster.create_pod(gpu_pod("later", 7, priorityClassName=IDLE))  # the first pod is retried at the next event
    started(cluster, "later")


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_namespace_beyond_its_limits_delays_no_other(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    """Its gangs come first by priority, and none of them fits. The first of them may not hold as many GPUs."""
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    running = planner(*MIXED, "--policy", policy_file(tmp_path, queuedGangs=5, heldGpus=8))
    cluster.create_namespace("tenant")
    cluster.create_pod(gpu_pod("one", 1))
    started(cluster, "one")
    create(cluster, *gang("first", Asked(2, 1)))
    wait_until_whole(cluster, "first", 2)  # from now on, the extender acknowledges plans at once
    tenant = cluster.pods(namespace="tenant")
    greedy = [pod for at in range(60) for pod in gang(f"greedy-{at}", Asked(2, 8), priorityClassName=URGENT)]
    cluster.api.create_all([(tenant, each) for each in greedy])

    def limited() -> dict[str, float]:
        return {limit: running.count("gputopo_planner_limited_gangs", limit=limit) for limit in LIMITS}

    expected = {"queuedGangs": 55, "gatedPods": 0, "startingGangs": 0, "heldGpus": 5, "maxHoldAge": 0}
    wait_for(lambda: limited() == expected, f"limits {expected}")
    create(cluster, *gang("modest", Asked(2, 4)))
    before = time.monotonic()
    wait_until_whole(cluster, "modest", 2)
    assert time.monotonic() - before < 10.0
    create(cluster, *gang("large", Asked(1, 8), priorityClassName=URGENT))
    wait_for(lambda: held(cluster, "large"), "a hold for a gang of another namespace, of the same priority")


def test_a_tenant_cannot_write_a_priority_into_a_pod(cluster: Cluster) -> None:
    """The extender and the planner compare priorities; only the API server's admission sets them."""
    forged = gpu_pod("forged", 4, priority=100_000)

    with pytest.raises(ApiError, match="must not be provided in pod spec"):
        cluster.create_pod(forged)
