"""The custom resource ``NodeGpus``: the frequently changing facts of a node, kept out of the Node object.

There is one cluster-scoped object per node, with the node's name. Only gputopo watches it, so a heartbeat or a new pod
causes no work in other clients. The agent writes and the scheduler component reads these types; the
CustomResourceDefinition is generated from them.
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
    uid: str | None = None  # PodResources does not report it; set if the agent knows it


class DeviceAllocation(msgspec.Struct, frozen=True, rename="camel"):
    """A device that a container holds. Source: ``ContainerDevices.device_ids``."""

    gpu: str  # UUID of the physical GPU: "GPU-..."
    pod: PodRef
    replica: int | None = None  # n of "GPU-...::n" where the device plugin shares GPUs
    mig_device: str | None = None  # "MIG-..." where the pod holds a MIG device of that GPU


class NicAllocation(msgspec.Struct, frozen=True, rename="camel"):
    """A network card, or a virtual function of it, that a container holds. Source: ``ContainerDevices.device_ids``."""

    nic: str  # RDMA device: "mlx5_0"
    pod: PodRef
    virtual_function: str | None = None  # PCI address of the function; None: the pod holds the whole card


class NodeGpus(msgspec.Struct, frozen=True, rename="camel"):
    """The frequently changing facts of a node.

    ``observed_at`` (RFC 3339, UTC) is the heartbeat: readers compute staleness from it. ``allocations`` is None if the
    kubelet's socket cannot be read; () means that no device is allocated. The same applies
    to ``nics``, which lists the NICs of the topology only.
    """

    observed_at: str
    content_hash: str  # ``content_hash`` of the topology annotation that this observation belongs to
    agent_version: str
    allocations: tuple[DeviceAllocation, ...] | None = None
    nics: tuple[NicAllocation, ...] | None = None


def content_hash(annotation: str) -> str:
    """Return the SHA-256 of a topology annotation. It links a ``NodeGpus`` to the annotation that it belongs to."""
    return sha256(annotation.encode()).hexdigest()


def nodegpus_crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition (apiextensions.k8s.io/v1) of ``NodeGpus``."""
    schema = structural_schema(NodeGpus)
    schema["properties"]["observedAt"]["format"] = "date-time"
    return crd_definition(
        CrdKind(
            KIND,
            PLURAL,
            VERSION,
            "Changing facts of a GPU node: heartbeat, and which pod holds which GPU. Written by gputopo's agent.",
            (
                {"name": "Observed", "type": "date", "jsonPath": ".observedAt"},
                {"name": "Agent", "type": "string", "jsonPath": ".agentVersion"},
            ),
        ),
        schema,
    )
