"""A Node as kubectl prints it: its published topology is decoded. Pure.

ParseError    not a Node, or a Node without a readable topology; the message says which and what to do
"""

from __future__ import annotations

from typing import Any

import msgspec

from agent.recording.topology import Observation
from agent.sources.errors import ParseError
from gputopo.labels import AnnotationError, NoTopologyError, decode_topology
from gputopo.process.decoding import convert


class _InputMetadata(msgspec.Struct):
    name: str = "?"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _InputNode(msgspec.Struct):
    kind: str
    metadata: _InputMetadata


class _InputNodeList(msgspec.Struct):
    items: list[_InputNode]


def observation_from_node(document: dict[str, Any]) -> Observation:
    """Return the observation in a Node, or in a list with one Node. Raises ``ParseError``."""
    try:
        nodes = convert(document, _InputNodeList).items if "items" in document else [convert(document, _InputNode)]
    except msgspec.ValidationError as error:
        raise ParseError(f"not a Node as `kubectl get node NAME -o json` prints it: {error}") from error
    if len(nodes) != 1 or nodes[0].kind != "Node":
        names = ", ".join(f"{node.kind} {node.metadata.name}" for node in nodes[:8]) or "nothing"
        raise ParseError(
            f"expected one Node, found {len(nodes)} objects ({names}); name one Node in the kubectl command"
        )
    try:
        return Observation(decode_topology(nodes[0].metadata.labels, nodes[0].metadata.annotations))
    except (AnnotationError, NoTopologyError) as error:
        raise ParseError(f"Node {nodes[0].metadata.name}: {error}") from error
