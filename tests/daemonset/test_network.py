"""Permitted connections to and from the programs."""

from __future__ import annotations

from pathlib import Path

from gputopo.process.settings import options_of
from scheduler_core.extender.settings import ExtenderSettings
from tests.daemonset.compositions import ALL, composed
from tests.daemonset.tools import Object, helm_rendered, kustomized

PROMETHEUS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
API_SERVER = [{"protocol": "TCP", "port": port} for port in (443, 6443, 8443, 16443)]


def by_pods(documents: list[Object] | tuple[Object, ...]) -> dict[tuple[str, str], Object]:
    """The policies, by namespace and name of the pods that they select."""
    found = [each for each in documents if each["kind"] == "NetworkPolicy"]
    label = "app.kubernetes.io/name"
    return {
        (each["metadata"]["namespace"], each["spec"]["podSelector"]["matchLabels"][label]): each["spec"]
        for each in found
    }


def workloads(documents: list[Object] | tuple[Object, ...]) -> dict[tuple[str, str], Object]:
    """The pods, by namespace and name."""
    kinds = {"DaemonSet", "Deployment"}
    found = [each for each in documents if each["kind"] in kinds]
    return {
        (each["metadata"]["namespace"], each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]): each
        for each in found
    }


def test_every_program_has_a_policy_that_admits_prometheus_only(tmp_path: Path) -> None:
    cluster = kustomized("scheduler/cluster-scheduler")
    of_kustomize = [*composed(tmp_path), *kustomized("overlays/default"), *cluster]
    of_chart = [*helm_rendered(*ALL), *helm_rendered("scheduler.enabled=true", "scheduler.caller=cluster")]
    for documents in (of_kustomize, of_chart):
        policies, pods = by_pods(documents), workloads(documents)
        assert policies.keys() == pods.keys()
        assert len(policies) == 5
        for name, spec in policies.items():
            containers = pods[name]["spec"]["template"]["spec"]
            every = [*containers.get("initContainers", ()), *containers["containers"]]
            ports = {port["name"]: port["containerPort"] for each in every for port in each["ports"]}
            prometheus, *others = spec["ingress"]
            assert spec["policyTypes"] == ["Ingress", "Egress"]
            assert prometheus["from"] == PROMETHEUS
            assert [each["port"] for each in prometheus["ports"]] == sorted(set(ports.values()) - {9440})
            assert others == ([{"ports": [{"protocol": "TCP", "port": 9440}]}] if "verbs" in ports else [])
            assert spec["egress"] == [{"ports": API_SERVER}]


def test_the_verbs_of_a_sidecar_are_on_loopback() -> None:
    (verbs,) = (each for each in options_of(ExtenderSettings) if each.field == "verbs")

    assert verbs.default == "127.0.0.1:9440"


def test_the_chart_takes_other_peers_and_ports_and_can_leave_policies_to_others() -> None:
    changed = helm_rendered(
        "networkPolicy.metricsFrom[0].ipBlock.cidr=10.0.0.0/8", "networkPolicy.apiServerPorts={7443}"
    )
    (spec,) = by_pods(changed).values()

    assert spec["ingress"][0]["from"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    assert spec["egress"] == [{"ports": [{"protocol": "TCP", "port": 7443}]}]
    assert by_pods(helm_rendered("networkPolicy.enabled=false")) == {}
