"""Gang sizes declared by the objects that create pods, for gangs whose pods declare none. Pure.

Each kind has only the fields that matter, typed as the API server writes them. Gangs have the names that
``conventions`` derives from the pods of these objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gputopo.labels.workloads import INITIALIZERS
from gputopo.timestamps import parse_timestamp
from scheduler_core.planner.gang.conventions import conventional_name
from scheduler_core.planner.gang.disruption import owner_disruption
from scheduler_core.planner.gang.gang import DeclaredSize, DeclaredSizes
from scheduler_core.request.disruption import MAX_DURATION_S, parse_disruption

_MAX_REPLICATED_JOBS = 100  # of a JobSet: each may be a gang of its own, and no quota limits the number of JobSets


class ObjectName(msgspec.Struct, frozen=True):
    """``metadata``."""

    name: str = ""
    namespace: str = ""
    annotations: dict[str, str] | None = None


class JobSpec(msgspec.Struct, frozen=True, rename="camel"):
    """``batch/v1`` JobSpec."""

    parallelism: int | None = None  # None: 1
    completions: int | None = None  # None: one successful pod completes the Job
    active_deadline_seconds: int | None = None


class JobStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``batch/v1`` JobStatus."""

    start_time: str | None = None


class BatchJob(msgspec.Struct, frozen=True):
    """``batch/v1`` Job."""

    metadata: ObjectName = ObjectName()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class JobTemplate(msgspec.Struct, frozen=True):
    """``template`` in ``spec.replicatedJobs``."""

    spec: JobSpec = JobSpec()


class Dependency(msgspec.Struct, frozen=True):
    """Element of ``dependsOn``."""

    name: str = ""


class ReplicatedJob(msgspec.Struct, frozen=True, rename="camel"):
    """Element of ``spec.replicatedJobs``."""

    name: str = ""
    group_name: str = ""
    replicas: int = 1
    template: JobTemplate = JobTemplate()
    depends_on: tuple[Dependency, ...] | None = None

    @property
    def pods(self) -> int:
        """Pods that run at the same time."""
        spec = self.template.spec
        parallelism = 1 if spec.parallelism is None else spec.parallelism
        return self.replicas * (parallelism if spec.completions is None else min(parallelism, spec.completions))


class StartupPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """``spec.startupPolicy``."""

    startup_policy_order: str = "AnyOrder"


class JobSetSpec(msgspec.Struct, frozen=True, rename="camel"):
    """``jobset.x-k8s.io/v1alpha2`` JobSetSpec."""

    replicated_jobs: tuple[ReplicatedJob, ...] | None = None
    startup_policy: StartupPolicy | None = None


class JobSet(msgspec.Struct, frozen=True):
    """``jobset.x-k8s.io/v1alpha2`` JobSet."""

    metadata: ObjectName = ObjectName()
    spec: JobSetSpec = JobSetSpec()


class GangPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """``spec.schedulingPolicy.gang``."""

    min_count: int = 1


class SchedulingPolicy(msgspec.Struct, frozen=True):
    """``spec.schedulingPolicy``."""

    gang: GangPolicy | None = None  # None: pods of the group are scheduled one by one


class DisruptionMode(msgspec.Struct, frozen=True):
    """``spec.disruptionMode``."""

    all: dict[str, Any] | None = None  # not None: the pods are evicted only together


class PodGroupSpec(msgspec.Struct, frozen=True, rename="camel"):
    """PodGroupSpec of Coscheduling, Volcano and Kubernetes."""

    min_member: int | None = None  # Coscheduling, Volcano
    scheduling_policy: SchedulingPolicy | None = None  # Kubernetes
    disruption_mode: DisruptionMode | None = None  # Kubernetes


class PodGroup(msgspec.Struct, frozen=True):
    """A PodGroup of Coscheduling, Volcano or Kubernetes."""

    metadata: ObjectName = ObjectName()
    spec: PodGroupSpec = PodGroupSpec()


