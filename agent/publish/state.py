"""Writes the ``NodeGpus`` object and the Events of a node to the API server.

The agent reads no ``NodeGpus``, so its token does not need to: those of other nodes name the pods of all tenants. An
apply that changes nothing is not stored, and one that another client's change conflicts with is repeated by force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from agent.publish import NodeEvent, PublishError, PublishOutcome, RestoredField
from gputopo.crd import nodegpus
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube import events
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ConflictError, KubeError, NotFoundError, UnavailableError
from gputopo.kube.events import EventReporter, EventSubject
from gputopo.kube.objects import ObjectMeta, PartialObject
from gputopo.kube.rbac import EVENTS, NODE_GPUS, NODES, Resource
from gputopo.labels.keys import FIELD_MANAGER

_NO_CRD = (
    f"the cluster has no {nodegpus.PLURAL}.{NODE_GPUS.group}: apply the CustomResourceDefinition in the "
    "agent's manifests"
)


@contextmanager
def raise_publish_errors() -> Iterator[None]:
    """Convert errors of the API client to ``PublishError``."""
    try:
        yield
    except KubeError as error:
        raise PublishError(str(error), error.retry_after if isinstance(error, UnavailableError) else None) from error


def apply_own(kube: Kube, resource: Resource, body: dict[str, Any]) -> tuple[ObjectMeta, tuple[RestoredField, ...]]:
    """Apply an object that only the agent writes. Return its metadata, and the restored fields of others."""
    try:
        return kube.apply(resource, FIELD_MANAGER, body), ()
    except ConflictError as conflict:
        if not conflict.fields:  # not about field managers: the object is being changed by others
            raise
        restored = tuple(sorted(RestoredField(path, (who,)) for path, who in conflict.fields.items()))
        return kube.apply(resource, FIELD_MANAGER, body, force=True), restored


class StateWriter:
    """Writes the ``NodeGpus`` and the Events of one node."""

    def __init__(self, kube: Kube, node: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._kube = kube
        self._node = node
        self._now = now
        self._uid: str | None = None  # of the Node
        self._state: NodeGpus | None = None  # the last one written
        self._version = ""  # its resource version

    def set_node_uid(self, uid: str) -> None:
        """Set the UID of the Node. The ``NodeGpus`` of a replaced Node is deleted with it, and written again here."""
        replaced = self._uid is not None and self._uid != uid
        self._uid = uid
        if replaced and self._state is not None:
            self.write_state(self._state)

    def write_state(self, state: NodeGpus) -> PublishOutcome:
        """Write the node's ``NodeGpus``. It is deleted with its Node."""
        with raise_publish_errors():
            body = _node_gpus_body(self._node, self._node_uid(), state)
            try:
                metadata, restored = apply_own(self._kube, NODE_GPUS, body)
            except NotFoundError as error:
                raise PublishError(_NO_CRD) from error
        written = metadata.resource_version != self._version
        self._state, self._version = state, metadata.resource_version
        return PublishOutcome(written, restored=restored)

    def write_event(self, event: NodeEvent) -> None:
        """Create a Kubernetes Event on the Node: ``kubectl describe node`` shows it."""
        with raise_publish_errors():
            subject = EventSubject(NODES, "Node", self._node, self._node_uid())
            reporter = EventReporter(FIELD_MANAGER, self._node)
            event_object = events.event_body(
                subject, reporter, event.reason, event.message, self._now(), warning=event.warning
            )
            self._kube.create(EVENTS, event_object)

    def _node_uid(self) -> str:
        """Return the UID of the Node; the first call reads it."""
        if self._uid is None:
            query = ListOptions(metadata_only=True, version="0")
            self._uid = self._kube.get(NODES, self._node, PartialObject, query).metadata.uid
        return self._uid


def _node_gpus_body(node: str, uid: str, state: NodeGpus) -> dict[str, Any]:
    owner = {"apiVersion": NODES.api_version, "kind": "Node", "name": node, "uid": uid}
    return {
        "apiVersion": NODE_GPUS.api_version,
        "kind": nodegpus.KIND,
        "metadata": {"name": node, "ownerReferences": [owner]},
        # Fields that are None are sent as null: left out, they would stay as another client had set them.
        **{name: _without_none(value) for name, value in msgspec.to_builtins(state).items()},
    }


def _without_none(value: Any) -> Any:
    """Drop the fields of allocations that are None. The list is one field for server-side apply."""
    if isinstance(value, dict):
        return {name: _without_none(each) for name, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value
