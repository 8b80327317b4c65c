"""A Pod with every field that gputopo reads. The extender's watch decodes the lean types of ``pod`` instead."""

from __future__ import annotations

from functools import cached_property

import msgspec

from scheduler_core.request.pod import (
    Affinity,
    AffinityTerm,
    Container,
    Metadata,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    PreferredTerms,
    Requirement,
    Volume,
)
from scheduler_core.request.resizes import Statuses


class LabelSelector(msgspec.Struct, frozen=True, rename="camel"):
    """A selector of pods or namespaces. An empty selector selects all."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None


class PodAffinityTerm(msgspec.Struct, frozen=True, rename="camel", dict=True):
    """A ``PodAffinityTerm``. ``matchLabelKeys`` are part of the selector already: the API server adds them."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None  # None: no pod
    namespaces: tuple[str, ...] | None = None
    namespace_selector: LabelSelector | None = None  # None, and no ``namespaces``: the pod's own

    @cached_property
    def key(self) -> bytes:
        """JSON, equal for equal terms: a term itself has no hash."""
        return msgspec.json.encode(self, order="deterministic")


class RequiredPodAffinity(PreferredTerms, frozen=True, rename="camel"):
    """``affinity.podAffinity`` or ``affinity.podAntiAffinity``, all of it."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] | None = None


class FullAffinity(Affinity, frozen=True, rename="camel"):
    """``spec.affinity``, all of it."""

    pod_affinity: RequiredPodAffinity | None = None
    pod_anti_affinity: RequiredPodAffinity | None = None


class Toleration(msgspec.Struct, frozen=True):
    """An item of ``tolerations``."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class ClaimVolume(AffinityTerm, frozen=True, rename="camel"):
    """``persistentVolumeClaim`` of a volume."""

    claim_name: str = ""


class FullVolume(Volume, frozen=True, rename="camel"):
    """An item of ``spec.volumes`` with its claim."""

    name: str = ""
    persistent_volume_claim: ClaimVolume | None = None


class FullContainer(Container, frozen=True, rename="camel"):
    """A container, with the number of items of its lists."""

    ports: tuple[AffinityTerm, ...] | None = None
    volume_mounts: tuple[AffinityTerm, ...] | None = None

    @property
    def items(self) -> int:
        """The number of environment variables, ports and volume mounts."""
        return sum(len(each or ()) for each in (self.env, self.ports, self.volume_mounts))


class PodResources(AffinityTerm, frozen=True):
    """``spec.resources``: of all containers together."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class PodSchedulingGroup(msgspec.Struct, frozen=True, rename="camel"):
    """``spec.schedulingGroup`` (Kubernetes 1.36)."""

    pod_group_name: str | None = None


class FullPodMetadata(Metadata, frozen=True, rename="camel"):
    """``metadata`` with the fields that the planner needs to patch and delete pods."""

    resource_version: str = ""
    creation_timestamp: str | None = None
    finalizers: tuple[str, ...] | None = None


class FullPodSpec(PodSpec, frozen=True, rename="camel"):
    """``spec`` with all fields that kube-scheduler's own filters read, and the grace period."""

    containers: tuple[FullContainer, ...] | None = None
    init_containers: tuple[FullContainer, ...] | None = None
    image_pull_secrets: tuple[AffinityTerm, ...] | None = None
    affinity: FullAffinity | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    volumes: tuple[FullVolume, ...] | None = None
    scheduling_group: PodSchedulingGroup | None = None
    termination_grace_period_seconds: int | None = None
    resources: PodResources | None = None
    overhead: dict[str, str | int | float] | None = None


# The API server writes this reason for a pod with scheduling gates. It stays after the last gate is removed, until a
# scheduler tries the pod.
_GATED = "SchedulingGated"


class FullPodStatus(PodStatus, frozen=True, rename="camel"):
    """``status`` with its conditions and the resources of containers."""

    conditions: tuple[PodCondition, ...] | None = None
    container_statuses: Statuses = None
    init_container_statuses: Statuses = None

    @property
    def scheduler_message(self) -> str | None:
        """Return why kube-scheduler has not placed the pod; None: it has, or has not tried."""
        failed = ("PodScheduled", "False")
        tried = (each for each in self.conditions or () if each.reason != _GATED)
        return next((each.message for each in tried if (each.type, each.status) == failed and each.message), None)

    @property
    def was_gated(self) -> bool:
        """Return whether the last condition is that of a pod with scheduling gates, which may be gone."""
        return any(each.reason == _GATED for each in self.conditions or ())

    @property
    def is_tried(self) -> bool:
        """Return whether a scheduler has tried to place the pod, or has placed it."""
        return any(each.type == "PodScheduled" and each.reason != _GATED for each in self.conditions or ())

    @property
    def unschedulable_message(self) -> str | None:
        """Why kube-scheduler could not bind the pod; None: it could, or has not tried."""
        return next((each.message for each in self.conditions or () if each.reason == "Unschedulable"), None)


class FullPod(Pod, frozen=True, rename="camel"):
    """A Pod."""

    metadata: FullPodMetadata = FullPodMetadata()
    spec: FullPodSpec = FullPodSpec()
    status: FullPodStatus = FullPodStatus()
