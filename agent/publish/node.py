"""``--publish node``: labels and the annotation on the Node, by server-side apply.

Own keys are forced: a reader must be able to rely on them. Mirrors are never forced.
"""

from __future__ import annotations

import logging
from typing import Any

from agent.publish import NodeEvent, PublishError, PublishOutcome, RestoredField
from agent.publish.plan import FieldOwners, FieldValues, mirror_values, own_values, plan_apply, plan_forced
from agent.publish.state import StateWriter, raise_publish_errors
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ConflictError
from gputopo.kube.objects import Managed, ManagedMetadata
from gputopo.kube.ownership import OwnedField, field_of, owned_fields, owners
from gputopo.kube.rbac import NODES
from gputopo.labels import AnnotationError, EncodedTopology, decode_topology, keys
from gputopo.labels.keys import FIELD_MANAGER, MIRROR_FIELD_MANAGER
from gputopo.model import NodeTopology

_log = logging.getLogger(__name__)
_ANY_VERSION = "0"  # any version that the server has cached, as kubelets read their Node
_MAX_ATTEMPTS = 3  # attempts without the keys of a conflict; more are needed only if others keep taking keys
_ANNOTATION = OwnedField("annotations", keys.TOPOLOGY.key)


class NodePublisher:
    """Publishes to a Node. Implements ``agent.publish.Publisher``."""

    def __init__(self, kube: Kube, node: str, lease_after_s: float | None = None) -> None:
        self._kube = kube
        self._node = node
        self._state = StateWriter(kube, node, lease_after_s)
        self._version = _ANY_VERSION
        self._published: tuple[str, FieldValues] = ("", {})  # UID of the Node, and the own keys that it has
        self._logged_owners: FieldOwners = {}

    def publish_facts(self, facts: EncodedTopology) -> PublishOutcome:
        """Write these facts to the Node, except mirrors that other field managers own."""
        with raise_publish_errors():
            metadata = self._read_node()
            self._state.set_node_uid(metadata.uid)
            restored, wrote_own = self._publish_own_keys(metadata, own_values(facts))
            kept_by_others, wrote_mirrors = self._publish_mirrors(metadata, mirror_values(facts))
        self._log_foreign_keys(kept_by_others)
        kept = tuple(sorted(field.key for field in kept_by_others))
        return PublishOutcome(wrote_own or wrote_mirrors, kept, restored)

    def read_published(self) -> NodeTopology | None:
        """Return the topology in the Node's annotation. A damaged or edited one counts as missing: it is replaced."""
        with raise_publish_errors():
            metadata = self._read_node()
        edited = _ANNOTATION in owners(metadata, besides=FIELD_MANAGER)
        if edited or _ANNOTATION not in owned_fields(metadata, FIELD_MANAGER):
            return None
        try:
            return decode_topology({}, metadata.annotations)
        except AnnotationError:
            return None

    def write_state(self, state: NodeGpus) -> PublishOutcome:
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

    def _publish_own_keys(
        self, metadata: ManagedMetadata, wanted: FieldValues
    ) -> tuple[tuple[RestoredField, ...], bool]:
        """Write the own keys by force. Return the keys that other clients had changed, and whether it wrote."""
        uid, published = self._published
        planned = plan_forced(metadata, wanted, published if uid == metadata.uid else {})
        if planned.apply is not None:
            body = _node_body(self._node, metadata.uid, planned.apply)
            self._version = self._kube.apply(NODES, FIELD_MANAGER, body, force=True).resource_version
        if planned.remove:
            body = _node_body(self._node, metadata.uid, dict.fromkeys(planned.remove))
            body["metadata"]["resourceVersion"] = self._version
            self._version = self._kube.patch(NODES, body).resource_version
        self._published = metadata.uid, wanted
        return planned.restored, planned.apply is not None or bool(planned.remove)

    def _publish_mirrors(self, metadata: ManagedMetadata, wanted: FieldValues) -> tuple[FieldOwners, bool]:
        """Write the mirrors that no other client owns. Return the others with their owners, and whether it wrote."""
        apply, kept_by_others = plan_apply(metadata, MIRROR_FIELD_MANAGER, wanted)
        if apply is None:
            return kept_by_others, False
        for _ in range(_MAX_ATTEMPTS):
            try:
                body = _node_body(self._node, metadata.uid, apply)
                self._version = self._kube.apply(NODES, MIRROR_FIELD_MANAGER, body).resource_version
            except ConflictError as conflict:
                refused = {field: (who,) for path, who in conflict.fields.items() if (field := field_of(path)) in apply}
                if not refused:
                    raise
                kept_by_others |= refused
                apply = {field: value for field, value in apply.items() if field not in refused}
            else:
                return kept_by_others, True
        raise PublishError(
            f"Node {self._node}: other field managers keep taking keys of {MIRROR_FIELD_MANAGER}: "
            f"{_list_owners(kept_by_others)}"
        )

    def _log_foreign_keys(self, owned_by_others: FieldOwners) -> None:
        """Log the keys that other field managers own, when they change."""
        if owned_by_others != self._logged_owners:
            self._logged_owners = owned_by_others
            if owned_by_others:
                _log.warning(
                    "keys of Node %s that other field managers own are left unchanged: %s",
                    self._node,
                    _list_owners(owned_by_others),
                )


def _node_body(node: str, uid: str, values: dict[OwnedField, Any]) -> dict[str, Any]:
    """Return a Node with these keys only. With the UID, the apply cannot create a Node that was just deleted."""
    metadata: dict[str, Any] = {"name": node, "uid": uid}
    for (section, key), value in values.items():
        metadata.setdefault(section, {})[key] = value
    return {"apiVersion": NODES.api_version, "kind": "Node", "metadata": metadata}


def _list_owners(owned_by_others: FieldOwners) -> str:
    return ", ".join(f"{field.key} ({' and '.join(who)})" for field, who in sorted(owned_by_others.items()))
