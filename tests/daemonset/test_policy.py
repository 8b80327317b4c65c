"""A policy file beside the extender and the planner, as kustomize and as Helm mount it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.daemonset.tools import DAEMONSET, Object, helm_rendered, run

POLICY = "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\n"
MOUNT = {"name": "policy", "mountPath": "/etc/gputopo/policy", "readOnly": True}
PARTS = ("default", "cluster-scheduler", "planner")
DECIDING = {"gputopo-scheduler": "extender", "gputopo-extender": "extender", "gputopo-planner": "planner"}


def deciding(documents: tuple[Object, ...], of: str) -> tuple[Object, Object]:
    """The pod of a part, and its container that decides."""
    (pod,) = (
        each["spec"]["template"]["spec"]
        for each in documents
        if each["kind"] == "Deployment" and DECIDING.get(each["metadata"]["name"]) == of
    )
    containers = (*pod.get("initContainers", ()), *pod["containers"])
    return pod, next(each for each in containers if each["name"] == of)


def assert_mounted(documents: tuple[Object, ...], of: str = "extender") -> None:
    (config,) = (
        each
        for each in documents
        if each["kind"] == "ConfigMap" and each["metadata"]["name"].startswith("gputopo-policy")
    )
    pod, container = deciding(documents, of)

    assert config["data"]["policy.yaml"].strip() == POLICY.strip()
    assert {"name": "GPUTOPO_POLICY", "value": "/etc/gputopo/policy/policy.yaml"} in container["env"]
    assert MOUNT in container["volumeMounts"]
    assert {"name": "policy", "configMap": {"name": config["metadata"]["name"]}} in pod["volumes"]


@pytest.mark.parametrize("part", PARTS)
def test_the_component_mounts_a_policy_file(part: str, tmp_path: Path) -> None:
    here = os.path.relpath(DAEMONSET / "scheduler", tmp_path)
    document = {
        "resources": [f"{here}/{part}"],
        "components": [f"{here}/components/policy"],
        "configMapGenerator": [{"name": "gputopo-policy", "namespace": "gputopo", "files": ["policy.yaml"]}],
    }
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))

    documents = tuple(yaml.safe_load_all(run("kubectl", "kustomize", tmp_path)))
    assert_mounted(documents, "planner" if part == "planner" else "extender")


@pytest.mark.parametrize("caller", ["second", "cluster"])
def test_the_chart_mounts_a_policy_file(caller: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(
        yaml.safe_dump(
            {"scheduler": {"enabled": True, "caller": caller, "policy": POLICY}, "planner": {"enabled": True}}
        )
    )

    documents = helm_rendered(str(tmp_path / "values.yaml"))
    assert_mounted(documents)
    assert_mounted(documents, "planner")


def test_the_lease_is_in_the_namespace_of_the_release_whatever_the_configuration_says() -> None:
    documents = helm_rendered("scheduler.enabled=true", "scheduler.config=leaderElection: {resourceNamespace: other}")
    (pod,) = (each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment")

    assert "--leader-elect-resource-namespace=gputopo" in pod["containers"][0]["command"]


GATED = ("gputopo-gangs", "gputopo-gangs-of-namespaces", "gputopo-planned-all")
NAMES = ("gputopo-scheduler", "gpu-aware-scheduler", "cost-optimized-scheduler")


def assert_two_names(documents: tuple[Object, ...]) -> None:
    """Both names have a profile in the scheduler's configuration and in the policy, and their gangs are gated."""
    config, policy = (
        yaml.safe_load(next(iter(each["data"].values())))
        for start in ("gputopo-scheduler-config", "gputopo-policy")
        for each in documents
        if each["kind"] == "ConfigMap" and each["metadata"]["name"].startswith(start)
    )
    assert tuple(each["schedulerName"] for each in config["profiles"]) == NAMES
    assert tuple(each["match"]["schedulerName"] for each in policy["profiles"]) == NAMES[1:]
    for of in ("extender", "planner"):
        _, container = deciding(documents, of)
        assert {"name": "GPUTOPO_POLICY", "value": "/etc/gputopo/policy/policy.yaml"} in container["env"]
    gates = [
        each["spec"]["matchConditions"]
        for each in documents
        if each["kind"] == "MutatingAdmissionPolicy" and each["metadata"]["name"] in GATED
    ]
    assert len(gates) >= 2
    for conditions in gates:
        (expression,) = (each["expression"] for each in conditions if each["name"] == "opted-in")
        assert all(f"'{name}'" in expression for name in NAMES), expression


def test_the_component_adds_the_names_for_quality_and_for_cost(tmp_path: Path) -> None:
    here = os.path.relpath(DAEMONSET / "scheduler", tmp_path)
    document = {
        "resources": [f"{here}/default", f"{here}/planner"],
        "components": [f"{here}/components/planned-all", f"{here}/components/quality-and-cost"],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))

    assert_two_names(tuple(yaml.safe_load_all(run("kubectl", "kustomize", tmp_path))))


def test_the_chart_adds_the_names_for_quality_and_for_cost() -> None:
    switches = ("scheduler.enabled=true", "planner.enabled=true", "planner.all=true")
    documents = helm_rendered(*switches, "scheduler.qualityAndCost=true")
    plain = helm_rendered(*switches)

    assert_two_names(documents)
    assert not any(each["metadata"]["name"] == "gputopo-policy" for each in plain)
