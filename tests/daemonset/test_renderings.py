"""Helm and kustomize install the same objects, and every Kubernetes that we name takes them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from importlib.util import find_spec

import jsonschema
import pytest

from tests.daemonset.tools import Object, helm_rendered, kustomized, name_of

VARIANTS = {
    "default": (),
    "nfd": ("publish=nodefeature",),
    "no-kubelet-socket": ("kubeletSocket.enabled=false",),
    "demo": ("values-demo.yaml",),
}
MONITORING = ("monitoring.podMonitor.enabled=true", "monitoring.prometheusRule.enabled=true")


def comparable(documents: Iterable[Object]) -> dict[tuple[str, str, str], Object]:
    """By name; without the labels of objects, which say who installed them, and with environments in any order.

    The Namespace is kustomize's alone: Helm's users make it with ``--create-namespace``.
    """
    found = {name_of(each): copy.deepcopy(each) for each in documents if each["kind"] != "Namespace"}
    for each in found.values():
        each["metadata"].pop("labels", None)
        if each["kind"] == "DaemonSet":
            pod = each["spec"]["template"]["spec"]
            pod["containers"][0]["env"].sort(key=lambda variable: variable["name"])
    return found


@pytest.mark.parametrize("overlay", VARIANTS)
def test_helm_and_kustomize_install_the_same(overlay: str) -> None:
    assert comparable(helm_rendered(*VARIANTS[overlay])) == comparable(kustomized(f"overlays/{overlay}"))


def test_helm_and_kustomize_monitor_the_same() -> None:
    extra = comparable(helm_rendered(*MONITORING))
    for name in comparable(helm_rendered()):
        del extra[name]

    assert extra == comparable(kustomized("components/monitoring"))


def minor(age: int) -> str:
    """The newest Kubernetes minor whose schemas kubernetes-validate brings, or one that is this many older."""
    if find_spec("kubernetes_validate") is None:
        pytest.skip("no kubernetes-validate: `make manifests` brings it")
    from kubernetes_validate import latest_version

    major, newest = map(int, latest_version().split(".")[:2])
    return f"{major}.{newest - age}"


@pytest.mark.parametrize("age", [pytest.param(age, id=f"{age} minors old") for age in range(3)])
@pytest.mark.parametrize("overlay", VARIANTS)
def test_the_schemas_of_kubernetes_take_every_object(overlay: str, age: int) -> None:
    version = minor(age)
    from kubernetes_validate import validate

    for document in (*kustomized(f"overlays/{overlay}"), *helm_rendered(*VARIANTS[overlay])):
        assert validate(copy.deepcopy(document), version, strict=True).startswith(version)


def test_the_schemas_refuse_a_misspelled_field() -> None:
    version = minor(0)
    from kubernetes_validate import ValidationError, validate

    (daemonset,) = (each for each in kustomized("overlays/default") if each["kind"] == "DaemonSet")
    wrong = copy.deepcopy(daemonset)
    wrong["spec"]["template"]["spec"]["tolerationz"] = []

    with pytest.raises(ValidationError, match="tolerationz"):
        validate(wrong, version, strict=True)


# The Prometheus operator's objects are in no schema of Kubernetes. What ours use of them, from its API reference:
# https://prometheus-operator.dev/docs/api-reference/api/
def only(**properties: Object) -> Object:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
RULE = {
    **only(
        alert={"type": "string"},
        expr={"type": "string"},
        labels=TEXTS,
        annotations=TEXTS,
        **{"for": {"type": "string"}},
    ),
    "required": ["alert", "expr", "labels", "annotations"],
}
RELABELING = only(sourceLabels={"type": "array", "items": {"type": "string"}}, targetLabel={"type": "string"})
ENDPOINT = only(
    port={"type": "string"}, interval={"type": "string"}, relabelings={"type": "array", "items": RELABELING}
)
SPECS = {
    "PodMonitor": only(selector=only(matchLabels=TEXTS), podMetricsEndpoints={"type": "array", "items": ENDPOINT}),
    "PrometheusRule": only(
        groups={"type": "array", "items": only(name={"type": "string"}, rules={"type": "array", "items": RULE})}
    ),
}


def test_the_objects_of_the_prometheus_operator_have_its_shape() -> None:
    documents = kustomized("components/monitoring")

    assert [(each["kind"], each["apiVersion"]) for each in documents] == [
        ("PodMonitor", "monitoring.coreos.com/v1"),
        ("PrometheusRule", "monitoring.coreos.com/v1"),
    ]
    for each in documents:
        jsonschema.validate(each["spec"], SPECS[each["kind"]])
