"""The pages for the users of a cluster, in kustomize and in the chart: who reaches them, and TLS."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from scheduler_core.ui.main import VIEWER_ROLE
from scheduler_core.ui.settings import UiServerSettings, read_settings
from scheduler_core.ui.viewers import PATH
from tests.daemonset.tools import DAEMONSET, Object, kustomized, name_of, run
from tests.daemonset.workloads import containers, deployment, helm_adds

ENABLED = "ui.enabled=true"
TLS = f"{ENABLED},ui.tlsSecret=gputopo-ui-tls"


def with_tls(folder: Path) -> list[Object]:
    """The kustomization of the pages with the component for TLS."""
    up = Path(*[".."] * len(folder.resolve().parts[1:]))
    where = {
        name: str(up / str((DAEMONSET / "scheduler" / name).resolve())[1:]) for name in ("ui", "components/ui-tls")
    }
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [where["ui"]],
        "components": [where["components/ui-tls"]],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    rendered = run("kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", folder)
    return [each for each in yaml.safe_load_all(rendered) if each]


def by_kind(documents: list[Object] | tuple[Object, ...], kind: str) -> Object:
    (found,) = (each for each in documents if each["kind"] == kind)
    return found


def settings_of(documents: list[Object] | tuple[Object, ...]) -> UiServerSettings:
    container = containers(deployment(documents)["spec"]["template"]["spec"])["ui"]
    return read_settings({}, {each["name"]: each["value"] for each in container["env"]})


def test_without_settings_the_chart_installs_nothing_of_it() -> None:
    assert helm_adds() == []


def test_only_port_forward_reaches_the_pages_until_a_peer_is_admitted() -> None:
    peer = "ui.from[0].namespaceSelector.matchLabels.name=ingress"
    admitted = by_kind(helm_adds(ENABLED, peer), "NetworkPolicy")["spec"]["ingress"]

    for documents in (kustomized("scheduler/ui"), helm_adds(ENABLED)):
        assert by_kind(documents, "NetworkPolicy")["spec"]["ingress"] == []
    assert admitted == [
        {
            "from": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
            "ports": [{"protocol": "TCP", "port": 8480}],
        }
    ]
    assert not [each for each in helm_adds(ENABLED, "networkPolicy.enabled=false") if each["kind"] == "NetworkPolicy"]


def test_the_role_of_viewers_has_the_path_that_is_reviewed() -> None:
    for documents in (kustomized("scheduler/ui"), helm_adds(ENABLED)):
        role = {name_of(each): each for each in documents}["ClusterRole", "", VIEWER_ROLE]
        assert role["rules"] == [{"nonResourceURLs": [PATH], "verbs": ["get"]}]


def test_the_settings_are_valid_and_the_ports_agree() -> None:
    for documents in (kustomized("scheduler/ui"), helm_adds(ENABLED)):
        found = settings_of(documents)
        container = containers(deployment(documents)["spec"]["template"]["spec"])["ui"]
        (port,) = by_kind(documents, "Service")["spec"]["ports"]
        assert (found.listen[1], found.certificates) == (8480, None)
        assert container["ports"] == [{"name": "http", "containerPort": found.listen[1]}]
        assert (port["port"], port["targetPort"]) == (found.listen[1], "http")


def test_tls_is_mounted_and_probed(tmp_path: Path) -> None:
    expected = deployment(with_tls(tmp_path))["spec"]["template"]["spec"]
    found = deployment(helm_adds(*TLS.split(",")))["spec"]["template"]["spec"]

    for spec in (expected, found):
        container = containers(spec)["ui"]
        files = settings_of([{"kind": "Deployment", "spec": {"template": {"spec": spec}}}]).certificates
        (mount,) = container["volumeMounts"]
        assert files is not None
        assert {files.certificate.parent, files.key.parent} == {Path(mount["mountPath"])}
        assert {container[f"{probe}Probe"]["httpGet"]["scheme"] for probe in ("startup", "liveness", "readiness")} == {
            "HTTPS"
        }
    assert found["volumes"] == expected["volumes"]
    assert containers(found)["ui"]["volumeMounts"] == containers(expected)["ui"]["volumeMounts"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tls_cert": "/a.pem"}, "--tls-cert and --tls-key go together"),
        ({"listen": "off"}, "this address cannot be off"),
        ({"audience": ""}, "--audience is empty"),
    ],
)
def test_settings_that_cannot_work_are_refused(flags: dict[str, str | None], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_settings(flags, {})
