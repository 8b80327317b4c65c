"""A Node as kubectl prints it: its published topology is decoded. Pure.

ParseError    not a Node, or a Node without a readable topology; the message says which and what to do
"""

from __future__ import annotations

from typing import Any

import msgspec

from agent.recording.topology import Observation
from agent.sources.errors import ParseError
from gputopo.labels import AnnotationError, EncodeError, NoTopologyError, decode_topology, encode_topology, keys
from gputopo.model import FactGroup, Problem, ProblemKind
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
    labels, annotations = nodes[0].metadata.labels, nodes[0].metadata.annotations
    try:
        topology = decode_topology(labels, annotations)
        own = encode_topology(topology).labels
    except (AnnotationError, NoTopologyError, EncodeError) as error:
        raise ParseError(f"Node {nodes[0].metadata.name}: {error}") from error
    if keys.TOPOLOGY.key not in annotations:
        return Observation(topology)
    products = {key for key in own.keys() | labels.keys() if key.startswith(keys.PRODUCT_PREFIX)}
    compared = (own.keys() & labels.keys() - _CHANGING) | (products if products & labels.keys() else set())
    compared |= {keys.SCHEMA.key} - labels.keys()  # an agent that publishes the annotation publishes labels too
    differing = sorted(key for key in compared if own.get(key) != labels.get(key))
    if not differing:
        return Observation(topology)
    why = ", ".join(
        f"{key} is {labels.get(key, 'missing')}, by the annotation {own.get(key, 'missing')}"
        for key in differing[:_NAMED]
    )
    problem = Problem("labels", ProblemKind.CONFLICT, f"the Node was damaged or edited: {why}")
    return Observation(msgspec.structs.replace(topology, problems=(problem,), uncertain=tuple(FactGroup)))


_CHANGING = frozenset({keys.SCHEMA.key, keys.DEGRADED.key})  # by the version of the agent
_NAMED = 4
