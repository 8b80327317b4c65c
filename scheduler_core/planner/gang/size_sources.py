"""The objects that say how large gangs are, one source per kind. One that the API server does not serve has none."""

from __future__ import annotations

from functools import partial
from typing import Any

from gputopo.kube import rbac
from gputopo.kube.projection import Source
from gputopo.kube.rbac import Resource
from scheduler_core.cache.watch import Sources, by_uid
from scheduler_core.planner.gang.declared_sizes import (
    Job,
    JobSet,
    PodGroup,
    TrainingJob,
    of_job,
    of_jobset,
    of_pod_group,
    of_training_job,
)
from scheduler_core.planner.gang.gang import Declared


class OfJob(Declared):
    """By a Job; ``ends`` holds for its pods."""


class OfJobSet(Declared):
    """By a JobSet."""


class OfGroup(Declared):
    """By a PodGroup of Kubernetes, from 1.37 on."""


class OfAlphaGroup(Declared):
    """By the same where the API server serves only this version."""


class OfOldGroup(Declared):
    """By a PodGroup of Kubernetes 1.36."""


class OfPodGroup(Declared):
    """By a PodGroup of Coscheduling."""


class OfOldPodGroup(Declared):
    """By a PodGroup of Coscheduling before 2022, and of Koordinator."""


class OfVolcanoGroup(Declared):
    """By a PodGroup of Volcano."""


class OfPyTorchJob(Declared):
    """By a PyTorchJob."""


class OfTfJob(Declared):
    """By a TFJob."""


class OfXgboostJob(Declared):
    """By an XGBoostJob."""


class OfPaddleJob(Declared):
    """By a PaddleJob."""


class OfJaxJob(Declared):
    """By a JAXJob."""


class OfMpiJob(Declared):
    """By an MPIJob of the training operator."""


class OfMpiJobV2(Declared):
    """By an MPIJob of the MPI operator."""


def _training(resource: Resource) -> Source[Any]:
    return Source(resource, TrainingJob, by_uid, of_training_job)


def _group(resource: Resource, prefix: str) -> Source[Any]:
    return Source(resource, PodGroup, by_uid, partial(of_pod_group, prefix))


SIZES: Sources = {
    OfJob: Source(rbac.JOBS, Job, by_uid, of_job),
    OfJobSet: Source(rbac.JOBSETS, JobSet, by_uid, of_jobset),
    OfGroup: _group(rbac.GROUPS, "group"),
    OfAlphaGroup: _group(rbac.GROUPS_ALPHA3, "group"),
    OfOldGroup: _group(rbac.GROUPS_ALPHA2, "group"),
    OfPodGroup: _group(rbac.POD_GROUPS, "podgroup"),
    OfOldPodGroup: _group(rbac.OLD_POD_GROUPS, "podgroup"),
    OfVolcanoGroup: _group(rbac.VOLCANO_GROUPS, "volcano"),
    OfPyTorchJob: _training(rbac.PYTORCH_JOBS),
    OfTfJob: _training(rbac.TF_JOBS),
    OfXgboostJob: _training(rbac.XGBOOST_JOBS),
    OfPaddleJob: _training(rbac.PADDLE_JOBS),
    OfJaxJob: _training(rbac.JAX_JOBS),
    OfMpiJob: _training(rbac.MPI_JOBS),
    OfMpiJobV2: _training(rbac.MPI_JOBS_V2),
}
