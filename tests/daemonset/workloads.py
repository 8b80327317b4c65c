"""Deployments and containers of a rendering."""

from __future__ import annotations

from collections.abc import Iterable

from tests.daemonset.tools import Object, helm_rendered, kustomized, name_of


def helm_adds(*settings: str, namespace: str = "gputopo") -> list[Object]:
    """The objects that a chart with these settings installs beside the agent."""
    agent = {name_of(each) for each in helm_rendered(namespace=namespace)}
    return [each for each in helm_rendered(*settings, namespace=namespace) if name_of(each) not in agent]


def deployment(documents: Iterable[Object]) -> Object:
    (found,) = (each for each in documents if each["kind"] == "Deployment")
    return found


def pod(overlay: str) -> Object:
    spec: Object = deployment(kustomized(f"scheduler/{overlay}"))["spec"]["template"]["spec"]
    return spec


def containers(spec: Object) -> dict[str, Object]:
    return {each["name"]: each for each in (*spec.get("initContainers", ()), *spec["containers"])}
