"""The Pod Security level of each namespace, by the admission of the real API server."""

from __future__ import annotations

import pytest

from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from tests.api_objects import Object
from tests.daemonset.tools import helm_rendered, kustomized
from tests.e2e.cluster import Cluster
from tests.e2e.daemonset.installed import AGENT_NAMESPACE, NAMESPACE, apply, refusal

pytestmark = pytest.mark.e2e
LEVEL = "pod-security.kubernetes.io/enforce"
PROGRAMS = ("default", "cluster-scheduler", "planner", "observe")
PREREQUISITES = {"Namespace", "ServiceAccount", "PriorityClass"}
CHART = ("scheduler.enabled=true", "planner.enabled=true", "observe.enabled=true")


def pods(documents: list[Object]) -> dict[str, Object]:
    """The pod of each DaemonSet and Deployment, as its controller creates it."""
    return {
        each["metadata"]["name"]: {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": each["spec"]["template"]["metadata"]
            | {"name": "x", "namespace": each["metadata"]["namespace"]},
            "spec": each["spec"]["template"]["spec"],
        }
        for each in documents
        if each["kind"] in {"DaemonSet", "Deployment"}
    }


def install(cluster: Cluster, documents: list[Object]) -> None:
    """Everything that the pods need to be admitted."""
    needed = [each for each in documents if each["kind"] in PREREQUISITES]
    apply(cluster, sorted(needed, key=lambda each: each["kind"] != "Namespace"))


def refusals(cluster: Cluster, found: dict[str, Object]) -> dict[str, tuple[int, str]]:
    """Return the answer of the API server to each pod; nothing is stored."""
    return {
        name: refusal(cluster.api, "POST", cluster.pods(namespace=pod["metadata"]["namespace"]), pod)
        for name, pod in found.items()
    }


def levels(cluster: Cluster) -> dict[str, str | None]:
    namespaces = cluster.api.items("/api/v1/namespaces")
    return {
        each["metadata"]["name"]: each["metadata"]["labels"].get(LEVEL)
        for each in namespaces
        if each["metadata"]["name"].startswith("gputopo")
    }


def of_kustomize(overlay: str) -> list[Object]:
    return [*kustomized(f"overlays/{overlay}"), *(each for one in PROGRAMS for each in kustomized(f"scheduler/{one}"))]


@pytest.mark.parametrize("installer", ["kustomize", "helm"])
def test_everything_but_the_agent_runs_as_restricted(cluster: Cluster, installer: str) -> None:
    if installer == "helm":  # its user creates the namespace of the release
        cluster.create_namespace(NAMESPACE)
        cluster.api.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": {LEVEL: "restricted"}}})
    documents = of_kustomize("default") if installer == "kustomize" else list(helm_rendered(*CHART))
    install(cluster, documents)
    found = pods(documents)

    assert levels(cluster) == {
        NAMESPACE: "restricted",
        AGENT_NAMESPACE: "privileged",
        HEARTBEAT_NAMESPACE: "restricted",
    }
    assert refusals(cluster, found) == dict.fromkeys(found, (200, ""))
    assert {pod["metadata"]["namespace"] for name, pod in found.items() if name != "gputopo-agent"} == {NAMESPACE}
    # With a token that creates pods beside the planner, nobody gets a host path or root.
    agent = found["gputopo-agent"]
    moved = agent | {"metadata": agent["metadata"] | {"namespace": NAMESPACE}}
    moved["spec"] = agent["spec"] | {"serviceAccountName": "gputopo-planner"}
    status, message = refusals(cluster, {"moved": moved})["moved"]
    assert status == 403
    assert 'violates PodSecurity "restricted' in message
    assert "hostPath" in message


def test_without_the_kubelets_socket_the_agent_too_runs_as_restricted(cluster: Cluster) -> None:
    documents = of_kustomize("no-kubelet-socket")
    install(cluster, documents)
    found = pods(documents)

    assert levels(cluster) == {
        NAMESPACE: "restricted",
        AGENT_NAMESPACE: "restricted",
        HEARTBEAT_NAMESPACE: "restricted",
    }
    assert refusals(cluster, found) == dict.fromkeys(found, (200, ""))
