"""Rules of gated pods about other pods and volumes: plans follow them, or kube-scheduler gets the pods."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels import keys
from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import nodes
from tests.e2e.gangs.members import Asked, create, gang, node_of, of, wait_until_whole
from tests.e2e.scheduler.conftest import StartAgents
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
HALL = "example.com/hall"
TWO = Asked(2, 8, scheduler="default-scheduler")
LABELS = {"app": "llm"}


@pytest.fixture(autouse=True)
def _ready(fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner) -> None:
    """Start three nodes: the first one is alone in its hall."""
    nodes(fleet, gpu_0={HALL: "a"}, gpu_1={HALL: "b"}, gpu_2={HALL: "b"})
    agents_of()
    scheduler()
    planner()


def labelled(pods: list[Object]) -> list[Object]:
    """Return the pods with labels."""
    for each in pods:
        each["metadata"]["labels"] = LABELS
    return pods


def pod_affinity(kind: str, key: str) -> dict[str, Any]:
    """Return an affinity with one required term towards pods with these labels."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": LABELS}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def events(cluster: Cluster, name: str, reason: str) -> list[str]:
    """Return the messages of Events with this reason about members of a gang."""
    found = cluster.api.items(f"/api/v1/namespaces/{cluster.namespace}/events")
    uids = {each["metadata"]["uid"] for each in of(cluster, name)}
    return [each["message"] for each in found if each.get("reason") == reason and each["involvedObject"]["uid"] in uids]


def planned(pods: list[Object]) -> list[bool]:
    """Return whether the planner placed each pod."""
    return [keys.POD_RESERVATION.key in each["metadata"]["annotations"] for each in pods]


def test_affinity_of_a_gang_to_itself_puts_it_into_one_domain(cluster: Cluster) -> None:
    create(cluster, *labelled(gang("train", TWO, affinity=pod_affinity("podAffinity", HALL))))

    pods = wait_until_whole(cluster, "train", 2)

    assert {node_of(each) for each in pods} == {"gpu-1", "gpu-2"}
    assert planned(pods) == [True, True]
    assert events(cluster, "train", "GangReleased") == []


SPREAD = {
    "maxSkew": 1,
    "topologyKey": HALL,
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": LABELS},
}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"topologySpreadConstraints": [SPREAD]}, id="topology-spread"),
        pytest.param({"affinity": pod_affinity("podAntiAffinity", HALL)}, id="anti-affinity-by-hall"),
    ],
)
def test_other_rules_about_pods_are_left_to_kube_scheduler(cluster: Cluster, spec: dict[str, Any]) -> None:
    create(cluster, *labelled(gang("train", TWO, **spec)))

    pods = wait_until_whole(cluster, "train", 2)

    halls = {"gpu-0": "a", "gpu-1": "b", "gpu-2": "b"}
    assert {halls[str(node_of(each))] for each in pods} == {"a", "b"}
    assert planned(pods) == [False, False]
    wait_for(lambda: len(events(cluster, "train", "GangReleased")) == 2 or None, "two Events")
    assert all("kube-scheduler chooses their nodes" in each for each in events(cluster, "train", "GangReleased"))


def test_a_volume_decides_the_node_of_its_member(cluster: Cluster) -> None:
    space = cluster.namespace
    where = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu-2"]}
    pods = gang("train", TWO)
    pods[0]["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    create(cluster, *pods)
    wait_for(
        lambda: any("does not exist" in text for text in events(cluster, "train", "GangUnplaced")) or None,
        "the gang to wait for the volume",
    )

    shared = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    size = {"storage": "1Gi"}
    claims = f"/api/v1/namespaces/{space}/persistentvolumeclaims"
    marks = {"pv.kubernetes.io/bind-completed": "yes"}
    asked = {**shared, "volumeName": f"pv-{space}", "resources": {"requests": size}}
    claim = cluster.api.create(claims, {"metadata": {"name": "data", "annotations": marks}, "spec": asked})
    of_claim = {"kind": "PersistentVolumeClaim", "namespace": space, "name": "data", "uid": claim["metadata"]["uid"]}
    volume = {
        **shared,
        "capacity": size,
        "claimRef": {"apiVersion": "v1", **of_claim},
        "local": {"path": "/data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}},
    }
    cluster.api.create("/api/v1/persistentvolumes", {"metadata": {"name": f"pv-{space}"}, "spec": volume})
    cluster.api.patch(f"{claims}/data/status", {"status": {"phase": "Bound"}})

    bound = wait_until_whole(cluster, "train", 2)
    assert {each["metadata"]["name"]: node_of(each) for each in bound}["train-0"] == "gpu-2"
    assert planned(bound) == [True, True]
