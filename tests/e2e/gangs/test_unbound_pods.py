"""Ungated pods that kube-scheduler does not bind keep no GPUs from others, and may be bound late."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputopo.labels import keys
from tests.api_objects import Object, pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import nodes
from tests.e2e.gangs.members import GATES, Asked, create, gang, node_of
from tests.e2e.gangs.policies import policy_file
from tests.e2e.gangs.running import reserved
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import condition, gpu_pod, placed, started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
POOLS = {"mixed": ("--pool", "mixed", "--settle", "1s"), "gated": ("--pool", "gated")}
RELEASED_WITHIN_S = 75.0  # timeout of 30 s, and the time in which a binding may be under way


def with_ports(pods: list[Object], **spec: str) -> list[Object]:
    """Return the pods with a host port each. The planner does not know which ports of a node are free."""

    def ported(made: Object, port: int) -> Object:
        (container,) = made["spec"]["containers"]
        ports = [{"containerPort": port, "hostPort": port}]
        return {**made, "spec": {**made["spec"], **spec, "containers": [{**container, "ports": ports}]}}

    return [ported(each, 8000 + number) for number, each in enumerate(pods)]


def failed(cluster: Cluster) -> Object | None:
    """Return the reservation that has failed."""
    found = [each for each in reserved(cluster) if each.get("status", {}).get("state") == "Failed"]
    return found[0] if found else None


PODS = {
    "a single pod": [gpu_pod("stuck", 8, schedulingGates=GATES)],
    "a gang that asks for a day": gang("stuck", Asked(2, 4, {"gang-timeout": "24h"})),
}


@pytest.mark.usefixtures("served", "gputopo_scheduler")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("pods", PODS.values(), ids=PODS)
def test_pods_that_cannot_be_bound_give_their_gpus_to_others(  # noqa: PLR0917  fixtures
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    planner: StartPlanner,
    tmp_path: Path,
    pods: list[Object],
    pool: str,
) -> None:
    nodes(fleet, gpu_0={})
    agents_of()
    planner(*POOLS[pool], "--policy", policy_file(tmp_path, maxTimeout="10s"))
    others = [pod(f"port-{number}", 0) for number, _ in enumerate(pods)]
    create(cluster, *with_ports(others, nodeName="gpu-0"))
    create(cluster, *with_ports(pods))
    waiting = [each["metadata"]["name"] for each in pods]
    wait_for(lambda: all(pinned(cluster.pod(name)) for name in waiting), "the pods to be ungated", 60.0)

    gates = GATES if pool == "gated" else []
    cluster.create_pod(gpu_pod("next", 8, schedulingGates=gates))
    started(cluster, "next", RELEASED_WITHIN_S)

    reason = wait_for(lambda: failed(cluster), "a reservation that failed")["status"]["reason"]
    assert "didn't have free ports" in reason
    events = cluster.api.items("/api/v1/namespaces/" + cluster.namespace + "/events")
    assert any(each["reason"] == "GangFailed" for each in events)

    for each in others:  # they may be bound now, and no GPU is free
        cluster.api.delete(cluster.pods(each["metadata"]["name"]))
    wait_for(lambda: "ports" not in said(cluster, waiting[0]), "another reason")
    assert not any(node_of(cluster.pod(name)) for name in waiting)
    cluster.api.delete(cluster.pods("next"))
    for name in waiting:
        assert node_of(placed(cluster, name)) == "gpu-0"


def pinned(found: Object) -> bool:
    """Return whether a planner has ungated the pod."""
    return (
        keys.POD_RESERVATION.key in found["metadata"].get("annotations", {}) and "schedulingGates" not in found["spec"]
    )


def said(cluster: Cluster, name: str) -> str:
    """Return kube-scheduler's message on a pod."""
    return str(condition(cluster.api.get(f"{cluster.pods()}/{name}")).get("message", ""))
