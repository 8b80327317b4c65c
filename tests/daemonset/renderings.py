"""Renderings of the manifests, and how two of them compare."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from importlib.util import find_spec

import pytest

from tests.daemonset.tools import Object, name_of


def comparable(documents: Iterable[Object]) -> dict[tuple[str, str, str], Object]:
    """Return objects by name, without the labels that name the installer, and with environments in any order.

    The Namespace is kustomize's alone: Helm's users make it with ``--create-namespace``.
    """
    found = {name_of(each): copy.deepcopy(each) for each in documents if each["kind"] != "Namespace"}
    for each in found.values():
        each["metadata"].pop("labels", None)
        if each["kind"] == "DaemonSet":
            pod = each["spec"]["template"]["spec"]
            pod["containers"][0]["env"].sort(key=lambda variable: variable["name"])
    return found


def minor(age: int) -> str:
    """The newest Kubernetes minor whose schemas kubernetes-validate brings, or one that is this many older."""
    if find_spec("kubernetes_validate") is None:
        pytest.skip("no kubernetes-validate: `make manifests` brings it")
    from kubernetes_validate import latest_version

    major, newest = map(int, latest_version().split(".")[:2])
    return f"{major}.{newest - age}"


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
