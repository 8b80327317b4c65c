"""``--publish`` -> the publisher of that name; only what it needs is imported."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import msgspec

from agent.publish import Publisher
from gputopo.kube.rbac import AGENT, AGENT_WITH_NFD


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where to publish to."""

    kind: str  # a key of ``settings.PUBLISH``
    node: str  # the name of our Node
    kubeconfig: str | None = None  # None: as kubectl finds one, else this pod's service account
    namespace: str = "node-feature-discovery"  # nodefeature: one that NFD's master reads
    features_file: Path = Path("/etc/kubernetes/node-feature-discovery/features.d/gputopo")  # features.d: NFD's folder
    lifetime: timedelta = timedelta(minutes=15)  # features.d: how long labels outlive an agent that is gone


def open_publisher(target: Target) -> Publisher:
    """The publisher for a target. Raises ``gputopo.kube.errors.ConfigError`` without credentials where it needs any."""
    if target.kind == "stdout":
        from agent.publish.local import StandardOutput  # noqa: PLC0415  one of several

        return StandardOutput(sys.stdout)
    if target.kind == "features.d":
        from agent.publish.local import FeaturesFile  # noqa: PLC0415  one of several

        return FeaturesFile(target.features_file, target.lifetime)
    return _through_the_api_server(target)


def _through_the_api_server(target: Target) -> Publisher:
    from gputopo.kube.connect import connect  # noqa: PLC0415  0.7 s, and not every publisher needs it

    role = AGENT if target.kind == "node" else AGENT_WITH_NFD
    kube = connect(role, target.kubeconfig)
    if target.kind == "node":
        from agent.publish.node import NodePublisher  # noqa: PLC0415  one of several

        return NodePublisher(kube, target.node)
    from agent.publish.nodefeature import NodeFeaturePublisher  # noqa: PLC0415  one of several

    return NodeFeaturePublisher(kube, target.node, target.namespace)
