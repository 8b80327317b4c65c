"""Helm and kustomize install the same objects, and every Kubernetes that we name takes them."""

from __future__ import annotations

import copy

import jsonschema
import pytest

from tests.daemonset.renderings import SPECS, comparable, minor
from tests.daemonset.tools import helm_rendered, kustomized

VARIANTS = {
    "default": (),
    "nfd": ("publish=nodefeature",),
    "no-kubelet-socket": ("kubeletSocket.enabled=false",),
    "demo": ("values-demo.yaml",),
}
MONITORING = ("monitoring.podMonitor.enabled=true", "monitoring.prometheusRule.enabled=true")


@pytest.mark.parametrize("overlay", VARIANTS)
def test_helm_and_kustomize_install_the_same(overlay: str) -> None:
    assert comparable(helm_rendered(*VARIANTS[overlay])) == comparable(kustomized(f"overlays/{overlay}"))


def test_helm_and_kustomize_monitor_the_same() -> None:
    extra = comparable(helm_rendered(*MONITORING))
    for name in comparable(helm_rendered()):
        del extra[name]

    assert extra == comparable(kustomized("components/monitoring"))


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


def test_the_objects_of_the_prometheus_operator_have_its_shape() -> None:
    documents = kustomized("components/monitoring")

    assert [(each["kind"], each["apiVersion"]) for each in documents] == [
        ("PodMonitor", "monitoring.coreos.com/v1"),
        ("PrometheusRule", "monitoring.coreos.com/v1"),
    ]
    for each in documents:
        jsonschema.validate(each["spec"], SPECS[each["kind"]])
