"""Our manifests on the real API server, and tokens of the agent's account as a kubelet mounts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import yaml

from gputopo.crd.nodegpus import nodegpus_crd
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from gputopo.kube.rbac import EVENTS, LEASES, NODE_FEATURES, NODE_GPUS, NODES
from gputopo.labels import keys
from gputopo.labels.keys import FIELD_MANAGER
from tests.api_client import ApiError, Client
from tests.api_objects import Object, pod
from tests.e2e.agent.access import RBAC, define
from tests.e2e.cluster import Cluster, wait_for

MANIFESTS = Path(__file__).parents[3] / "daemonset"
NAMESPACE = "gputopo"
AGENT_NAMESPACE = "gputopo-agent"
ACCOUNT = "gputopo-agent"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
NOBODY = {"name": "nobody"}
# Kind -> where to create what object, to see whether the policy about that kind is in force.
PROBES: dict[str, tuple[str, Object]] = {
    NODES.plural: ("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": NOBODY}),
    EVENTS.plural: (
        EVENTS.path(namespace="default"),
        {"apiVersion": "v1", "kind": "Event", "metadata": NOBODY, "involvedObject": {"kind": "Node", "name": "nobody"}},
    ),
    NODE_GPUS.plural: (
        NODE_GPUS.path(),
        {
            "apiVersion": NODE_GPUS.api_version,
            "kind": "NodeGpus",
            "metadata": NOBODY,
            "observedAt": "2026-11-21T12:00:00Z",
            "contentHash": "1a2b",
            "agentVersion": "0.1.0",
        },
    ),
    LEASES.plural: (
        LEASES.path(namespace=HEARTBEAT_NAMESPACE),
        {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": NOBODY, "spec": {}},
    ),
    NODE_FEATURES.plural: (
        NODE_FEATURES.path(namespace=AGENT_NAMESPACE),
        {"apiVersion": NODE_FEATURES.api_version, "kind": "NodeFeature", "metadata": NOBODY, "spec": {}},
    ),
}
# Where objects of these kinds live: root, plural, namespaced.
KINDS = {
    "Namespace": ("/api/v1", "namespaces", False),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "Service": ("/api/v1", "services", True),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "MutatingAdmissionPolicy": ("/apis/admissionregistration.k8s.io/v1", "mutatingadmissionpolicies", False),
    "MutatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1",
        "mutatingadmissionpolicybindings",
        False,
    ),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies", True),
    "PriorityClass": ("/apis/scheduling.k8s.io/v1", "priorityclasses", False),
    "DaemonSet": ("/apis/apps/v1", "daemonsets", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", True),
    "FlowSchema": ("/apis/flowcontrol.apiserver.k8s.io/v1", "flowschemas", False),
    "ValidatingAdmissionPolicy": ("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies", False),
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
        False,
    ),
}


def documents(*files: str) -> Iterator[Object]:
    """The objects in files below daemonset/."""
    for file in files:
        yield from yaml.safe_load_all((MANIFESTS / file).read_text(encoding="utf-8"))


def path_of(document: Object) -> str:
    """The URL path of an object."""
    root, plural, namespaced = KINDS[document["kind"]]
    metadata = document["metadata"]
    within = f"/namespaces/{metadata['namespace']}" if namespaced else ""
    return f"{root}{within}/{plural}/{metadata['name']}"


def apply(cluster: Cluster, objects: Iterable[Object]) -> None:
    """Apply objects in their order, as `kubectl apply --server-side` does."""
    for each in objects:
        if each["kind"] == "CustomResourceDefinition":
            define(cluster, each)
        else:
            query = {"fieldManager": "kubectl", "force": "true", "fieldValidation": "Strict"}
            cluster.api.patch(path_of(each), each, "apply", **query)


def install(cluster: Cluster, *more: str) -> None:
    """The base without the DaemonSet, and further files; returns when every policy is in force."""
    files = ("namespace", "service-account", "rbac", "admission", "priority-class")
    apply(cluster, [nodegpus_crd(), *documents(*(f"base/{name}.yaml" for name in files), *more)])
    wait_for_policies(cluster)


def wait_for_policies(cluster: Cluster) -> None:
    """Wait until every policy is in force: it rejects a token without a claim. The API server loads policies late."""
    # An administrator who goes by the account's name: RBAC lets the request through.
    agent = cluster.api.impersonating(f"system:serviceaccount:{AGENT_NAMESPACE}:{ACCOUNT}", "system:masters")
    for policy in cluster.api.items(POLICIES):
        if not policy["metadata"]["name"].startswith(f"{ACCOUNT}-"):
            continue
        name, rule = policy["metadata"]["name"], policy["spec"]["matchConstraints"]["resourceRules"][0]
        wait_for(partial(_refuses, agent, name, PROBES[rule["resources"][0]]), f"the policy {name}")


def _refuses(agent: Client, policy: str, probe: tuple[str, Object]) -> bool:
    path, body = probe
    return f"'{policy}'" in refusal(agent, "POST", path, body)[1]


def install_planner_policies(cluster: Cluster) -> None:
    """The planner's account, rights and policies; returns when only the planner may write its annotations on pods."""
    files = (f"scheduler/planner-without-gates/{name}.yaml" for name in ("service-account", "rbac", "admission"))
    apply(cluster, documents("base/namespace.yaml", *files))
    forged = pod("forged", 1)
    forged["metadata"]["annotations"] = {keys.POD_RESERVATION.key: "x"}
    wait_for(lambda: refusal(cluster.api, "POST", cluster.pods(), forged)[0] == 403, "the policy")


def agent_pod(cluster: Cluster, node: str) -> Object:
    """The pod that the DaemonSet controller would make on a node, of the base: admitted as `restricted`."""
    (daemonset,) = documents("base/daemonset.yaml")
    template = daemonset["spec"]["template"]
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{ACCOUNT}-{node}",
            "namespace": AGENT_NAMESPACE,
            "labels": template["metadata"]["labels"],
        },
        "spec": {**template["spec"], "nodeName": node},
    }
    return cluster.create_pod(made)


def agent_token(cluster: Cluster, node: str) -> str:
    """The token that the kubelet of a node mounts into the agent's pod."""
    return cluster.token(ACCOUNT, agent_pod(cluster, node), AGENT_NAMESPACE)


@contextmanager
def every_right(cluster: Cluster) -> Iterator[None]:
    """Within, RBAC lets the agent's account do anything, so that only admission is left to refuse."""
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": AGENT_NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"metadata": {"name": "every-right"}, "subjects": [subject], "roleRef": reference}
    cluster.api.create(f"{RBAC}/clusterrolebindings", binding)
    yield
    cluster.api.delete(f"{RBAC}/clusterrolebindings/every-right")


def refusal(client: Client, method: str, path: str, body: Object | None = None, kind: str = "merge") -> tuple[int, str]:
    """Status and message with which a call was refused; (200, "") where it was not. Nothing is stored."""
    query = {"dryRun": "All"} | ({"fieldManager": FIELD_MANAGER} if method == "PATCH" else {})
    try:
        if method == "PATCH":
            client.patch(path, body, kind, **query)
        else:
            client.request(method, path, body, query=query)
    except ApiError as refused:
        return refused.status, refused.message
    return 200, ""
