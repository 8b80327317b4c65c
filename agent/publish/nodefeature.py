"""``--publish nodefeature``: labels in a ``NodeFeature`` of Node Feature Discovery, whose master writes the Node.

For clusters where no process on a node may patch a Node. NFD has no owners of keys: of two sources of one key the last
by name wins, silently. So the mirrors under nvidia.com/ are left out (GFD publishes them through NFD as well), and so
is the annotation, because NFD supports annotations up to 1 KiB only, and only through rules.
"""

from __future__ import annotations

from typing import Any

from agent.publish import NodeEvent, PublishError, PublishOutcome
from agent.publish.state import StateWriter, apply_own, raise_publish_errors
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import NotFoundError
from gputopo.kube.objects import NodeFeature, ObjectMeta, PartialObject
from gputopo.kube.rbac import NODE_FEATURES, NODES
from gputopo.labels import EncodedTopology
from gputopo.labels.keys import NFD_NODE_NAME

_NO_NFD = (
    f"the cluster has no {NODE_FEATURES.plural}.{NODE_FEATURES.group}: install Node Feature Discovery, or publish to "
    "the Node (--publish node)"
)


class NodeFeaturePublisher:
    """Publishes for a Node into a namespace that NFD's master reads. Implements ``Publisher``."""

    def __init__(self, kube: Kube, node: str, namespace: str, lease_after_s: float | None = None) -> None:
        self._kube = kube
        self._node = node
        self._name = f"gputopo-features-for-{node}"
        self._namespace = namespace
        self._state = StateWriter(kube, node, lease_after_s)

    def publish_facts(self, facts: EncodedTopology) -> PublishOutcome:
        """Write the labels to the ``NodeFeature``. It is deleted with the Node."""
        with raise_publish_errors():
            query = ListOptions(metadata_only=True, version="0")
            node = self._kube.get(NODES, self._node, PartialObject, query).metadata
            self._state.set_node_uid(node.uid)
            if self._is_current(facts.labels, node):
                return PublishOutcome(written=False)
            _, restored = apply_own(self._kube, NODE_FEATURES, self._body(facts.labels, node))
            return PublishOutcome(written=True, restored=restored)

    def write_state(self, state: NodeGpus) -> PublishOutcome:
        """Write the node's ``NodeGpus``."""
        return self._state.write_state(state)

    def write_event(self, event: NodeEvent) -> None:
        """Create a Kubernetes Event on the Node."""
        self._state.write_event(event)

    def _is_current(self, labels: dict[str, str], node: ObjectMeta) -> bool:
        try:
            stored = self._kube.get(NODE_FEATURES, self._name, NodeFeature, ListOptions(namespace=self._namespace))
        except NotFoundError as error:
            if error.kind_missing:
                raise PublishError(_NO_NFD) from error
            return False
        owners = [owner.uid for owner in stored.metadata.owner_references]
        named = stored.metadata.labels.get(NFD_NODE_NAME) == self._node
        return stored.spec.labels == labels and owners == [node.uid] and named

    def _body(self, labels: dict[str, str], node: ObjectMeta) -> dict[str, Any]:
        owner = {"apiVersion": NODES.api_version, "kind": "Node", "name": node.name, "uid": node.uid}
        return {
            "apiVersion": NODE_FEATURES.api_version,
            "kind": "NodeFeature",
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "labels": {NFD_NODE_NAME: self._node},
                "ownerReferences": [owner],
            },
            "spec": {"labels": labels},
        }
