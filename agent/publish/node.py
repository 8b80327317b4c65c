"""``--publish node``: labels and the annotation onto our own Node, by server-side apply and never by force."""

from __future__ import annotations

import logging
from typing import Any

from agent.publish import Event, Outcome, PublishError
from agent.publish.plan import Facts, by_manager, plan
from agent.publish.state import StateWriter, translated
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.client import Kube, Query
from gputopo.kube.errors import ConflictError
from gputopo.kube.objects import Managed, ManagedMetadata
from gputopo.kube.ownership import Field, field_of
from gputopo.kube.rbac import NODES
from gputopo.labels import AnnotationError, NodeFacts, decode, keys
from gputopo.model import NodeTopology

_log = logging.getLogger(__name__)
_ANY = "0"  # whatever the server has cached, as kubelets read their Node
_ROUNDS = 3  # of dropping what a conflict names: others would have to take keys from us between every two


class NodePublisher:
    """Publishes to the Node of that name. Satisfies ``agent.publish.Publisher``."""

    def __init__(self, kube: Kube, node: str) -> None:
        self._kube = kube
        self._node = node
        self._state = StateWriter(kube, node)
        self._version = _ANY
        self._told: dict[Field, tuple[str, ...]] = {}

    def publish(self, facts: NodeFacts) -> Outcome:
        """Make the Node carry these facts, as far as nobody else owns their keys."""
        with translated():
            metadata = self._read()
            others: dict[Field, tuple[str, ...]] = {}
            written = False
            for manager, wanted in by_manager(facts).items():
                planned = plan(metadata, manager, wanted)
                others |= planned.others
                if planned.apply is not None:
                    lost, wrote = self._apply(metadata.uid, manager, planned.apply)
                    others |= lost
                    written |= wrote
        self._tell(others)
        return Outcome(written, tuple(sorted(field.key for field in others)))

    def recall(self) -> NodeTopology | None:
        """The topology that the Node carries. One that is damaged, or not ours, is as none: it will be replaced."""
        with translated():
            annotations = self._read().annotations
        try:
            return None if keys.TOPOLOGY.key not in annotations else decode({}, annotations)
        except AnnotationError:
            return None

    def report(self, state: NodeGpus) -> bool:
        """Make the node's ``NodeGpus`` say this."""
        return self._state.report(state)

    def announce(self, event: Event) -> None:
        """Create a Kubernetes Event on the Node."""
        self._state.announce(event)

    def _read(self) -> ManagedMetadata:
        """The Node, not older than our last write to it, at the price of a cached read."""
        query = Query(metadata_only=True, version=self._version)
        self._version = _ANY  # should that version be no more (a restored etcd), the next pass reads again
        metadata = self._kube.get(NODES, self._node, Managed, query).metadata
        self._version = metadata.resource_version
        return metadata

    def _apply(self, uid: str, manager: str, facts: Facts) -> tuple[dict[Field, tuple[str, ...]], bool]:
        """Apply what is not refused; what was refused with its owners, and whether anything was written."""
        lost: dict[Field, tuple[str, ...]] = {}
        for _ in range(_ROUNDS):
            try:
                self._version = self._kube.apply(NODES, manager, _body(self._node, uid, facts)).resource_version
            except ConflictError as conflict:
                refused = {field: (who,) for path, who in conflict.fields.items() if (field := field_of(path)) in facts}
                if not refused:
                    raise
                lost |= refused
                facts = {field: value for field, value in facts.items() if field not in refused}
            else:
                return lost, True
        raise PublishError(f"Node {self._node}: others keep taking keys of {manager}: {_names(lost)}")

    def _tell(self, others: dict[Field, tuple[str, ...]]) -> None:
        """Log whose keys we leave alone, once, until that changes."""
        if others != self._told:
            self._told = others
            if others:
                _log.warning("keys of Node %s that others own stay theirs: %s", self._node, _names(others))


def _body(node: str, uid: str, facts: Facts) -> dict[str, Any]:
    """The Node with nothing but our facts. Its uid keeps an apply from creating a Node that was just deleted."""
    metadata: dict[str, Any] = {"name": node, "uid": uid}
    for (section, key), value in facts.items():
        metadata.setdefault(section, {})[key] = value
    return {"apiVersion": NODES.api_version, "kind": "Node", "metadata": metadata}


def _names(others: dict[Field, tuple[str, ...]]) -> str:
    return ", ".join(f"{field.key} ({' and '.join(who)})" for field, who in sorted(others.items()))
