"""The values of the Helm chart, and its errors about wrong values."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from tests.daemonset.tools import CHART, DAEMONSET, Object, helm_rendered, run, tool

WITHOUT_POLICIES = ("admissionPolicy.enabled=false", "admissionPolicy.unrestrictedTokens=accepted")


def pod_of(*settings: str) -> Object:
    (daemonset,) = (each for each in helm_rendered(*settings) if each["kind"] == "DaemonSet")
    return dict(daemonset["spec"]["template"]["spec"])


def test_the_linter_has_no_complaint() -> None:
    assert "0 chart(s) failed" in run("helm", "lint", "--strict", CHART)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        pytest.param("image.tagg=1", "additional properties 'tagg' not allowed", id="a misspelled value"),
        pytest.param("publish=stdout", "'node', 'nodefeature'", id="an output that no DaemonSet is for"),
        pytest.param("settings.GPUTOPO_SOCKET=off", "GPUTOPO_SOCKET", id="a setting that has a value of its own"),
        pytest.param("settings.INTERVAL=30s", "INTERVAL", id="a variable that is no setting"),
        pytest.param("image.digest=latest", "latest", id="a digest that is none"),
        pytest.param("admissionPolicy.enabled=false", "unrestrictedTokens=accepted", id="tokens without limits"),
        pytest.param("admissionPolicy.unrestrictedTokens=true", "accepted", id="a choice that is not named"),
        pytest.param("nodeSelectorTerms=null", "nodeSelectorTerms", id="every node of the cluster"),
    ],
)
def test_a_mistake_in_the_values_is_named(setting: str, complaint: str) -> None:
    done = subprocess.run(
        [tool("helm"), "template", "x", CHART, "--set", setting], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert complaint in done.stderr


def test_values_that_differ_between_clusters() -> None:
    digest = f"sha256:{'a' * 64}"
    pod = pod_of(
        "image.repository=registry.example.com/gputopo",
        f"image.digest={digest}",
        "image.pullPolicy=Always",
        "imagePullSecrets[0].name=pull",
        "runtimeClassName=nvidia",
        "kubeletSocket.directory=/var/lib/k0s/kubelet/pod-resources",
        "settings.GPUTOPO_INTERVAL=30s",
        "priorityClass.name=infra",
        "priorityClass.create=false",
        "resources.limits.memory=512Mi",
    )
    (container,) = pod["containers"]

    assert container["image"] == f"registry.example.com/gputopo@{digest}"
    assert container["imagePullPolicy"] == "Always"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert (pod["runtimeClassName"], pod["priorityClassName"]) == ("nvidia", "infra")
    assert {"name": "GPUTOPO_INTERVAL", "value": "30s"} in container["env"]
    assert {"name": "GPUTOPO_SOCKET", "value": "/var/lib/k0s/kubelet/pod-resources/kubelet.sock"} in container["env"]
    assert pod["volumes"][0]["hostPath"]["path"] == "/var/lib/k0s/kubelet/pod-resources"
    assert container["volumeMounts"][0]["mountPath"] == "/var/lib/k0s/kubelet/pod-resources"
    assert container["resources"]["limits"]["memory"] == "512Mi"


def test_with_a_group_that_may_use_the_socket_the_agent_is_not_root() -> None:
    component = DAEMONSET / "components/kubelet-socket-group/kustomization.yaml"
    (patch,) = yaml.safe_load(yaml.safe_load(component.read_text(encoding="utf-8"))["patches"][0]["patch"])
    pod = pod_of("kubeletSocket.group=998")

    assert pod["securityContext"] == patch["value"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["supplementalGroups"]) == (True, [998])
    assert pod["volumes"][0]["hostPath"]["path"] == "/var/lib/kubelet/pod-resources"
    assert pod_of()["securityContext"]["runAsUser"] == 0


def test_the_kubelets_configuration_file_is_mounted_alone_and_read_only() -> None:
    component = DAEMONSET / "components/kubelet-config/daemonset.yaml"
    patch = yaml.safe_load(component.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    patch["volumes"][0]["hostPath"]["path"] = "/etc/kubernetes/kubelet.conf"
    pod = pod_of("kubeletSocket.config=/etc/kubernetes/kubelet.conf")
    (container,) = pod["containers"]

    (wanted,) = patch["containers"]
    assert all(each in pod["volumes"] for each in patch["volumes"])
    assert all(each in container["env"] for each in wanted["env"])
    assert all(each in container["volumeMounts"] and each["readOnly"] for each in wanted["volumeMounts"])
    assert "kubelet-config" not in {each["name"] for each in pod_of()["volumes"]}


def test_the_agent_is_apart_from_the_other_programs() -> None:
    documents = helm_rendered("scheduler.enabled=true", "planner.enabled=true", "observe.enabled=true")
    levels = {
        each["metadata"]["name"]: each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for each in documents
        if each["kind"] == "Namespace"
    }
    pods = {
        each["metadata"]["name"]: each["metadata"]["namespace"]
        for each in documents
        if each["kind"] in {"DaemonSet", "Deployment"}
    }

    assert levels == {"gputopo-agent": "privileged", "gputopo-node-lease": "restricted"}
    assert pods.pop("gputopo-agent") == "gputopo-agent"
    assert set(pods.values()) == {"gputopo"}
    without = [each for each in helm_rendered("kubeletSocket.enabled=false") if each["kind"] == "Namespace"]
    assert {each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] for each in without} == {"restricted"}
    made = {
        settings: {each["metadata"]["name"] for each in helm_rendered(settings) if each["kind"] == "Namespace"}
        for settings in ("agentNamespace.create=false", "agentNamespace.name=gputopo")
    }
    assert made == {"agentNamespace.create=false": set(), "agentNamespace.name=gputopo": {HEARTBEAT_NAMESPACE}}


def test_policies_and_priority_class_can_be_left_to_others() -> None:
    kinds = {each["kind"] for each in helm_rendered(*WITHOUT_POLICIES, "priorityClass.create=false")}

    assert kinds & {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "PriorityClass"} == set()


def test_another_namespace_is_bound_by_the_same_policies() -> None:
    documents = helm_rendered(namespace="gpu-tools")
    account = next(each for each in documents if each["kind"] == "ServiceAccount")["metadata"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    conditions = [
        condition["expression"]
        for each in documents
        if each["kind"] == "ValidatingAdmissionPolicy"
        for condition in each["spec"]["matchConditions"]
    ]

    assert len(conditions) == 4
    assert "gpu-tools" not in "".join(conditions)
    assert all(f"endsWith(':{user.rpartition(':')[2]}')" in each for each in conditions)


def notes(*settings: str) -> str:
    """The text that Helm prints after the installation."""
    flags = [flag for setting in settings for flag in ("--set", setting)]
    command = [tool("helm"), "install", "gputopo", str(CHART), "--namespace", "gputopo", "--dry-run=client", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return " ".join(done.stdout.partition("NOTES:\n")[2].split())


GATED = "an admission policy gates the pods of gangs with the schedulerName gputopo-scheduler"
LABEL = "kubectl label namespace NAME gputopo.io/gangs=enabled"
WRITTEN = "spec: schedulingGates: [{name: gputopo.io/gang}]"
ALL_GATED = "an admission policy gates every GPU pod with the schedulerName gputopo-scheduler."


@pytest.mark.parametrize(
    ("gates", "all_pods", "said"),
    [
        pytest.param("true", "false", {GATED, LABEL}, id="gangs"),
        pytest.param("false", "false", {WRITTEN}, id="no policy"),
        pytest.param("true", "true", {GATED, LABEL, ALL_GATED}, id="gangs and all pods"),
        pytest.param("false", "true", {WRITTEN, ALL_GATED}, id="all pods"),
    ],
)
def test_the_notes_say_which_pods_these_values_gate(gates: str, all_pods: str, said: set[str]) -> None:
    text = notes("scheduler.enabled=true", "planner.enabled=true", f"planner.gates={gates}", f"planner.all={all_pods}")

    assert {each for each in (GATED, LABEL, WRITTEN, ALL_GATED) if each in text} == said
    assert ("has no effect" in text) == (gates == "false")


def test_the_notes_end_with_the_namespace_when_they_remove_everything() -> None:
    steps = ("helm uninstall gputopo -n gputopo", "gputopo cleanup --all", "kubectl delete namespace gputopo ")

    assert f"in this order: {' '.join(steps)}" in notes()
    assert f"{steps[0]} gputopo release --all {' '.join(steps[1:])}" in notes("planner.enabled=true")


def test_the_notes_name_all_schedulers_whose_pods_are_gated() -> None:
    text = notes("scheduler.enabled=true", "planner.enabled=true", "scheduler.qualityAndCost=true")

    assert "schedulerName gputopo-scheduler, gpu-aware-scheduler or cost-optimized-scheduler, and of gangs in" in text
    assert "The planner" not in notes("scheduler.enabled=true")
