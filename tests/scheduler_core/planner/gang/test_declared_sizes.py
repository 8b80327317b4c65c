"""Gang sizes declared by the objects that create pods."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

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
from scheduler_core.planner.gang.gang import DeclaredSize, DeclaredSizes
from scheduler_core.planner.gang.member import GangName

META = {"name": "train", "namespace": "team"}


def size(name: str, count: int | None = None, minimum: int | None = None, *, is_elastic: bool = True) -> DeclaredSize:
    return DeclaredSize(GangName("team", name), count, minimum, is_elastic)


@pytest.mark.parametrize(
    ("spec", "declared"),
    [
        pytest.param({"parallelism": 8, "completions": 8}, size("job.train", 8), id="all at once"),
        pytest.param({"parallelism": 9, "completions": 8}, size("job.train", 8), id="parallelism above completions"),
        pytest.param({"completions": 1}, size("job.train", 1), id="one"),
        pytest.param({"parallelism": 4, "completions": 8}, size("job.train", minimum=1), id="one after the other"),
        pytest.param({"parallelism": 4}, size("job.train", minimum=1), id="a work queue"),
    ],
)
def test_a_job_with_parallel_completions_is_a_gang(spec: dict[str, int], declared: DeclaredSize) -> None:
    job = msgspec.convert({"metadata": META, "spec": spec}, BatchJob)

    assert job_sizes("u", job) == DeclaredSizes("u", (declared,))


@pytest.mark.parametrize(
    ("status", "ends"),
    [
        pytest.param({"startTime": "2026-11-18T11:00:00Z"}, 1_795_000_000.0, id="started"),
        pytest.param({}, None, id="not started"),
        pytest.param({"startTime": "soon"}, None, id="malformed time"),
    ],
)
def test_a_deadline_of_a_job_ends_its_pods(status: dict[str, str], ends: float | None) -> None:
    spec = {"completions": 1, "activeDeadlineSeconds": 400}
    job = msgspec.convert({"metadata": META, "spec": spec, "status": status}, BatchJob)

    assert job_sizes("u", job) == DeclaredSizes("u", (size("job.train", 1),), ends)


def test_a_job_without_a_deadline_has_none() -> None:
    job = msgspec.convert({"metadata": META, "status": {"startTime": "2026-11-18T11:00:00Z"}}, BatchJob)

    assert job_sizes("u", job).deadline is None


def replicated(name: str, replicas: int = 1, group: str = "default", /, **more: Any) -> dict[str, Any]:
    spec = {key: more.pop(key) for key in ("parallelism", "completions") if key in more}
    return {"name": name, "groupName": group, "replicas": replicas, "template": {"spec": spec}, **more}


def after(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "status": "Ready"} for name in names]


@pytest.mark.parametrize(
    ("jobs", "policy", "declared"),
    [
        pytest.param(
            [replicated("node", 2, parallelism=4, completions=4)], None, (size("jobset.train", 8),), id="two of four"
        ),
        pytest.param([replicated("node", 3)], None, (size("jobset.train", 3),), id="single pods"),
        pytest.param(
            [replicated("node", 1, parallelism=8, completions=2)],
            None,
            (size("jobset.train", 2),),
            id="fewer are needed",
        ),
        pytest.param([replicated("node", parallelism=5)], None, (size("jobset.train", 5),), id="a work queue"),
        pytest.param(
            [replicated("ps", 2, "servers"), replicated("worker", 4, "workers"), replicated("chief", 1, "workers")],
            None,
            (size("jobset.train.servers", 2), size("jobset.train.workers", 5)),
            id="groups",
        ),
        pytest.param(
            [
                replicated("dataset-initializer"),
                replicated("model-initializer"),
                replicated("node", parallelism=4, dependsOn=after("dataset-initializer", "model-initializer")),
            ],
            None,
            (size("jobset.train", 4),),
            id="TrainJob",
        ),
        pytest.param(
            [replicated("driver"), replicated("worker", 4, dependsOn=after("driver"))],
            None,
            (size("jobset.train", 5, 1, is_elastic=False),),
            id="workers after the driver",
        ),
        pytest.param(
            [replicated("a", 1, "first"), replicated("b", 4, "then", dependsOn=after("a"))],
            None,
            (size("jobset.train.first", 1), size("jobset.train.then", 4)),
            id="a group after another",
        ),
        pytest.param(
            [replicated("a", 2), replicated("b", 4)],
            {"startupPolicyOrder": "InOrder"},
            (size("jobset.train", 6, 2, is_elastic=False),),
            id="in order",
        ),
        pytest.param(
            [replicated("a", 2), replicated("b", 4)],
            {"startupPolicyOrder": "AnyOrder"},
            (size("jobset.train", 6),),
            id="in any order",
        ),
        pytest.param(None, None, (), id="none"),
    ],
)
def test_a_jobset_is_a_gang_per_group(
    jobs: list[Any] | None, policy: dict[str, str] | None, declared: tuple[DeclaredSize, ...]
) -> None:
    jobset = msgspec.convert({"metadata": META, "spec": {"replicatedJobs": jobs, "startupPolicy": policy}}, JobSet)

    assert jobset_sizes("u", jobset) == DeclaredSizes("u", declared)


@pytest.mark.parametrize(("groups", "declared"), [(100, 100), (101, 0)])
def test_a_jobset_of_too_many_groups_declares_no_size(groups: int, declared: int) -> None:
    jobs = [{"name": f"j-{at}", "groupName": f"g-{at}"} for at in range(groups)]
    jobset = msgspec.convert({"metadata": META, "spec": {"replicatedJobs": jobs}}, JobSet)

    assert len(jobset_sizes("u", jobset).sizes) == declared


@pytest.mark.parametrize(
    ("spec", "minimum"),
    [
        pytest.param({"minMember": 4}, 4, id="Coscheduling and Volcano"),
        pytest.param({}, None, id="not declared"),
        pytest.param({"schedulingPolicy": {"gang": {"minCount": 6}}}, 6, id="Kubernetes"),
        pytest.param({"schedulingPolicy": {"basic": {}}}, 1, id="Kubernetes, no gang"),
    ],
)
def test_a_pod_group_declares_the_minimum(spec: dict[str, Any], minimum: int | None) -> None:
    group = msgspec.convert({"metadata": META, "spec": spec}, PodGroup)

    assert pod_group_sizes("volcano", "u", group) == DeclaredSizes("u", (size("volcano.train", minimum=minimum),))


def test_a_pod_group_that_is_evicted_only_as_a_whole_is_not_elastic() -> None:
    gang = {"schedulingPolicy": {"gang": {"minCount": 6}}}
    together = msgspec.convert({"metadata": META, "spec": {**gang, "disruptionMode": {"all": {}}}}, PodGroup)
    one_by_one = msgspec.convert({"metadata": META, "spec": {**gang, "disruptionMode": {"single": {}}}}, PodGroup)

    assert [pod_group_sizes("group", "u", each).sizes[0].is_elastic for each in (together, one_by_one)] == [False, True]


WORKERS = {"Master": {"replicas": 1}, "Worker": {"replicas": 4}}


@pytest.mark.parametrize(
    ("spec", "count", "minimum"),
    [
        pytest.param({"pytorchReplicaSpecs": WORKERS}, 5, None, id="PyTorchJob"),
        pytest.param({"pytorchReplicaSpecs": {"Worker": {"template": {}}}}, 1, None, id="replicas not declared"),
        pytest.param(
            {"tfReplicaSpecs": {"Chief": {}, "PS": {"replicas": 2}, "Worker": {"replicas": 4}}}, 7, None, id="TFJob"
        ),
        pytest.param({"xgbReplicaSpecs": WORKERS}, 5, None, id="XGBoostJob"),
        pytest.param({"paddleReplicaSpecs": WORKERS}, 5, None, id="PaddleJob"),
        pytest.param({"jaxReplicaSpecs": {"Worker": {"replicas": 4}}}, 4, None, id="JAXJob"),
        pytest.param({"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 4}}}, 5, None, id="MPIJob"),
        pytest.param(
            {
                "mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 4}},
                "launcherCreationPolicy": "WaitForWorkersReady",
            },
            5,
            4,
            id="MPIJob whose launcher comes later",
        ),
        pytest.param({"pytorchReplicaSpecs": WORKERS, "elasticPolicy": {"minReplicas": 2}}, 5, 3, id="elastic"),
        pytest.param(
            {"pytorchReplicaSpecs": WORKERS, "elasticPolicy": {}}, 5, None, id="elastic, minimum not declared"
        ),
        pytest.param(
            {"pytorchReplicaSpecs": WORKERS, "runPolicy": {"schedulingPolicy": {"minAvailable": 4}}}, 5, 4, id="policy"
        ),
        pytest.param(
            {"pytorchReplicaSpecs": WORKERS, "runPolicy": {"schedulingPolicy": {"queue": "q"}}},
            5,
            None,
            id="policy without a minimum",
        ),
        pytest.param({"pytorchReplicaSpecs": WORKERS, "runPolicy": {}}, 5, None, id="no scheduling policy"),
        pytest.param(
            {"pytorchReplicaSpecs": WORKERS, "runPolicy": {"schedulingPolicy": {"minAvailable": 9}}},
            5,
            None,
            id="minimum above the size",
        ),
        pytest.param(
            {"mpiReplicaSpecs": {"Launcher": {}}, "launcherCreationPolicy": "WaitForWorkersReady"},
            1,
            None,
            id="launcher alone",
        ),
        pytest.param({}, None, None, id="none"),
    ],
)
def test_a_kubeflow_job_is_a_gang_of_its_replicas(spec: dict[str, Any], count: int | None, minimum: int | None) -> None:
    job = msgspec.convert({"metadata": META, "spec": spec}, TrainingJob)
    # A launcher that starts later is needed as well as the workers.
    declared = size("kubeflow.train", count, minimum, is_elastic=minimum is None or "mpiReplicaSpecs" not in spec)

    assert training_job_sizes("u", job) == DeclaredSizes("u", (declared,))
