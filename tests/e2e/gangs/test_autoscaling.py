"""Scale to zero and back, with a simulated cluster autoscaler: requests for nodes, and nodes that leave when empty."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.kube.rbac import POD_TEMPLATES, PROVISIONER, PROVISIONING_REQUESTS
from tests.api_objects import Object
from tests.e2e.agent.access import RBAC, define
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import Asked, create, gang, gated, node_of, of, wait_until_whole
from tests.e2e.gangs.running import ACCOUNT, GATED
from tests.e2e.scheduler.conftest import StartAgents
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e
CLASS = "check-capacity.autoscaling.x-k8s.io"
TWO = Asked(2, 8, scheduler="default-scheduler")
ANY: dict[str, Any] = {"tolerations": [{"operator": "Exists"}]}
LEAVING = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
PLURAL, GROUP = PROVISIONING_REQUESTS.plural, PROVISIONING_REQUESTS.group
DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"{PLURAL}.{GROUP}",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler"},
    },
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": PLURAL, "singular": "provisioningrequest", "kind": "ProvisioningRequest"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture(autouse=True)
def _ready(cluster: Cluster, fleet: Fleet, scheduler: StartScheduler, planner: StartPlanner, served: None) -> None:
    """Serve ProvisioningRequests, allow the planner to make them, and start it. There is one node."""
    assert served is None
    define(cluster, DEFINITION)
    name = f"{cluster.namespace}-provisioner"
    rules = [
        {"apiGroups": [each.group], "resources": [each.rbac_name], "verbs": list(verbs)}
        for each, verbs in PROVISIONER.verbs.items()
    ]
    cluster.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": cluster.namespace}
    of_role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": of_role}
    cluster.api.create(f"{RBAC}/clusterrolebindings", binding)
    fleet.add(NodeSpec(name="gpu-0", shape=islands_4_4()))
    scheduler()
    planner(*GATED, "--provisioning-class", CLASS)


def requests(cluster: Cluster) -> list[Object]:
    """Return the ProvisioningRequests of the test's namespace."""
    return cluster.api.items(PROVISIONING_REQUESTS.path(namespace=cluster.namespace))


def requested(cluster: Cluster, gang_name: str) -> Object | None:
    """Return the request for a gang."""
    return next((each for each in requests(cluster) if each["metadata"]["name"].startswith(gang_name)), None)


def scale_up(cluster: Cluster, fleet: Fleet, request: Object, *names: str) -> None:
    """Act as the cluster autoscaler: add a node for each pod that does not fit, and report it."""
    (pod_set,) = request["spec"]["podSets"]
    path = POD_TEMPLATES.path(pod_set["podTemplateRef"]["name"], cluster.namespace)
    spec = cluster.api.get(path)["template"]["spec"]
    assert pod_set["count"] == 2
    assert "schedulingGates" not in spec
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    fleet.add(*(NodeSpec(name=name, shape=islands_4_4()) for name in names))


def test_nodes_are_requested_for_a_gang_and_leave_when_they_are_empty(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents
) -> None:
    agents_of()
    create(cluster, *gang("train", TWO))
    request = wait_for(lambda: requested(cluster, "train"), "a ProvisioningRequest", 40)
    assert request["spec"]["provisioningClassName"] == CLASS
    assert [each["metadata"]["name"] for each in of(cluster, "train") if node_of(each) or not gated(each)] == []

    scale_up(cluster, fleet, request, "gpu-1")
    first = wait_until_whole(cluster, "train", 2)

    assert {node_of(each) for each in first} == {"gpu-0", "gpu-1"}
    assert len(requests(cluster)) == 1
    owners = {each["uid"] for each in request["metadata"]["ownerReferences"]}
    assert owners <= {each["metadata"]["uid"] for each in first}  # Kubernetes deletes it with the pod
    for each in first:
        fleet.finish(each)
        cluster.api.delete(cluster.pods(each["metadata"]["name"]))
    for name in fleet.names:  # scale to zero
        cluster.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [LEAVING]}})

    create(cluster, *gang("again", TWO, **ANY))

    request = wait_for(lambda: requested(cluster, "again"), "another ProvisioningRequest", 40)
    assert not any(node_of(each) for each in of(cluster, "again"))
    scale_up(cluster, fleet, request, "gpu-2", "gpu-3")
    assert {node_of(each) for each in wait_until_whole(cluster, "again", 2)} == {"gpu-2", "gpu-3"}


def test_a_gang_in_a_cluster_without_any_node_requests_all_of_its_nodes(cluster: Cluster, fleet: Fleet) -> None:
    fleet.unregister()
    create(cluster, *gang("first", TWO))

    request = wait_for(lambda: requested(cluster, "first"), "a ProvisioningRequest", 40)

    assert not any(node_of(each) or not gated(each) for each in of(cluster, "first"))
    scale_up(cluster, fleet, request, "new-1", "new-2")
    assert {node_of(each) for each in wait_until_whole(cluster, "first", 2)} == {"new-1", "new-2"}
