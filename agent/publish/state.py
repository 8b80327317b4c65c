"""Writes the ``NodeGpus`` object and the Events of a node to the API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from agent.publish import NodeEvent, PublishError
from gputopo.crd import nodegpus
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube import events
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import KubeError, NotFoundError, UnavailableError
from gputopo.kube.events import EventReporter, EventSubject
from gputopo.kube.objects import NodeGpusObject as Stored
from gputopo.kube.objects import PartialObject
from gputopo.kube.rbac import EVENTS, NODE_GPUS, NODES
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


class StateWriter:
    """Writes the ``NodeGpus`` and the Events of one node."""

    def __init__(self, kube: Kube, node: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._kube = kube
        self._node = node
        self._now = now

    def write_state(self, state: NodeGpus) -> bool:
        """Write the node's ``NodeGpus``; False: already current. It is deleted with its Node."""
        with raise_publish_errors():
            uid = self._node_uid()
            if self._is_current(state, uid):
                return False
            try:
                self._kube.apply(NODE_GPUS, FIELD_MANAGER, _node_gpus_body(self._node, uid, state))
            except NotFoundError as error:
                raise PublishError(_NO_CRD) from error
            return True

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
        return self._kube.get(
            NODES, self._node, PartialObject, ListOptions(metadata_only=True, version="0")
        ).metadata.uid

    def _is_current(self, state: NodeGpus, node_uid: str) -> bool:
        try:
            stored = self._kube.get(NODE_GPUS, self._node, Stored)
        except NotFoundError:
            return False
        same = all(getattr(stored, name) == getattr(state, name) for name in state.__struct_fields__)
        return same and [owner.uid for owner in stored.metadata.owner_references] == [node_uid]


def _node_gpus_body(node: str, uid: str, state: NodeGpus) -> dict[str, Any]:
    owner = {"apiVersion": NODES.api_version, "kind": "Node", "name": node, "uid": uid}
    return {
        "apiVersion": NODE_GPUS.api_version,
        "kind": nodegpus.KIND,
        "metadata": {"name": node, "ownerReferences": [owner]},
        **_without_none(msgspec.to_builtins(state)),
    }


def _without_none(value: Any) -> Any:
    """Drop fields that are None: in a server-side apply None means absent."""
    if isinstance(value, dict):
        return {name: _without_none(each) for name, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value
