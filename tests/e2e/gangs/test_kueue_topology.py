"""Kueue's second gate: a pod group is planned once topology-aware scheduling has assigned all of its pods."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels import keys
from tests.api_objects import Object, pod
from tests.e2e.cluster import Cluster
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import nodes
from tests.e2e.gangs.members import GATES, Asked, create, gang, node_of, wait_until_whole
from tests.e2e.gangs.running import reserved
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
ADMISSION, TOPOLOGY = {"name": "kueue.x-k8s.io/admission"}, {"name": "kueue.x-k8s.io/topology"}
RACK, HOST = "cloud.provider.com/topology-rack", "kubernetes.io/hostname"


def group(cluster: Cluster) -> list[str]:
    """Create a pod group of two pods as Kueue gates it for topology-aware scheduling; return the names."""
    names = ["train-0", "train-1"]
    pods = [pod(name, 8, schedulingGates=[ADMISSION, TOPOLOGY, *GATES]) for name in names]
    for each in pods:
        each["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": "train"}
        each["metadata"]["annotations"] = {
            "kueue.x-k8s.io/pod-group-total-count": "2",
            "kueue.x-k8s.io/podset-required-topology": RACK,
        }
    create(cluster, *pods)
    return names


def ungate(cluster: Cluster, name: str, *left: Object, **selector: str) -> None:
    """Act as Kueue: remove a gate of a pod, and write its assignment."""
    spec: dict[str, Any] = {"schedulingGates": list(left)}
    cluster.api.patch(cluster.pods(name), {"spec": spec | ({"nodeSelector": selector} if selector else {})})


def settle(cluster: Cluster, name: str) -> None:
    """Let the planner handle all events until now: it has placed a gang that was created later."""
    create(cluster, *gang(name, Asked(1, 1, scheduler="default-scheduler")))
    wait_until_whole(cluster, name, 1)


def test_a_pod_group_waits_for_both_gates_of_all_members_and_stays_in_its_rack(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner
) -> None:
    racks = {"gpu_0": "r1", "gpu_1": "r2", "gpu_2": "r2", "gpu_3": "r3"}
    nodes(fleet, **{name: {RACK: rack} for name, rack in racks.items()})
    agents_of()
    scheduler()
    planner()
    first, second = group(cluster)

    for name in (first, second):  # admitted: Kueue removes its first gate
        ungate(cluster, name, TOPOLOGY, *GATES)
    settle(cluster, "one")
    ungate(cluster, first, *GATES, **{RACK: "r2"})  # assigned: one pod after the other
    settle(cluster, "two")

    assert {each["spec"]["gang"] for each in reserved(cluster)} == {"one", "two"}
    assert cluster.pod(first)["spec"]["schedulingGates"] == GATES
    assert cluster.pod(second)["spec"]["schedulingGates"] == [TOPOLOGY, *GATES]
    for name in ("one", "two"):
        cluster.api.delete(cluster.pods(f"{name}-0"))
    ungate(cluster, second, *GATES, **{RACK: "r2"})
    found = [started(cluster, name) for name in (first, second)]

    assert {node_of(each) for each in found} == {"gpu-1", "gpu-2"}
    assert [each["metadata"]["annotations"][keys.POD_GANG_RANK.key] for each in found] == ["0", "1"]


def test_nodes_that_kueue_assigns_are_confirmed(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={}, gpu_2={})
    agents_of()
    scheduler()
    planner()
    first, second = group(cluster)

    for name, node in ((first, "gpu-2"), (second, "gpu-0")):
        ungate(cluster, name, *GATES, **{HOST: node})

    assert [node_of(started(cluster, name)) for name in (first, second)] == ["gpu-2", "gpu-0"]