class Replicas(msgspec.Struct, frozen=True):
    """ReplicaSpec."""

    replicas: int | None = None  # None: 1


class ElasticPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """``spec.elasticPolicy``."""

    min_replicas: int | None = None  # of workers


class Scheduling(msgspec.Struct, frozen=True, rename="camel"):
    """``spec.runPolicy.schedulingPolicy``."""

    min_available: int | None = None


class RunPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """``spec.runPolicy``."""

    scheduling_policy: Scheduling | None = None


class TrainingSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Spec of Kubeflow's jobs, which differ in the name of their map of replicas by role."""

    pytorch_replica_specs: dict[str, Replicas] | None = None
    tf_replica_specs: dict[str, Replicas] | None = None
    xgb_replica_specs: dict[str, Replicas] | None = None
    paddle_replica_specs: dict[str, Replicas] | None = None
    jax_replica_specs: dict[str, Replicas] | None = None
    mpi_replica_specs: dict[str, Replicas] | None = None
    elastic_policy: ElasticPolicy | None = None
    run_policy: RunPolicy | None = None
    launcher_creation_policy: str = "AtStartup"  # MPIJob v2beta1

    @property
    def replicas(self) -> Mapping[str, int]:
        """Pods by role, in lower case."""
        maps = (
            self.pytorch_replica_specs,
            self.tf_replica_specs,
            self.xgb_replica_specs,
            self.paddle_replica_specs,
            self.jax_replica_specs,
            self.mpi_replica_specs,
        )
        specs = {role.casefold(): each for one in maps for role, each in (one or {}).items()}
        return {role: 1 if each.replicas is None else each.replicas for role, each in specs.items()}


class TrainingJob(msgspec.Struct, frozen=True):
    """A job of Kubeflow's training operator v1, or of its MPI operator."""

    metadata: ObjectName = ObjectName()
    spec: TrainingSpec = TrainingSpec()


def job_sizes(uid: str, job: BatchJob) -> DeclaredSizes:
    """Return the size of a Job's gang: all completions if they run in parallel; else its pods are independent."""
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    parallel = job.spec.completions is not None and parallelism >= job.spec.completions
    gang = conventional_name("job", job.metadata.namespace, job.metadata.name)
    size = DeclaredSize(gang, job.spec.completions if parallel else None, None if parallel else 1)
    started, deadline = parse_timestamp(job.status.start_time), job.spec.active_deadline_seconds
    ends_at = None if started is None or deadline is None else started + deadline
    return DeclaredSizes(uid, (size,), ends_at, owner_disruption(job.metadata.annotations, (gang,)))


def jobset_sizes(uid: str, jobset: JobSet) -> DeclaredSizes:
    """Return one gang per group of replicated Jobs. Jobs that start after others are not part of the minimum.

    The sizes of a JobSet with more replicated Jobs than are planned are unknown.
    """
    if len(jobset.spec.replicated_jobs or ()) > _MAX_REPLICATED_JOBS:
        return DeclaredSizes(uid, ())
    jobs = [each for each in jobset.spec.replicated_jobs or () if each.name not in INITIALIZERS]
    groups: dict[str, list[ReplicatedJob]] = {}
    for job in jobs:
        groups.setdefault(job.group_name, []).append(job)
    policy = jobset.spec.startup_policy
    in_order = policy is not None and policy.startup_policy_order == "InOrder"
    sizes = []
    for group, members in groups.items():
        first = members[:1] if in_order else [each for each in members if not _starts_later(each)] or members
        size, minimum = sum(each.pods for each in members), sum(each.pods for each in first)
        gang = conventional_name("jobset", jobset.metadata.namespace, jobset.metadata.name, group)
        later = minimum < size  # these pods are needed as well as the first ones
        sizes.append(DeclaredSize(gang, size, minimum if later else None, is_elastic=not later))
    whole = conventional_name("jobset", jobset.metadata.namespace, jobset.metadata.name)
    gangs = dict.fromkeys((whole, *(each.gang for each in sizes)))
    disruption = owner_disruption(jobset.metadata.annotations, tuple(gangs))
    return DeclaredSizes(uid, tuple(sizes), disruption=disruption)


