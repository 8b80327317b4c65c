"""The fields of a Pod that every program needs, typed as the API server and kube-scheduler write them.

Decoding skips all other fields, which keeps the extender's watch cheap. Absent, null and empty keys mean the same, as
in Kubernetes.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import msgspec

from gputopo.labels.keys import POD_GANG, POD_RESERVATION

_MOST = 253  # characters of an object's name
SINGLE_PODS_PREFIX = "pods-"  # of the name of a reservation of single pods
NODE_NAME = "metadata.name"  # the only field that ``matchFields`` of a node's affinity may name


class PodOwner(msgspec.Struct, frozen=True, rename="camel"):
    """An item of ``ownerReferences``."""

    api_version: str = ""
    kind: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """``metadata``."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[PodOwner, ...] | None = None
    deletion_timestamp: str | None = None

    @property
    def owner(self) -> PodOwner | None:
        """Return the controller that owns the pod."""
        for each in self.owner_references or ():
            if each.controller:
                return each
        return None


class ContainerResources(msgspec.Struct, frozen=True, rename="camel"):
    """``resources`` of a container. Limits and requests of extended resources are equal; either may be left out."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class EnvVar(msgspec.Struct, frozen=True, gc=False):
    """An item of ``env``."""

    name: str = ""
    value: str | None = None  # None: empty, or from a source such as a Secret


class Container(msgspec.Struct, frozen=True, rename="camel"):
    """A container or init container."""

    name: str = ""
    resources: ContainerResources = ContainerResources()
    restart_policy: str | None = None  # "Always" on an init container: a sidecar
    image: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None


class AffinityTerm(msgspec.Struct, frozen=True):
    """Any object; only its presence matters."""


class PreferredTerms(msgspec.Struct, frozen=True, rename="camel"):
    """The soft rules of any of the three kinds of affinity."""

    preferred_during_scheduling_ignored_during_execution: tuple[AffinityTerm, ...] | None = None


class Requirement(msgspec.Struct, frozen=True, dict=True):
    """An item of ``matchExpressions`` or ``matchFields``."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None

    @cached_property
    def value_set(self) -> frozenset[str]:
        """The values: a pod may list every node of the cluster, and each node is looked up."""
        return frozenset(self.values or ())


class RequiredTerm(msgspec.Struct, frozen=True, rename="camel"):
    """An item of ``nodeSelectorTerms``."""

    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class RequiredTerms(msgspec.Struct, frozen=True, rename="camel"):
    """A ``NodeSelector``: at least one of its terms must match."""

    node_selector_terms: tuple[RequiredTerm, ...] | None = None


class NodeAffinity(PreferredTerms, frozen=True, rename="camel"):
    """``affinity.nodeAffinity``, all of it."""

    required_during_scheduling_ignored_during_execution: RequiredTerms | None = None


