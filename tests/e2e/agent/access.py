"""The agent's access to a cluster, made from the table of verbs that its code obeys: what RBAC grants, and no more."""

from __future__ import annotations

from pathlib import Path

from gputopo.crd import nodegpus
from gputopo.kube.client import Kube
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import Resource, Role
from tests.api_client import ApiError
from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for

RBAC = "/apis/rbac.authorization.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def user(cluster: Cluster, account: str) -> str:
    """The user name of a service account of the test's namespace, as the audit log has it."""
    return f"system:serviceaccount:{cluster.namespace}:{account}"


def grant(cluster: Cluster, account: str, role: Role) -> None:
    """Create a service account that may do what a role lists."""
    name = f"{cluster.namespace}-{account}"
    cluster.api.create(f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts", {"metadata": {"name": account}})
    rules = [
        {"apiGroups": [resource.group], "resources": [resource.rbac_name], "verbs": list(verbs)}
        for resource, verbs in role.verbs.items()
    ]
    cluster.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": account, "namespace": cluster.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    cluster.api.create(
        f"{RBAC}/clusterrolebindings", {"metadata": {"name": name}, "subjects": [subject], "roleRef": reference}
    )


def open_kube(cluster: Cluster, account: str, role: Role, folder: Path) -> Kube:
    """A connection as that service account, by a kubeconfig."""
    path = cluster.kubeconfig(folder / f"{account}.kubeconfig", cluster.token(account))
    return from_kubeconfig(role, str(path))


def definition_of(resource: Resource, kind: str) -> Object:
    """Return a definition of this kind that accepts any fields."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": resource.version, "served": True, "storage": True, "schema": schema}
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/jobset"}
    names = {"plural": resource.plural, "singular": kind.casefold(), "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}", "annotations": approved},
        "spec": {"group": resource.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def define(cluster: Cluster, definition: Object) -> None:
    """Create a CustomResourceDefinition and wait until its kind is served."""
    cluster.api.create(DEFINITIONS, definition)
    spec = definition["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"

    def served() -> bool:
        try:
            cluster.api.get(path)
        except ApiError as refused:
            if refused.status not in {404, 429}:  # 429: its storage is being made
                raise
            return False
        return True

    wait_for(served, path)


def define_node_gpus(cluster: Cluster) -> None:
    """Make the API server serve ``NodeGpus``, where it does not yet."""
    definition = nodegpus.nodegpus_crd()
    there = {each["metadata"]["name"] for each in cluster.api.items(DEFINITIONS)}
    if definition["metadata"]["name"] not in there:
        define(cluster, definition)
