"""Writes the ``NodeGpus`` object, its heartbeat and the Events of a node to the API server.

The agent reads no ``NodeGpus``, so its token does not need to: those of other nodes name the pods of all tenants. An
apply that changes nothing is not stored, and one that another client's change conflicts with is repeated by force.

While nothing but the time changes, the Lease of the node is renewed instead. Where the agent may not write Leases (the
manifests of a version before), ``NodeGpus`` is written at every heartbeat.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from agent.publish import NodeEvent, PublishError, PublishOutcome, RestoredField
from agent.publish.heartbeat import HeartbeatWriter
from gputopo.crd import nodegpus
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube import events
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ConflictError, ForbiddenError, KubeError, NotFoundError, UnavailableError
from gputopo.kube.events import EventReporter, EventSubject
from gputopo.kube.heartbeats import Heartbeat
from gputopo.kube.objects import ObjectMeta, PartialObject
from gputopo.kube.rbac import EVENTS, NODE_GPUS, NODES, Resource
from gputopo.labels.keys import FIELD_MANAGER
from gputopo.timestamps import format_micro_timestamp, parse_timestamp
from gputopo.timing import STATE_REPAIR_S

_log = logging.getLogger("gputopo.agent")
_STEP_S = 0.001  # between the times of two contents that one pass over the GPUs observed
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


class WriterClock(NamedTuple):
    """The clocks of a writer."""

    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic: Callable[[], float] = time.monotonic  # seconds


class StateWriter:
    """Writes the ``NodeGpus``, its heartbeat and the Events of one node."""

    def __init__(
        self,
        kube: Kube,
        node: str,
        lease_after_s: float | None = None,
        clock: WriterClock = WriterClock(),  # noqa: B008  frozen
    ) -> None:
        """``lease_after_s``: from when on heartbeats are written into the Lease only; None: never into the Lease."""
        self._kube = kube
        self._node = node
        self._clock = clock
        self._uid: str | None = None  # of the Node
        self._state: NodeGpus | None = None  # the last one written
        self._version = ""  # its resource version
        self._heartbeat = HeartbeatWriter(kube, node)
        self._uses_lease = lease_after_s is not None
        self._lease_only_at = clock.monotonic() + (lease_after_s or 0.0)
        self._repair_at = float("inf")  # when to apply an unchanged ``NodeGpus`` again
        self._lease_error: str | None = None

    def set_node_uid(self, uid: str) -> None:
        """Set the UID of the Node. The ``NodeGpus`` of a replaced Node is deleted with it, and written again here."""
        replaced = self._uid is not None and self._uid != uid
        self._uid = uid
        if replaced and self._state is not None:
            state, self._state = self._state, None
            self._heartbeat.forget()
            self.write_state(state)

    def write_state(self, state: NodeGpus) -> PublishOutcome:
        """Write the node's ``NodeGpus`` or, if only its time has changed, the heartbeat. Both go with the Node."""
        before, now = self._state, self._clock.monotonic()
        with raise_publish_errors():
            if not self._uses_lease or before is None:
                return self._apply(state)
            if msgspec.structs.replace(before, observed_at=state.observed_at) != state:
                return self._apply(_with_later_time(state, before))
            if now < self._lease_only_at:
                outcome = self._apply(state)
                return msgspec.structs.replace(outcome, renewed=self._renew(state.observed_at))
            # The time stays: an apply that restores nothing is not stored.
            outcome = self._apply(before) if now >= self._repair_at else PublishOutcome(written=False)
            if self._renew(state.observed_at):
                return msgspec.structs.replace(outcome, renewed=True)
            return self._apply(state)

    def _apply(self, state: NodeGpus) -> PublishOutcome:
        body = _node_gpus_body(self._node, self._node_uid(), state)
        try:
            metadata, restored = apply_own(self._kube, NODE_GPUS, body)
        except NotFoundError as error:
            raise PublishError(_NO_CRD) from error
        written = metadata.resource_version != self._version
        self._state, self._version = state, metadata.resource_version
        self._repair_at = self._clock.monotonic() + STATE_REPAIR_S
        return PublishOutcome(written, restored=restored)

    def _renew(self, at: str) -> bool:
        """Renew the Lease: the written ``NodeGpus`` was true at that time. Return whether it could be renewed."""
        assert self._state is not None
        error = None
        try:
            self._heartbeat.renew(Heartbeat(self._state.observed_at, at), self._node_uid())
        except (ConflictError, ForbiddenError, NotFoundError) as refused:
            error = str(refused)
        if error != self._lease_error:
            level = logging.INFO if error is None else logging.WARNING
            _log.log(level, "heartbeat", extra={"fields": {"lease": "renewed" if error is None else error}})
        self._lease_error = error
        return error is None

    def write_event(self, event: NodeEvent) -> None:
        """Create a Kubernetes Event on the Node: ``kubectl describe node`` shows it."""
        with raise_publish_errors():
            subject = EventSubject(NODES, "Node", self._node, self._node_uid())
            reporter = EventReporter(FIELD_MANAGER, self._node)
            event_object = events.event_body(
                subject, reporter, event.reason, event.message, self._clock.wall(), warning=event.warning
            )
            self._kube.create(EVENTS, event_object)

    def _node_uid(self) -> str:
        """Return the UID of the Node; the first call reads it."""
        if self._uid is None:
            query = ListOptions(metadata_only=True, version="0")
            self._uid = self._kube.get(NODES, self._node, PartialObject, query).metadata.uid
        return self._uid


def _with_later_time(state: NodeGpus, before: NodeGpus) -> NodeGpus:
    """Return the state with a time after that of the state before: heartbeats name a content by its time."""
    at, last = parse_timestamp(state.observed_at), parse_timestamp(before.observed_at)
    if at is None or last is None or at > last:
        return state
    return msgspec.structs.replace(state, observed_at=format_micro_timestamp(last + _STEP_S))


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
