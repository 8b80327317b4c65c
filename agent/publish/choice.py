"""Opens the publisher for ``--publish``; only its own modules are imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import msgspec

from agent.publish import Publisher
from gputopo.kube.rbac import AGENT, AGENT_WITH_NFD, Resource, Role

T = TypeVar("T")


class PublishTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The destination of a publication."""

    kind: str  # a key of ``settings.PUBLISH``
    node: str  # the name of the Node
    kubeconfig: str | None = None  # None: kubectl's rules, else this pod's service account
    namespace: str = "node-feature-discovery"  # nodefeature: a namespace that NFD's master reads
    features_file: Path = Path(
        "/etc/kubernetes/node-feature-discovery/features.d/gputopo"
    )  # features.d: NFD's directory
    lifetime: timedelta = timedelta(minutes=15)  # features.d: how long labels outlive the agent
    lease_after_s: float | None = None  # from when on heartbeats are in the Lease only; None: never


def open_publisher(target: PublishTarget) -> Publisher:
    """Return the publisher for a target. Raises ``gputopo.kube.errors.ConfigError`` where credentials are missing."""
    if target.kind == "stdout":
        from agent.publish.local import StandardOutputPublisher  # noqa: PLC0415  only for this target

        return StandardOutputPublisher(sys.stdout)
    if target.kind == "features.d":
        from agent.publish.local import FeaturesFilePublisher  # noqa: PLC0415  only for this target

        return FeaturesFilePublisher(target.features_file, target.lifetime)
    return _open_api_publisher(target)


def open_node_reader(
    target: PublishTarget, resource: Resource, role: Role, kind: type[T], timeout_s: float
) -> Callable[[], T]:
    """Return the function that reads the node's object of a kind, from the server's cache; it raises ``KubeError``.

    Raises ``ConfigError`` where credentials are missing.
    """
    from gputopo.kube.client import ListOptions  # noqa: PLC0415  only with an API server
    from gputopo.kube.connect import connect  # noqa: PLC0415

    kube = connect(role, target.kubeconfig).with_timeout(timeout_s)
    return lambda: kube.get(resource, target.node, kind, ListOptions(version="0"))


def _open_api_publisher(target: PublishTarget) -> Publisher:
    from gputopo.kube.connect import connect  # noqa: PLC0415  0.7 s, only with an API server

    role = AGENT if target.kind == "node" else AGENT_WITH_NFD
    kube = connect(role, target.kubeconfig)
    if target.kind == "node":
        from agent.publish.node import NodePublisher  # noqa: PLC0415  only for this target

        return NodePublisher(kube, target.node, target.lease_after_s)
    from agent.publish.nodefeature import NodeFeaturePublisher  # noqa: PLC0415  only for this target

    return NodeFeaturePublisher(kube, target.node, target.namespace, target.lease_after_s)
