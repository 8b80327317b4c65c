"""Whose pods may be deleted so that they come again, gated, and nobody's accounts suffer. Pure.

A Job counts a pod that was deleted as a failure while the pod carries the Job's finalizer, and fails by
``backoffLimit`` failures; the Job controller takes the finalizer off itself where it scales down or is suspended
(``deleteJobPods`` in kubernetes/pkg/controller/job). What else is listed makes pods again without counting.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.planner.gang.member import Member

JOB_TRACKING = "batch.kubernetes.io/job-tracking"


class ControllerKind(NamedTuple):
    """A kind of controller that makes a pod again that was deleted."""

    finalizer: str | None = None  # to be taken off before


# "group/Kind" of a pod's controller, as ``Member.owner_kind`` has it.
CONTROLLER_KINDS: dict[str, ControllerKind] = {
    "batch/Job": ControllerKind(JOB_TRACKING),  # of JobSets, CronJobs and indexed Jobs too
    "apps/ReplicaSet": ControllerKind(),
    "apps/StatefulSet": ControllerKind(),
    "core/ReplicationController": ControllerKind(),
    "apps.kruise.io/CloneSet": ControllerKind(),
    "leaderworkerset.x-k8s.io/LeaderWorkerSet": ControllerKind(),  # its own pods are StatefulSets'
    # Kubeflow's trainer makes a deleted pod again whatever its restartPolicy says: only pods that ended count.
    "kubeflow.org/PyTorchJob": ControllerKind(),
    "kubeflow.org/TFJob": ControllerKind(),
    "kubeflow.org/XGBoostJob": ControllerKind(),
    "kubeflow.org/PaddleJob": ControllerKind(),
    "kubeflow.org/JAXJob": ControllerKind(),
    "kubeflow.org/MPIJob": ControllerKind(),
    "ray.io/RayCluster": ControllerKind(),
}


def is_recreated(member: Member) -> bool:
    """Whether its controller makes it again, without harm, once it is deleted."""
    return member.owner_kind in CONTROLLER_KINDS


def is_finalizer_stripped(member: Member) -> bool:
    """Whether its finalizer came off already: its controller would never count what becomes of it."""
    owner = CONTROLLER_KINDS.get(member.owner_kind or "")
    return owner is not None and owner.finalizer is not None and owner.finalizer not in member.finalizers


def finalizer_to_strip(member: Member) -> str | None:
    """The finalizer that must come off before it is deleted; None: nothing has to."""
    owner = CONTROLLER_KINDS.get(member.owner_kind or "")
    return owner.finalizer if owner is not None and owner.finalizer in member.finalizers else None
