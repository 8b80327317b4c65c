"""Watch sources of objects that declare gang sizes, one per kind. A kind that the API server lacks is skipped."""

from __future__ import annotations

from functools import partial
from typing import Any

from gputopo.kube import rbac
from gputopo.kube.projection import WatchSource
from gputopo.kube.rbac import Resource
from scheduler_core.cache.watch import Sources, uid_key
from scheduler_core.planner.gang.declared_sizes import (
    BatchJob,
    JobSet,
    PodGroup,
    TrainingJob,
    TrainJob,
    job_sizes,
    jobset_sizes,
    pod_group_sizes,
    train_job_disruption,
    training_job_sizes,
)
from scheduler_core.planner.gang.gang import DeclaredSizes


def _kind(name: str) -> type[DeclaredSizes]:
    """Return a type of its own for one kind of object: ``Batch.kind`` distinguishes the sources by it."""
    return type(name, (DeclaredSizes,), {})


JobSizes = _kind("JobSizes")  # a Job; its ``deadline`` applies to its pods
JobSetSizes = _kind("JobSetSizes")  # a JobSet
GroupSizes = _kind("GroupSizes")  # a PodGroup of Kubernetes, from 1.37 on
AlphaGroupSizes = _kind("AlphaGroupSizes")  # a PodGroup of Kubernetes (v1alpha3), where only that version is served
OldGroupSizes = _kind("OldGroupSizes")  # a PodGroup of Kubernetes 1.36
PodGroupSizes = _kind("PodGroupSizes")  # a PodGroup of Coscheduling
OldPodGroupSizes = _kind("OldPodGroupSizes")  # a PodGroup of Coscheduling before 2022, or of Koordinator
VolcanoGroupSizes = _kind("VolcanoGroupSizes")  # a PodGroup of Volcano
PyTorchJobSizes = _kind("PyTorchJobSizes")  # a PyTorchJob
TfJobSizes = _kind("TfJobSizes")  # a TFJob
XgboostJobSizes = _kind("XgboostJobSizes")  # an XGBoostJob
PaddleJobSizes = _kind("PaddleJobSizes")  # a PaddleJob
JaxJobSizes = _kind("JaxJobSizes")  # a JAXJob
MpiJobSizes = _kind("MpiJobSizes")  # an MPIJob of the training operator
MpiJobV2Sizes = _kind("MpiJobV2Sizes")  # an MPIJob of the MPI operator

TrainJobFacts = _kind("TrainJobFacts")  # a TrainJob of Kubeflow Trainer: no size, but its progress


def _training_job_source(resource: Resource) -> WatchSource[Any]:
    return WatchSource(resource, TrainingJob, uid_key, training_job_sizes)


def _pod_group_source(resource: Resource, prefix: str) -> WatchSource[Any]:
    return WatchSource(resource, PodGroup, uid_key, partial(pod_group_sizes, prefix))


SIZE_SOURCES: Sources = {
    JobSizes: WatchSource(rbac.JOBS, BatchJob, uid_key, job_sizes),
    JobSetSizes: WatchSource(rbac.JOBSETS, JobSet, uid_key, jobset_sizes),
    GroupSizes: _pod_group_source(rbac.GROUPS, "group"),
    AlphaGroupSizes: _pod_group_source(rbac.GROUPS_ALPHA3, "group"),
    OldGroupSizes: _pod_group_source(rbac.GROUPS_ALPHA2, "group"),
    PodGroupSizes: _pod_group_source(rbac.POD_GROUPS, "podgroup"),
    OldPodGroupSizes: _pod_group_source(rbac.OLD_POD_GROUPS, "podgroup"),
    VolcanoGroupSizes: _pod_group_source(rbac.VOLCANO_GROUPS, "volcano"),
    PyTorchJobSizes: _training_job_source(rbac.PYTORCH_JOBS),
    TfJobSizes: _training_job_source(rbac.TF_JOBS),
    XgboostJobSizes: _training_job_source(rbac.XGBOOST_JOBS),
    PaddleJobSizes: _training_job_source(rbac.PADDLE_JOBS),
    JaxJobSizes: _training_job_source(rbac.JAX_JOBS),
    MpiJobSizes: _training_job_source(rbac.MPI_JOBS),
    MpiJobV2Sizes: _training_job_source(rbac.MPI_JOBS_V2),
    TrainJobFacts: WatchSource(rbac.TRAIN_JOBS, TrainJob, uid_key, train_job_disruption),
}
