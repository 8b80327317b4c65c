"""The objects that say how large gangs are, one source per kind. One that the API server does not serve has none."""

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
    job_sizes,
    jobset_sizes,
    pod_group_sizes,
    training_job_sizes,
)
from scheduler_core.planner.gang.gang import DeclaredSizes


class JobSizes(DeclaredSizes):
    """By a Job; ``ends`` holds for its pods."""


class JobSetSizes(DeclaredSizes):
    """By a JobSet."""


class GroupSizes(DeclaredSizes):
    """By a PodGroup of Kubernetes, from 1.37 on."""


class AlphaGroupSizes(DeclaredSizes):
    """By the same where the API server serves only this version."""


class OldGroupSizes(DeclaredSizes):
    """By a PodGroup of Kubernetes 1.36."""


class PodGroupSizes(DeclaredSizes):
    """By a PodGroup of Coscheduling."""


class OldPodGroupSizes(DeclaredSizes):
    """By a PodGroup of Coscheduling before 2022, and of Koordinator."""


class VolcanoGroupSizes(DeclaredSizes):
    """By a PodGroup of Volcano."""


class PyTorchJobSizes(DeclaredSizes):
    """By a PyTorchJob."""


class TfJobSizes(DeclaredSizes):
    """By a TFJob."""


class XgboostJobSizes(DeclaredSizes):
    """By an XGBoostJob."""


class PaddleJobSizes(DeclaredSizes):
    """By a PaddleJob."""


class JaxJobSizes(DeclaredSizes):
    """By a JAXJob."""


class MpiJobSizes(DeclaredSizes):
    """By an MPIJob of the training operator."""


class MpiJobV2Sizes(DeclaredSizes):
    """By an MPIJob of the MPI operator."""


def _training(resource: Resource) -> WatchSource[Any]:
    return WatchSource(resource, TrainingJob, uid_key, training_job_sizes)


def _group(resource: Resource, prefix: str) -> WatchSource[Any]:
    return WatchSource(resource, PodGroup, uid_key, partial(pod_group_sizes, prefix))


SIZE_SOURCES: Sources = {
    JobSizes: WatchSource(rbac.JOBS, BatchJob, uid_key, job_sizes),
    JobSetSizes: WatchSource(rbac.JOBSETS, JobSet, uid_key, jobset_sizes),
    GroupSizes: _group(rbac.GROUPS, "group"),
    AlphaGroupSizes: _group(rbac.GROUPS_ALPHA3, "group"),
    OldGroupSizes: _group(rbac.GROUPS_ALPHA2, "group"),
    PodGroupSizes: _group(rbac.POD_GROUPS, "podgroup"),
    OldPodGroupSizes: _group(rbac.OLD_POD_GROUPS, "podgroup"),
    VolcanoGroupSizes: _group(rbac.VOLCANO_GROUPS, "volcano"),
    PyTorchJobSizes: _training(rbac.PYTORCH_JOBS),
    TfJobSizes: _training(rbac.TF_JOBS),
    XgboostJobSizes: _training(rbac.XGBOOST_JOBS),
    PaddleJobSizes: _training(rbac.PADDLE_JOBS),
    JaxJobSizes: _training(rbac.JAX_JOBS),
    MpiJobSizes: _training(rbac.MPI_JOBS),
    MpiJobV2Sizes: _training(rbac.MPI_JOBS_V2),
}
