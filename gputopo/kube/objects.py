"""The few fields of Kubernetes objects that gputopo reads. Everything else in a body is skipped without being decoded.

Written by hand and not taken from the official package: its models cost 78 MiB and a second of start-up.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import msgspec

from gputopo.crd import nodegpus
from gputopo.crd.reservations import LedgerSpec, LedgerStatus, ReservationSpec, ReservationStatus

T = TypeVar("T")


class OwnedMetadata(msgspec.Struct, frozen=True, rename={"labels": "f:labels", "annotations": "f:annotations"}):
    """Which labels and annotations a field manager owns: ``f:<key>`` -> {}, and "." for the map itself."""

    labels: dict[str, msgspec.Raw] = {}
    annotations: dict[str, msgspec.Raw] = {}


class OwnedFields(msgspec.Struct, frozen=True, rename={"metadata": "f:metadata"}):
    """``fieldsV1``, of which only the metadata matters here."""

    metadata: OwnedMetadata = OwnedMetadata()


class ManagedFields(msgspec.Struct, frozen=True, rename={"fields": "fieldsV1"}):
    """One field manager of an object, and what it owns."""

    manager: str = ""
    operation: str = ""  # "Apply": server-side apply; "Update": any other write
    fields: OwnedFields = OwnedFields()


class OwnerReference(msgspec.Struct, frozen=True):
    """An object that another one goes away with."""

    kind: str
    name: str
    uid: str


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel"):
    """``metav1.ObjectMeta``."""

    name: str
    uid: str = ""
    namespace: str = ""
    resource_version: str = ""
    generation: int = 0  # of what is written but the metadata and the status
    creation_timestamp: str | None = None  # RFC 3339, whole seconds, by the API server's clock
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()


class ManagedMetadata(ObjectMeta, frozen=True, rename="camel"):
    """``metav1.ObjectMeta`` with the field managers. Only the agent and what cleans up after it look at them."""

    managed_fields: tuple[ManagedFields, ...] = ()


class PartialObject(msgspec.Struct, frozen=True):
    """Any object, of which only the metadata was asked for."""

    metadata: ObjectMeta


class Managed(msgspec.Struct, frozen=True):
    """Any object, of which only the metadata was asked for, with its field managers."""

    metadata: ManagedMetadata


class NodeGpusObject(nodegpus.NodeGpus, frozen=True, kw_only=True, rename="camel"):
    """The custom resource with its metadata."""

    metadata: ObjectMeta


class PlacementReservation(msgspec.Struct, frozen=True):
    """A gang's places."""

    metadata: ObjectMeta
    spec: ReservationSpec
    status: ReservationStatus = ReservationStatus()


class PlacementLedger(msgspec.Struct, frozen=True):
    """Which reservations count."""

    metadata: ObjectMeta
    spec: LedgerSpec = LedgerSpec()
    status: LedgerStatus = LedgerStatus()


class NodeFeatureSpec(msgspec.Struct, frozen=True):
    """NFD's ``NodeFeatureSpec``, of which only the labels matter here."""

    labels: dict[str, str] = {}


class NodeFeature(msgspec.Struct, frozen=True):
    """NFD's ``NodeFeature``: what one source wants a node to be labelled with."""

    metadata: ObjectMeta
    spec: NodeFeatureSpec = NodeFeatureSpec()


class ResourceLimits(msgspec.Struct, frozen=True):
    """What a container is given. For extended resources, as GPUs are, limits and requests are equal."""

    limits: dict[str, str | int] = {}


class PartialContainer(msgspec.Struct, frozen=True):
    """A container of a pod."""

    name: str = ""
    resources: ResourceLimits = ResourceLimits()


class SchedulingGate(msgspec.Struct, frozen=True):
    """What keeps a pod from its scheduler until it is taken away."""

    name: str


class SchedulingGroup(msgspec.Struct, frozen=True, rename="camel"):
    """Pods that Kubernetes itself schedules together (1.36)."""

    pod_group_name: str = ""


class PartialPodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What a pod asks for."""

    node_name: str = ""
    containers: tuple[PartialContainer, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None


class PartialPod(msgspec.Struct, frozen=True):
    """A pod."""

    metadata: ObjectMeta
    spec: PartialPodSpec = PartialPodSpec()


class Unreadable(NamedTuple):
    """An object that cannot be read. It is left out, or stays as it was when it was last read."""

    plural: str  # of its kind: "pods"
    name: str  # NAMESPACE/NAME, or NAME of what is in no namespace
    why: str

    def __str__(self) -> str:
        """Return a sentence for people."""
        return f"{self.plural} {self.name} cannot be read: {self.why}"


class ListMetadata(msgspec.Struct, frozen=True, rename={"next": "continue", "resource_version": "resourceVersion"}):
    """``metav1.ListMeta``."""

    next: str = ""  # the token of the next page; "" on the last one
    resource_version: str = ""


class ListPage(msgspec.Struct, Generic[T], frozen=True, rename={"listed": "items"}):
    """One page of a list."""

    metadata: ListMetadata
    listed: tuple[T, ...] | None = None  # null for an empty list of which only the metadata was asked for

    @property
    def items(self) -> tuple[T, ...]:
        """The objects."""
        return self.listed or ()
