"""The custom resource ``NodeGpus``: what moves on a node, kept off the Node itself.

One cluster-scoped object per node, named like it. Only gputopo watches it, so a heartbeat or a new pod costs nobody
else anything. Producer (agent) and consumer (scheduler component) share these types; ``crd`` is what the cluster is
told, made from the same text.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from gputopo.crd.definition import CrdKind, crd_definition, structural_schema

VERSION = "v1alpha1"
KIND = "NodeGpus"
PLURAL = "nodegpus"


class PodRef(msgspec.Struct, frozen=True, rename="camel"):
    """The holder of a GPU. Source: the kubelet's PodResources API, ``PodResources`` and ``ContainerResources``."""

    namespace: str
    name: str
    container: str
    uid: str | None = None  # PodResources tells no uid; filled in where the agent learned it


class Allocation(msgspec.Struct, frozen=True, rename="camel"):
    """One device that a container holds. Source: ``ContainerDevices.device_ids``."""

    gpu: str  # UUID of the physical GPU: "GPU-..."
    pod: PodRef
    replica: int | None = None  # n of "GPU-...::n" where the device plugin shares GPUs
    mig_device: str | None = None  # "MIG-..." where the pod holds a MIG device of that GPU


class NodeGpus(msgspec.Struct, frozen=True, rename="camel"):
    """The moving facts of one node.

    ``observed_at`` (RFC 3339, UTC) is the heartbeat by which a reader judges staleness. ``allocations`` is None where
    the kubelet's socket cannot be asked: that is not the same as nothing being allocated.
    """

    observed_at: str
    content_hash: str  # ``content_hash`` of the topology annotation that this observation belongs to
    agent_version: str
    allocations: tuple[Allocation, ...] | None = None


def content_hash(annotation: str) -> str:
    """What ties a ``NodeGpus`` to the topology annotation that it speaks of: SHA-256 of the annotation's text."""
    return sha256(annotation.encode()).hexdigest()


def nodegpus_crd() -> dict[str, Any]:
    """The CustomResourceDefinition (apiextensions.k8s.io/v1) of ``NodeGpus``."""
    schema = structural_schema(NodeGpus)
    schema["properties"]["observedAt"]["format"] = "date-time"
    return crd_definition(
        CrdKind(
            KIND,
            PLURAL,
            VERSION,
            "What moves on a GPU node: heartbeat and which pod holds which GPU. Written by gputopo's agent.",
            (
                {"name": "Observed", "type": "date", "jsonPath": ".observedAt"},
                {"name": "Agent", "type": "string", "jsonPath": ".agentVersion"},
            ),
        ),
        schema,
    )
