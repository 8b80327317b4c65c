"""The fields of Kubernetes objects that gputopo reads. All other fields are skipped without being decoded.

Not the models of the official package: these cost 78 MiB of memory and a second of start-up.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import msgspec

from gputopo.crd import nodegpus
from gputopo.crd.reservations import LedgerSpec, LedgerStatus, ReservationSpec, ReservationStatus
from gputopo.kube.taints import Taint, unusable_reasons

T = TypeVar("T")


_ABSENT = msgspec.Raw()


class OwnedMetadata(
    msgspec.Struct, frozen=True, rename=lambda name: f"f:{'ownerReferences' if name == 'owners' else name}"
):
    """The labels and annotations that a field manager owns: ``f:<key>`` -> {}, and "." for the map itself."""

    labels: dict[str, msgspec.Raw] = {}
    annotations: dict[str, msgspec.Raw] = {}
    finalizers: msgspec.Raw = _ABSENT
    owners: msgspec.Raw = _ABSENT


class OwnedFields(msgspec.Struct, frozen=True, rename=lambda name: f"f:{name}"):
    """``fieldsV1`` of a Node."""

    metadata: OwnedMetadata = OwnedMetadata()
    spec: msgspec.Raw = _ABSENT
    status: msgspec.Raw = _ABSENT

    @property
    def has_others(self) -> bool:
        """Return whether it contains more than labels and annotations."""
        others = (self.spec, self.status, self.metadata.finalizers, self.metadata.owners)
        return any(bytes(each) for each in others)


class ManagedFields(msgspec.Struct, frozen=True, rename={"fields": "fieldsV1"}):
    """A field manager of an object, and its fields."""

    manager: str = ""
    operation: str = ""  # "Apply": server-side apply; "Update": any other write
    fields: OwnedFields = OwnedFields()


class OwnerReference(msgspec.Struct, frozen=True):
    """``metav1.OwnerReference``."""

    kind: str
    name: str
    uid: str


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel"):
    """``metav1.ObjectMeta``."""

    name: str
    uid: str = ""
    namespace: str = ""
    resource_version: str = ""
    generation: int = 0  # increases with changes other than of metadata and status
    creation_timestamp: str | None = None  # RFC 3339, whole seconds, by the API server's clock
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()


class ManagedMetadata(ObjectMeta, frozen=True, rename="camel"):
    """``metav1.ObjectMeta`` with the field managers. Only the agent and ``gputopo cleanup`` read them."""

    managed_fields: tuple[ManagedFields, ...] = ()


class PartialObject(msgspec.Struct, frozen=True):
    """Any object, metadata only (PartialObjectMetadata)."""

    metadata: ObjectMeta


class Managed(msgspec.Struct, frozen=True):
    """Any object, metadata only, with its field managers."""

    metadata: ManagedMetadata


class NodeGpusObject(nodegpus.NodeGpus, frozen=True, kw_only=True, rename="camel"):
    """The custom resource with its metadata."""

    metadata: ObjectMeta


class PlacementReservation(msgspec.Struct, frozen=True):
    """The custom resource with its metadata."""

    metadata: ObjectMeta
    spec: ReservationSpec
    status: ReservationStatus = ReservationStatus()


class PlacementLedger(msgspec.Struct, frozen=True):
    """The custom resource with its metadata."""

    metadata: ObjectMeta
    spec: LedgerSpec = LedgerSpec()
    status: LedgerStatus = LedgerStatus()


class NodeFeatureSpec(msgspec.Struct, frozen=True):
    """NFD's ``NodeFeatureSpec``, labels only."""

    labels: dict[str, str] = {}


class NodeFeature(msgspec.Struct, frozen=True):
    """NFD's ``NodeFeature``: the labels that a source wants for a node."""

    metadata: ObjectMeta
    spec: NodeFeatureSpec = NodeFeatureSpec()


class ResourceLimits(msgspec.Struct, frozen=True):
    """The resources of a container. For extended resources, such as GPUs, limits and requests are equal."""

    limits: dict[str, str | int] = {}


class PartialContainer(msgspec.Struct, frozen=True, rename="camel"):
    """A container of a pod."""

    name: str = ""
    resources: ResourceLimits = ResourceLimits()
    restart_policy: str | None = None  # of an init container; "Always": it runs beside the containers


class SchedulingGate(msgspec.Struct, frozen=True):
    """A scheduling gate of a pod."""

    name: str


class SchedulingGroup(msgspec.Struct, frozen=True, rename="camel"):
    """Kubernetes' own gang scheduling (1.36)."""

    pod_group_name: str = ""


class PartialPodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The spec of a pod."""

    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[PartialContainer, ...] = ()
    init_containers: tuple[PartialContainer, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None


class PartialPod(msgspec.Struct, frozen=True):
    """A pod."""

    metadata: ObjectMeta
    spec: PartialPodSpec = PartialPodSpec()


class PartialNodeSpec(msgspec.Struct, frozen=True):
    """The spec of a node. A value of another type than expected does not hide the node."""

    unschedulable: object = False
    taints: object = None

    @property
    def unusable(self) -> tuple[str, ...]:
        """Return why the node takes no new pods; empty: it takes pods."""
        entries = self.taints if isinstance(self.taints, list) else []
        taints = [
            Taint(str(each.get("key", "")), effect=str(each.get("effect", "")))
            for each in entries
            if isinstance(each, dict)
        ]
        return unusable_reasons(taints, unschedulable=self.unschedulable is True)


class PartialNodeStatus(msgspec.Struct, frozen=True):
    """The status of a node."""

    capacity: dict[str, object] | None = None
    allocatable: dict[str, object] | None = None


class PartialNode(msgspec.Struct, frozen=True):
    """A node with its taints, and with the devices that its kubelet advertises."""

    metadata: ObjectMeta
    spec: PartialNodeSpec = PartialNodeSpec()
    status: PartialNodeStatus = PartialNodeStatus()


class Unreadable(NamedTuple):
    """An object that cannot be decoded. It is left out, or keeps its last value."""

    plural: str  # of its kind: "pods"
    name: str  # NAMESPACE/NAME, or NAME without a namespace
    why: str

    def __str__(self) -> str:
        """Return the message for the user."""
        return f"{self.plural} {self.name} cannot be read: {self.why}"


class ListMetadata(msgspec.Struct, frozen=True, rename={"next": "continue", "resource_version": "resourceVersion"}):
    """``metav1.ListMeta``."""

    next: str = ""  # token of the next page; "" on the last page
    resource_version: str = ""


class ListPage(msgspec.Struct, Generic[T], frozen=True, rename={"listed": "items"}):
    """A page of a list."""

    metadata: ListMetadata
    listed: tuple[T, ...] | None = None  # null for an empty list with metadata only

    @property
    def items(self) -> tuple[T, ...]:
        """The objects."""
        return self.listed or ()
