"""Annotations and status of JobSets and TrainJobs, the owners of pods, count when pods are evicted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gputopo.kube.rbac import JOBSETS, TRAIN_JOBS
from gputopo.labels.workloads import JOBSET
from gputopo.timestamps import format_timestamp
from tests.e2e.agent.access import define, definition_of
from tests.e2e.cluster import Cluster
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import nodes
from tests.e2e.gangs.members import Asked, create, gang, wait_until_whole
from tests.e2e.gangs.preempting import CRITICAL, create_classes, options, running_pods
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import gpu_pod, started
from tests.simulated_node.fleet import Fleet

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("served", "gputopo_scheduler")]
CHEAP = {"restart-time": "1s"}
NODES = ("gpu-0", "gpu-1", "gpu-2")


@pytest.fixture(autouse=True)
def _priority_classes(cluster: Cluster) -> None:
    create_classes(cluster)


def run_pods(cluster: Cluster, annotations: dict[str, str]) -> set[str]:
    """Run a pod of the JobSet ``train`` with all GPUs of each node; return their names."""
    for number, node in enumerate(NODES):
        spec = {"nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 1}
        made = gpu_pod(f"train-{number}", 8, annotations, **spec)
        made["metadata"]["labels"] = {JOBSET: "train"}
        cluster.create_pod(made)
    for number in range(len(NODES)):
        started(cluster, f"train-{number}")
    return {f"train-{number}" for number in range(len(NODES))}


def test_workers_of_a_jobset_that_start_after_the_driver_are_not_evicted_alone(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    define(cluster, definition_of(JOBSETS, "JobSet"))
    after = [{"name": "driver", "status": "Ready"}]
    driver = {"name": "driver", "replicas": 1, "template": {"spec": {"parallelism": 1, "completions": 1}}}
    workers = {"name": "worker", "template": {"spec": {"parallelism": 2, "completions": 2}}, "dependsOn": after}
    made = {
        "apiVersion": JOBSETS.api_version,
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": [driver, workers]},
    }
    cluster.api.create(JOBSETS.path(namespace=cluster.namespace), made)
    nodes(fleet, gpu_0={}, gpu_1={}, gpu_2={})
    agents_of()
    run_pods(cluster, CHEAP)
    planner(*options(tmp_path))

    create(cluster, *gang("urgent", Asked(2, 4), priorityClassName=CRITICAL))

    wait_until_whole(cluster, "urgent", 2, 120)
    assert running_pods(cluster) == {"urgent-0", "urgent-1"}


def test_the_status_of_a_trainjob_spares_pods_whose_gang_has_another_name(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    define(cluster, definition_of(TRAIN_JOBS, "TrainJob"))
    status = {"estimatedRemainingSeconds": 3_600, "lastUpdatedTime": format_timestamp(time.time())}
    made = {
        "apiVersion": TRAIN_JOBS.api_version,
        "kind": "TrainJob",
        "metadata": {"name": "train"},
        "status": {"trainerStatus": status},
    }
    cluster.api.create(TRAIN_JOBS.path(namespace=cluster.namespace), made)
    nodes(fleet, gpu_0={}, gpu_1={}, gpu_2={}, gpu_3={})
    agents_of()
    pods = run_pods(cluster, {**CHEAP, "gang": "llm", "gang-size": "3"})
    other = gpu_pod("other", 8, {"restart-time": "1h"}, terminationGracePeriodSeconds=1)
    cluster.create_pod(other)
    started(cluster, "other")
    planner(*options(tmp_path))

    create(cluster, *gang("urgent", Asked(2, 4), priorityClassName=CRITICAL))

    wait_until_whole(cluster, "urgent", 2, 120)
    assert running_pods(cluster) == {*pods, "urgent-0", "urgent-1"}
