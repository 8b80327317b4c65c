"""A gang that cannot be placed keeps GPUs from nobody of a higher priority, and from others only within limits."""

from __future__ import annotations

import pytest

from gputopo.labels.reasons import Reason
from tests.api_client import ApiError
from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import held, nodes
from tests.e2e.gangs.members import Asked, create, gang, unschedulable
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
    planner(*MIXED)
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
    assert held(cluster, "greedy") is not None


def test_a_tenant_cannot_write_a_priority_into_a_pod(cluster: Cluster) -> None:
    """What extender and planner compare is what the API server's admission has set."""
    forged = gpu_pod("forged", 4, priority=100_000)

    with pytest.raises(ApiError, match="must not be provided in pod spec"):
        cluster.create_pod(forged)
