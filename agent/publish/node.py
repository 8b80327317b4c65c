"""``--publish node``: labels and the annotation on the Node, by server-side apply without force."""

from __future__ import annotations

import logging
from typing import Any

from agent.publish import NodeEvent, PublishError, PublishOutcome
from agent.publish.plan import FieldValues, plan_apply, values_by_manager
from agent.publish.state import StateWriter, raise_publish_errors
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ConflictError
from gputopo.kube.objects import Managed, ManagedMetadata
from gputopo.kube.ownership import OwnedField, field_of
from gputopo.kube.rbac import NODES
from gputopo.labels import AnnotationError, EncodedTopology, decode_topology, keys
from gputopo.model import NodeTopology

_log = logging.getLogger(__name__)
_ANY_VERSION = "0"  # any version that the server has cached, as kubelets read their Node
_MAX_ATTEMPTS = 3  # attempts without the keys of a conflict; more are needed only if others keep taking keys


class NodePublisher:
    """Publishes to a Node. Implements ``agent.publish.Publisher``."""

    def __init__(self, kube: Kube, node: str) -> None:
        self._kube = kube
        self._node = node
        self._state = StateWriter(kube, node)
        self._version = _ANY_VERSION
        self._logged_owners: dict[OwnedField, tuple[str, ...]] = {}

    def publish_facts(self, facts: EncodedTopology) -> PublishOutcome:
        """Write these facts to the Node, except keys that other field managers own."""
        with raise_publish_errors():
            metadata = self._read_node()
            owned_by_others: dict[OwnedField, tuple[str, ...]] = {}
            written = False
            for manager, wanted in values_by_manager(facts).items():
                planned = plan_apply(metadata, manager, wanted)
                owned_by_others |= planned.others
                if planned.apply is not None:
                    refused_fields, wrote = self._apply_facts(metadata.uid, manager, planned.apply)
                    owned_by_others |= refused_fields
                    written |= wrote
        self._log_foreign_keys(owned_by_others)
        return PublishOutcome(written, tuple(sorted(field.key for field in owned_by_others)))

    def read_published(self) -> NodeTopology | None:
        """Return the topology in the Node's annotation. A damaged one counts as missing: it will be replaced."""
        with raise_publish_errors():
            annotations = self._read_node().annotations
        try:
            return None if keys.TOPOLOGY.key not in annotations else decode_topology({}, annotations)
        except AnnotationError:
            return None

    def write_state(self, state: NodeGpus) -> bool:
        """Write the node's ``NodeGpus``."""
        return self._state.write_state(state)

    def write_event(self, event: NodeEvent) -> None:
        """Create a Kubernetes Event on the Node."""
        self._state.write_event(event)

    def _read_node(self) -> ManagedMetadata:
        """Read the Node from the server's cache, but not older than our last write to it."""
        query = ListOptions(metadata_only=True, version=self._version)
        self._version = _ANY_VERSION  # for the next pass, if this version no longer exists (a restored etcd)
        metadata = self._kube.get(NODES, self._node, Managed, query).metadata
        self._version = metadata.resource_version
        return metadata

    def _apply_facts(
        self, uid: str, manager: str, facts: FieldValues
    ) -> tuple[dict[OwnedField, tuple[str, ...]], bool]:
        """Apply the facts without those in conflict. Returns the conflicts with their owners, and whether it wrote."""
        refused_fields: dict[OwnedField, tuple[str, ...]] = {}
        for _ in range(_MAX_ATTEMPTS):
            try:
                self._version = self._kube.apply(NODES, manager, _node_body(self._node, uid, facts)).resource_version
            except ConflictError as conflict:
                refused = {field: (who,) for path, who in conflict.fields.items() if (field := field_of(path)) in facts}
                if not refused:
                    raise
                refused_fields |= refused
                facts = {field: value for field, value in facts.items() if field not in refused}
            else:
                return refused_fields, True
        raise PublishError(
            f"Node {self._node}: other field managers keep taking keys of {manager}: {_list_owners(refused_fields)}"
        )

    def _log_foreign_keys(self, owned_by_others: dict[OwnedField, tuple[str, ...]]) -> None:
        """Log the keys that other field managers own, when they change."""
        if owned_by_others != self._logged_owners:
            self._logged_owners = owned_by_others
            if owned_by_others:
                _log.warning(
                    "keys of Node %s that other field managers own are left unchanged: %s",
                    self._node,
                    _list_owners(owned_by_others),
                )


def _node_body(node: str, uid: str, facts: FieldValues) -> dict[str, Any]:
    """Return a Node with our facts only. With the UID, the apply cannot create a Node that was just deleted."""
    metadata: dict[str, Any] = {"name": node, "uid": uid}
    for (section, key), value in facts.items():
        metadata.setdefault(section, {})[key] = value
    return {"apiVersion": NODES.api_version, "kind": "Node", "metadata": metadata}


def _list_owners(owned_by_others: dict[OwnedField, tuple[str, ...]]) -> str:
    return ", ".join(f"{field.key} ({' and '.join(who)})" for field, who in sorted(owned_by_others.items()))
