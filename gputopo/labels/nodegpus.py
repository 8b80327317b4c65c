"""The custom resource ``NodeGpus``: what moves on a node, kept off the Node itself.

One cluster-scoped object per node, named like it. Only gputopo watches it, so a heartbeat or a new pod costs nobody
else anything. Producer (agent) and consumer (scheduler component) share these types; ``crd`` is what the cluster is
told, made from the same text.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from gputopo.labels.keys import API_GROUP

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


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition (apiextensions.k8s.io/v1) of ``NodeGpus``."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "scope": "Cluster",
            "names": {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": PLURAL},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _schema()},
                    "additionalPrinterColumns": [
                        {"name": "Observed", "type": "date", "jsonPath": ".observedAt"},
                        {"name": "Agent", "type": "string", "jsonPath": ".agentVersion"},
                    ],
                }
            ],
        },
    }


def _schema() -> dict[str, Any]:
    """A structural schema: no references, no ``anyOf`` with types, ``nullable`` instead (Kubernetes' rules)."""
    _, definitions = msgspec.json.schema_components([NodeGpus], ref_template="{name}")
    schema = _structural(definitions[NodeGpus.__name__], definitions)
    schema["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    schema["properties"]["observedAt"]["format"] = "date-time"
    schema["description"] = (
        "What moves on a GPU node: heartbeat and which pod holds which GPU. Written by gputopo's agent."
    )
    return schema


def _structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return _structural(definitions[schema["$ref"]], definitions)
    if "anyOf" in schema:
        (only,) = [option for option in schema["anyOf"] if option != {"type": "null"}]
        return _structural(only, definitions) | {"nullable": True}
    result: dict[str, Any] = {name: schema[name] for name in ("type", "required") if name in schema}
    if "properties" in schema:
        result["properties"] = {name: _structural(each, definitions) for name, each in schema["properties"].items()}
    if "items" in schema:
        result["items"] = _structural(schema["items"], definitions)
    return result
