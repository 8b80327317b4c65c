"""A Node of the cluster as kubectl prints it: it carries a topology already, which is decoded. Pure.

ParseError    it is no Node, or carries no topology that can be decoded; the message says which and what to do
"""

from __future__ import annotations

from typing import Any

import msgspec

from agent.recording.topology import Observation
from agent.sources.errors import ParseError
from gputopo.labels import AnnotationError, NoTopologyError, decode
from gputopo.process.decoding import convert


class _Metadata(msgspec.Struct):
    name: str = "?"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Node(msgspec.Struct):
    kind: str
    metadata: _Metadata


class _NodeList(msgspec.Struct):
    items: list[_Node]


def from_node(document: dict[str, Any]) -> Observation:
    """The observation in a Node, or in a list that holds one. Raises ``ParseError``."""
    try:
        nodes = convert(document, _NodeList).items if "items" in document else [convert(document, _Node)]
    except msgspec.ValidationError as error:
        raise ParseError(f"this is not a Node as `kubectl get node NAME -o json` prints it: {error}") from error
    if len(nodes) != 1 or nodes[0].kind != "Node":
        names = ", ".join(f"{node.kind} {node.metadata.name}" for node in nodes[:8]) or "nothing"
        raise ParseError(f"one Node is wanted, and this holds {len(nodes)} objects ({names}); name one to kubectl")
    try:
        return Observation(decode(nodes[0].metadata.labels, nodes[0].metadata.annotations))
    except (AnnotationError, NoTopologyError) as error:
        raise ParseError(f"Node {nodes[0].metadata.name}: {error}") from error