def _starts_later(job: ReplicatedJob) -> bool:
    """Return whether the Job is created only after other Jobs are ready."""
    return any(each.name not in INITIALIZERS for each in job.depends_on or ())


def pod_group_sizes(prefix: str, uid: str, group: PodGroup) -> DeclaredSizes:
    """Return the minimum of a PodGroup; it does not declare its size. ``prefix``: its convention's."""
    gang = conventional_name(prefix, group.metadata.namespace, group.metadata.name)
    native = group.spec.scheduling_policy
    if native is not None:
        mode, minimum = group.spec.disruption_mode, 1 if native.gang is None else native.gang.min_count
        is_elastic = mode is None or mode.all is None
        return DeclaredSizes(uid, (DeclaredSize(gang, minimum=minimum, is_elastic=is_elastic),))
    return DeclaredSizes(uid, (DeclaredSize(gang, minimum=group.spec.min_member),))


def training_job_sizes(uid: str, job: TrainingJob) -> DeclaredSizes:
    """Return all replicas as the size; the minimum by scheduling policy, elastic policy or a late launcher."""
    spec, replicas = job.spec, job.spec.replicas
    size = sum(replicas.values())
    minimum, is_elastic = size, True
    scheduling = None if spec.run_policy is None else spec.run_policy.scheduling_policy
    if scheduling is not None and scheduling.min_available is not None:
        minimum = scheduling.min_available
    elif spec.elastic_policy is not None and spec.elastic_policy.min_replicas is not None:
        minimum = size - replicas.get("worker", 0) + spec.elastic_policy.min_replicas
    elif spec.launcher_creation_policy == "WaitForWorkersReady":
        minimum, is_elastic = size - replicas.get("launcher", 0), False
    gang = conventional_name("kubeflow", job.metadata.namespace, job.metadata.name)
    fewer = 0 < minimum < size
    declared = DeclaredSize(gang, size or None, minimum if fewer else None, is_elastic=is_elastic or not fewer)
    return DeclaredSizes(uid, (declared,), disruption=owner_disruption(job.metadata.annotations, (gang,)))


class TrainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``status.trainerStatus``, as the training program reports it (Kubeflow Trainer 2.2, gate TrainJobStatus)."""

    progress_percentage: int | None = None
    estimated_remaining_seconds: int | None = None
    last_updated_time: str | None = None


class TrainJobStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``status`` of a TrainJob."""

    trainer_status: TrainerStatus | None = None


class TrainJob(msgspec.Struct, frozen=True):
    """``trainer.kubeflow.org/v1alpha1`` TrainJob. Its JobSet, of the same name, declares the size."""

    metadata: ObjectName = ObjectName()
    status: TrainJobStatus = TrainJobStatus()


def train_job_disruption(uid: str, job: TrainJob) -> DeclaredSizes:
    """Return the cost of an eviction that a TrainJob declares; the values that its program reports count first."""
    facts, status = parse_disruption(job.metadata.annotations or {}), job.status.trainer_status or TrainerStatus()
    updated, left = parse_timestamp(status.last_updated_time), status.estimated_remaining_seconds
    if updated is not None and left is not None and 0 <= left <= MAX_DURATION_S:
        facts = facts._replace(completion=updated + left)
    if status.progress_percentage is not None and 0 <= status.progress_percentage <= 100:
        facts = facts._replace(progress=status.progress_percentage / 100)
    gang = conventional_name("jobset", job.metadata.namespace, job.metadata.name)
    return DeclaredSizes(uid, (), disruption=owner_disruption(None, (gang,), facts))
