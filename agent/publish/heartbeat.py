"""Renews the Lease of a node: the heartbeat of its agent (``gputopo.kube.heartbeats``).

A renewal is a merge patch with the uid and the resource version of the Lease: a conflict shows that another client has
written it, or that etcd was restored from a backup. The managed fields are removed, because they would be half of the
stored object, and only the agent writes it.
"""

from __future__ import annotations

from typing import Any

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ConflictError, NotFoundError
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE, Heartbeat
from gputopo.kube.objects import ObjectMeta, PartialObject
from gputopo.kube.rbac import LEASES, NODES
from gputopo.timestamps import format_micro_timestamp, parse_timestamp


class HeartbeatWriter:
    """Writes the Lease of one node."""

    def __init__(self, kube: Kube, node: str) -> None:
        self._kube = kube
        self._node = node
        self._known: ObjectMeta | None = None  # as last read or written
        self._has_managed_fields = True

    def forget(self) -> None:
        """Read the Lease again before the next renewal: it may be another one."""
        self._known = None

    def renew(self, heartbeat: Heartbeat, node_uid: str) -> None:
        """Create or renew the Lease. It is deleted with its Node. Raises ``KubeError``.

        Raises ``ConflictError`` if the Lease is not as this process left it; the next call reads it again.
        """
        spec = {"holderIdentity": heartbeat.confirms, "renewTime": _micro_time(heartbeat.at)}
        try:
            known = self._known or self._read_lease()
            self._known = self._create(spec, node_uid) if known is None else self._patch(known, spec)
        except (ConflictError, NotFoundError):
            self._known = None
            raise

    def _read_lease(self) -> ObjectMeta | None:
        query = ListOptions(HEARTBEAT_NAMESPACE, metadata_only=True)
        self._has_managed_fields = True
        try:
            return self._kube.get(LEASES, self._node, PartialObject, query).metadata
        except NotFoundError:
            return None

    def _create(self, spec: dict[str, str], node_uid: str) -> ObjectMeta:
        owner = {"apiVersion": NODES.api_version, "kind": "Node", "name": self._node, "uid": node_uid}
        metadata = {"name": self._node, "namespace": HEARTBEAT_NAMESPACE, "ownerReferences": [owner]}
        body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}
        return self._kube.create(LEASES, body)

    def _patch(self, known: ObjectMeta, spec: dict[str, str]) -> ObjectMeta:
        metadata: dict[str, Any] = {
            "name": self._node,
            "namespace": HEARTBEAT_NAMESPACE,
            "uid": known.uid,
            "resourceVersion": known.resource_version,
        }
        if self._has_managed_fields:
            metadata["managedFields"] = [{}]  # the API server then keeps none
        found = self._kube.patch(LEASES, {"metadata": metadata, "spec": spec})
        self._has_managed_fields = False
        return found


def _micro_time(text: str) -> str:
    at = parse_timestamp(text)
    return text if at is None else format_micro_timestamp(at)