class Affinity(msgspec.Struct, frozen=True, rename="camel"):
    """``spec.affinity``."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PreferredTerms | None = None
    pod_anti_affinity: PreferredTerms | None = None


class SpreadConstraint(msgspec.Struct, frozen=True, rename="camel"):
    """An item of ``spec.topologySpreadConstraints``."""

    when_unsatisfiable: str = "DoNotSchedule"


class Volume(msgspec.Struct, frozen=True, rename="camel"):
    """An item of ``spec.volumes``; only the presence of a claim matters."""

    persistent_volume_claim: AffinityTerm | None = None
    ephemeral: AffinityTerm | None = None  # a claim that Kubernetes creates for the pod


class PodSchedulingGate(msgspec.Struct, frozen=True):
    """An item of ``spec.schedulingGates``."""

    name: str = ""


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """``spec``."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    priority_class_name: str | None = None
    # Set from the priority class by the API server's admission plugin Priority, which rejects any other value.
    priority: int | None = None
    affinity: Affinity | None = None
    topology_spread_constraints: tuple[SpreadConstraint, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    scheduling_gates: tuple[PodSchedulingGate, ...] | None = None
    resources: AffinityTerm | None = None  # of all containers together
    active_deadline_seconds: int | None = None


class PodCondition(msgspec.Struct, frozen=True):
    """An item of ``status.conditions``."""

    type: str
    status: str
    message: str = ""
    reason: str = ""


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``status``."""

    phase: str | None = None
    start_time: str | None = None  # when the kubelet accepted the pod: it was admitted, or is Failed
    nominated_node_name: str | None = None  # the node that kube-scheduler expects to use


class Pod(msgspec.Struct, frozen=True, rename="camel"):
    """A Pod."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_finished(self) -> bool:
        """True if the pod holds no devices any more. A terminating pod holds its devices until it is gone."""
        return self.status.phase in ("Succeeded", "Failed")


def has_soft_preferences(spec: PodSpec) -> bool:
    """Return True if the pod has soft preferences among nodes; Filter then returns all nodes that fit."""
    if spec.affinity is None and not spec.topology_spread_constraints:  # most pods
        return False
    affinity = spec.affinity or Affinity()
    kinds = (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
    if any(kind is not None and kind.preferred_during_scheduling_ignored_during_execution for kind in kinds):
        return True
    return any(each.when_unsatisfiable == "ScheduleAnyway" for each in spec.topology_spread_constraints or ())


def waits_for_volumes(spec: PodSpec) -> bool:
    """Return True if kube-scheduler may wait for volumes before it binds the pod (WaitForFirstConsumer)."""
    return any(each.persistent_volume_claim or each.ephemeral for each in spec.volumes or ())


def required_nodes(affinity: Affinity | None) -> RequiredTerms | None:
    """Return the node affinity that a pod requires."""
    own = None if affinity is None else affinity.node_affinity
    return None if own is None else own.required_during_scheduling_ignored_during_execution


class PinClaim(NamedTuple):
    """The claim of an unbound pod that a planner ungated it and pinned it to a node.

    The owner of the pod can write such a claim too: ``cache.ungated_pods`` decides which claims count.
    """

    reservation: str
    node: str


def reservation_name(metadata: Metadata) -> str | None:
    """Return the reservation that the pod names; None: it names none, or the text is too long for a name."""
    found = (metadata.annotations or {}).get(POD_RESERVATION.key)
    return None if found is None or len(found) > _MOST else found


def pin_claim(pod: Pod) -> PinClaim | None:
    """Return the pod's claim that a planner ungated it; None where it makes none.

    A pod with any scheduling gate makes none: planners ungate only pods that no other gate holds, and no gate is ever
    added to a pod.
    """
    metadata, spec = pod.metadata, pod.spec
    reservation = reservation_name(metadata)
    if reservation is None:
        return None
    if spec.node_name or metadata.deletion_timestamp or spec.scheduling_gates:
        return None
    node = pinned_node(required_nodes(spec.affinity))
    return None if node is None else PinClaim(reservation, node)


def placed_gang(metadata: Metadata) -> str | None:
    """Return ``namespace/reservation`` of the gang with which a planner placed the pod, as the pod says.

    None: it names no reservation, or one of unrelated single pods.
    """
    reservation = reservation_name(metadata)
    if reservation is None:
        return None
    if reservation.startswith(SINGLE_PODS_PREFIX) and POD_GANG.key not in (metadata.annotations or {}):
        return None
    return f"{metadata.namespace}/{reservation}"


def pinned_node(terms: RequiredTerms | None) -> str | None:
    """Return the node that the terms name; None if they name no node or several."""
    found = () if terms is None else terms.node_selector_terms or ()
    named = {value for term in found for each in term.match_fields or () for value in _named(each)}
    return named.pop() if len(named) == 1 else None


def _named(each: Requirement) -> tuple[str, ...]:
    return (each.values or ()) if (each.key, each.operator) == (NODE_NAME, "In") else ()
