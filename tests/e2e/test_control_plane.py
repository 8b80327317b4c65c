"""The control plane is a real one: what the other tests stand on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from tests.api_client import ApiError
from tests.api_objects import Object, container, gpu_node, pod
from tests.e2e import cleaning
from tests.e2e.audit import Write
from tests.e2e.binaries import kubernetes_version
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.conftest import Timed
from tests.e2e.fixtures import StartScheduler
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
NODE_CLAIM = "authentication.kubernetes.io/node-name"


@pytest.mark.skipif("KUBEBUILDER_ASSETS" in os.environ, reason="those binaries are of whatever release")
def test_api_server_reports_the_release_that_go_mod_pins(cluster: Cluster) -> None:
    version = cluster.api.get("/version")

    assert version["gitVersion"] == kubernetes_version()
    assert f"v{version['major']}.{version['minor']}." in kubernetes_version()


@pytest.mark.usefixtures("pristine")  # the control plane is there, and it is known what is in it
def test_clean_cluster_has_four_gpu_nodes(request: pytest.FixtureRequest, timed: Timed) -> None:
    with timed("a clean cluster of four simulated GPU nodes"):
        cluster, _ = request.getfixturevalue("cluster"), request.getfixturevalue("gpu_nodes")

    nodes = cluster.api.items("/api/v1/nodes")
    assert {node["metadata"]["name"]: node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes} == {
        "gpu-0": "8",
        "gpu-1": "8",
        "gpu-2": "8",
        "gpu-3": "8",
    }


def test_next_test_finds_nothing_of_this_one(cluster: Cluster, pristine: set[cleaning.Found]) -> None:
    """Custom resources with a finalizer, a policy that denies every deletion, a namespace, nodes and pods."""
    cluster.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _custom_resource())
    widgets = f"/apis/gputopo.test/v1/namespaces/{cluster.namespace}/widgets"
    widget = {"apiVersion": "gputopo.test/v1", "kind": "Widget"}
    _retried(lambda: cluster.api.create(widgets, widget | {"metadata": {"name": "w", "finalizers": ["a.test/held"]}}))
    cluster.create_namespace("another")
    cluster.api.create_all([("/api/v1/nodes", gpu_node(f"n{number}", 8)) for number in range(30)])
    cluster.create_pod(pod("stuck", nodeName="n0"))
    _deny(cluster, "deny-deletion", operations=["DELETE"], resources=["nodes"], expression="false")
    doomed = iter(range(1, 30))  # before the policy takes effect, a deletion succeeds
    _wait_until_denied(lambda: cluster.api.delete(f"/api/v1/nodes/n{next(doomed)}"), every_s=0.1)

    cleaning.clean(cluster.api, pristine)

    assert _names(cleaning.inventory(cluster.api)) == _names(pristine)


def test_service_account_may_do_only_what_rbac_grants(cluster: Cluster) -> None:
    client = cluster.client(cluster.token("default"))
    with pytest.raises(ApiError) as refused:
        client.get("/api/v1/nodes")
    client.close()

    assert (refused.value.status, refused.value.reason) == (403, "Forbidden")


def test_token_of_a_bound_pod_says_its_node_and_a_policy_can_hold_its_bearer_to_it(cluster: Cluster) -> None:
    for name in ("gpu-0", "gpu-1"):
        cluster.api.create("/api/v1/nodes", gpu_node(name, 8))
    agent = cluster.create_pod(pod("agent", nodeName="gpu-0"))
    _may_patch_nodes(cluster)
    own_node = f"object.metadata.name in request.userInfo.extra[?'{NODE_CLAIM}'].orValue([])"
    _deny(cluster, "own-node", operations=["UPDATE"], resources=["nodes"], expression=own_node, but="system:masters")
    client = cluster.client(cluster.token("default", agent))
    label = {"metadata": {"labels": {"example.com/tried": "yes"}}}

    _wait_until_denied(lambda: client.patch("/api/v1/nodes/gpu-1", label))
    patched = client.patch("/api/v1/nodes/gpu-0", label)
    client.close()

    assert patched["metadata"]["labels"]["example.com/tried"] == "yes"


def test_mutating_admission_policy_changes_pods(cluster: Cluster) -> None:
    if "mutatingadmissionpolicies" not in {each["name"] for each in cluster.api.get(ADMISSION)["resources"]}:
        pytest.skip("this API server has no MutatingAdmissionPolicy: it is served by default from 1.36 on")
    gate = 'Object{spec: Object.spec{schedulingGates: [Object.spec.schedulingGates{name: "example.com/gate"}]}}'
    policy = {
        "metadata": {"name": "gate"},
        "spec": {
            "matchConstraints": _rules(["CREATE"], ["pods"]),
            "reinvocationPolicy": "Never",
            "failurePolicy": "Fail",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": gate}}],
        },
    }
    cluster.api.create(f"{ADMISSION}/mutatingadmissionpolicies", policy)
    binding = {"metadata": {"name": "gate"}, "spec": {"policyName": "gate"}}
    cluster.api.create(f"{ADMISSION}/mutatingadmissionpolicybindings", binding)

    def gated() -> list[Object] | None:
        cluster.api.delete(cluster.pods("train"))
        gates: list[Object] = cluster.create_pod(pod("train", gpus=1))["spec"].get("schedulingGates")
        return gates

    assert wait_for(gated, "the policy") == [{"name": "example.com/gate"}]


def test_audit_log_counts_every_write_by_whom(cluster: Cluster, gpu_nodes: Fleet) -> None:
    cluster.create_pod(pod("train", gpus=2, nodeName="gpu-1"))
    cluster.wait_for_pod("train", lambda each: each["status"]["phase"] == "Running")
    gpu_nodes.kill_gpu("gpu-0", 3)

    writes = [write for write in cluster.writes() if write.resource.split("/")[0] in {"pods", "nodes"}]

    kubelet, test = "kubelet/simulated", "gputopo-e2e"
    space = cluster.namespace
    assert sorted(writes) == sorted(
        [Write(f"system:node:gpu-{n}", "create", "nodes", "", f"gpu-{n}", 201, kubelet) for n in range(4)]
        + [
            Write("gputopo-test", "create", "pods", space, "train", 201, test),
            Write("system:node:gpu-1", "patch", "pods/status", space, "train", 200, kubelet),
            Write("system:node:gpu-0", "patch", "nodes/status", "", "gpu-0", 200, kubelet),
        ]
    )


@pytest.mark.usefixtures("controller_manager")
def test_jobs_run_to_their_end_and_garbage_is_collected(
    cluster: Cluster, gpu_nodes: Fleet, scheduler: StartScheduler
) -> None:
    scheduler()
    template = {"spec": {"containers": [container("main", 2)], "restartPolicy": "Never"}}
    job = {"metadata": {"name": "train"}, "spec": {"completions": 2, "parallelism": 2, "template": template}}
    jobs = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
    cluster.api.create(jobs, job)

    def running() -> list[Object] | None:
        pods = [each for each in cluster.api.items(cluster.pods()) if each["status"]["phase"] == "Running"]
        return pods if len(pods) == 2 else None

    for each in wait_for(running, "two running pods"):
        gpu_nodes.finish(each)
    wait_for(lambda: cluster.api.get(f"{jobs}/train")["status"].get("succeeded") == 2, "the job")
    cluster.api.delete(f"{jobs}/train")

    wait_for(lambda: not cluster.api.items(cluster.pods()), "the garbage collector")


def _names(found: set[cleaning.Found]) -> set[tuple[str, str, str]]:
    return {(each.kind.resource, each.namespace, each.name) for each in found if each.kind.resource != "events"}


def _custom_resource() -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    return {
        "metadata": {"name": "widgets.gputopo.test"},
        "spec": {"group": "gputopo.test", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _rules(operations: list[str], resources: list[str]) -> Object:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": resources}
    return {"resourceRules": [rule]}


def _deny(
    cluster: Cluster, name: str, *, operations: list[str], resources: list[str], expression: str, but: str = "nobody"
) -> None:
    """Deny what does not satisfy a CEL expression, but to one group."""
    others = {"name": "others", "expression": f"!('{but}' in request.userInfo.groups)"}
    spec = {
        "matchConstraints": _rules(operations, resources),
        "matchConditions": [others],
        "validations": [{"expression": expression}],
    }
    cluster.api.create(f"{ADMISSION}/validatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec})
    binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    cluster.api.create(f"{ADMISSION}/validatingadmissionpolicybindings", binding)


def _may_patch_nodes(cluster: Cluster) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    cluster.api.create(f"{rbac}/clusterroles", {"metadata": {"name": "agent"}, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": cluster.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "agent"}
    binding = {"metadata": {"name": "agent"}, "roleRef": role, "subjects": [subject]}
    cluster.api.create(f"{rbac}/clusterrolebindings", binding)


def _wait_until_denied(call: Callable[[], object], every_s: float = 0.0) -> None:
    """The API server looks for new policies once a second."""

    def denied() -> bool:
        time.sleep(every_s)
        try:
            call()
        except ApiError as refused:
            return refused.status == 422 and "ValidatingAdmissionPolicy" in refused.message
        return False

    wait_for(denied, "the policy")


def _retried(call: Callable[[], object]) -> None:
    """A custom resource is served a moment after its definition was written."""

    def done() -> bool:
        try:
            call()
        except ApiError:
            return False
        return True

    wait_for(done, "the custom resource")
