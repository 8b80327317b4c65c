"""Watch sources of volume claims, volumes and storage classes, typed as the API server writes them."""

from __future__ import annotations

import msgspec

from gputopo.kube.projection import WatchSource
from gputopo.kube.rbac import CLAIMS, STORAGE_CLASSES, VOLUMES
from scheduler_core.cache.watch import Sources, full_name_key
from scheduler_core.planner.gang.volumes import (
    NO_PROVISIONER,
    SELECTED_NODE,
    ClaimUpdate,
    StorageClassUpdate,
    VolumeUpdate,
)
from scheduler_core.request.pod import RequiredTerm, RequiredTerms, Requirement


class ClaimMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """``metadata`` of a claim."""

    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class ClaimSpec(msgspec.Struct, frozen=True, rename="camel"):
    """``spec`` of a claim."""

    volume_name: str = ""
    storage_class_name: str = ""


class ClaimStatus(msgspec.Struct, frozen=True):
    """``status`` of a claim."""

    phase: str = ""


class VolumeClaim(msgspec.Struct, frozen=True):
    """A PersistentVolumeClaim."""

    metadata: ClaimMetadata = ClaimMetadata()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class VolumeAffinity(msgspec.Struct, frozen=True):
    """``spec.nodeAffinity`` of a volume."""

    required: RequiredTerms | None = None


class VolumeSpec(msgspec.Struct, frozen=True, rename="camel"):
    """``spec`` of a volume."""

    node_affinity: VolumeAffinity | None = None


class PersistentVolume(msgspec.Struct, frozen=True):
    """A PersistentVolume."""

    spec: VolumeSpec = VolumeSpec()


class LabelValues(msgspec.Struct, frozen=True):
    """An item of ``matchLabelExpressions``."""

    key: str = ""
    values: tuple[str, ...] | None = None


class TopologyTerm(msgspec.Struct, frozen=True, rename="camel"):
    """An item of ``allowedTopologies``."""

    match_label_expressions: tuple[LabelValues, ...] | None = None


class StorageClass(msgspec.Struct, frozen=True, rename="camel"):
    """A StorageClass."""

    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] | None = None


def claim_update(key: str, claim: VolumeClaim) -> ClaimUpdate:
    """Return what the planner keeps of a claim."""
    return ClaimUpdate(
        key,
        claim.spec.volume_name or None,
        claim.spec.storage_class_name,
        (claim.metadata.annotations or {}).get(SELECTED_NODE),
        claim.metadata.deletion_timestamp is not None,
        claim.status.phase == "Lost",
    )


def volume_update(key: str, volume: PersistentVolume) -> VolumeUpdate:
    """Return what the planner keeps of a volume."""
    return VolumeUpdate(key, None if volume.spec.node_affinity is None else volume.spec.node_affinity.required)


def storage_class_update(key: str, of: StorageClass) -> StorageClassUpdate:
    """Return what the planner keeps of a storage class. An empty topology term allows all nodes."""
    terms = tuple(
        RequiredTerm(tuple(Requirement(each.key, "In", each.values) for each in term.match_label_expressions or ()))
        for term in of.allowed_topologies or ()
    )
    anywhere = not terms or any(not term.match_expressions for term in terms)
    return StorageClassUpdate(
        key,
        of.volume_binding_mode == "WaitForFirstConsumer",
        of.provisioner != NO_PROVISIONER,
        None if anywhere else RequiredTerms(terms),
    )


VOLUME_SOURCES: Sources = {
    ClaimUpdate: WatchSource(CLAIMS, VolumeClaim, full_name_key, claim_update),
    VolumeUpdate: WatchSource(VOLUMES, PersistentVolume, full_name_key, volume_update),
    StorageClassUpdate: WatchSource(STORAGE_CLASSES, StorageClass, full_name_key, storage_class_update),
}
