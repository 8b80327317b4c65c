"""Controllers that recreate a deleted pod, gated, without counting a failure: a rollback may delete such pods. Pure.

A Job counts a deleted pod as a failure while the pod carries the Job's finalizer, and the Job fails after
``backoffLimit`` failures. The Job controller itself removes the finalizer when it scales down or is suspended
(``deleteJobPods`` in kubernetes/pkg/controller/job). The other listed controllers recreate pods without counting.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.planner.gang.member import Member

JOB_TRACKING = "batch.kubernetes.io/job-tracking"


class ControllerKind(NamedTuple):
    """A kind of controller that recreates deleted pods."""

    finalizer: str | None = None  # to be removed before the deletion


# "group/Kind" of a pod's controller, as ``Member.owner_kind`` has it.
CONTROLLER_KINDS: dict[str, ControllerKind] = {
    "batch/Job": ControllerKind(JOB_TRACKING),  # of JobSets, CronJobs and indexed Jobs too
    "apps/ReplicaSet": ControllerKind(),
    "apps/StatefulSet": ControllerKind(),
    "core/ReplicationController": ControllerKind(),
    "apps.kruise.io/CloneSet": ControllerKind(),
    "leaderworkerset.x-k8s.io/LeaderWorkerSet": ControllerKind(),  # its own pods are StatefulSets'
    # Kubeflow's trainer recreates a deleted pod whatever its restartPolicy says: only finished pods count.
    "kubeflow.org/PyTorchJob": ControllerKind(),
    "kubeflow.org/TFJob": ControllerKind(),
    "kubeflow.org/XGBoostJob": ControllerKind(),
    "kubeflow.org/PaddleJob": ControllerKind(),
    "kubeflow.org/JAXJob": ControllerKind(),
    "kubeflow.org/MPIJob": ControllerKind(),
    "ray.io/RayCluster": ControllerKind(),
}


def is_recreated(member: Member) -> bool:
    """Return whether the pod's controller recreates it after a deletion, without counting a failure."""
    return member.owner_kind in CONTROLLER_KINDS


def is_finalizer_stripped(member: Member) -> bool:
    """Return whether the pod's finalizer is removed already: its controller no longer counts how the pod ends."""
    owner = CONTROLLER_KINDS.get(member.owner_kind or "")
    return owner is not None and owner.finalizer is not None and owner.finalizer not in member.finalizers


def finalizer_to_strip(member: Member) -> str | None:
    """Return the finalizer to remove before the pod is deleted; None: there is nothing to remove."""
    owner = CONTROLLER_KINDS.get(member.owner_kind or "")
    return owner.finalizer if owner is not None and owner.finalizer in member.finalizers else None
