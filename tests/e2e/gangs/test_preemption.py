"""Evictions for gangs that do not fit, beside the real API server, kube-scheduler and Eviction API."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from gputopo.timestamps import format_timestamp
from scheduler_core.policy.models import API_VERSION, KIND
from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import held, nodes
from tests.e2e.gangs.members import Asked, create, gang, node_of, of, wait_until_whole
from tests.e2e.gangs.running import GATED
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import gpu_pod, started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
CRITICAL = "critical"
CHEAP = {"restart-time": "1s"}
RULE = {"name": "lower-yields", "minRuntime": "0s", "nearEnd": "2h"}


@pytest.fixture(autouse=True)
def _priority_class(cluster: Cluster) -> None:
    cluster.api.create(CLASSES, {"metadata": {"name": CRITICAL}, "value": 100_000, "preemptionPolicy": "Never"})


def options(folder: Path, mode: str = "evict") -> tuple[str, ...]:
    """Return the options of a planner with this policy."""
    path = folder / "policy.yaml"
    preemption = {"mode": mode, "wait": "1s", "rules": [RULE]}
    path.write_text(yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND, "preemption": preemption}))
    return (*GATED, "--patience", "1s", "--policy", str(path))


def on_node(cluster: Cluster, name: str, node: str, wishes: dict[str, str] | None = None) -> None:
    """Run a pod with all GPUs of a node."""
    made = gpu_pod(name, 8, wishes, nodeSelector={"kubernetes.io/hostname": node})
    made["metadata"]["labels"] = {"app": name}
    cluster.create_pod(made)
    started(cluster, name)


def running_pods(cluster: Cluster) -> set[str]:
    """Return the names of the bound pods that are not terminating."""
    pods = cluster.api.items(cluster.pods())
    return {each["metadata"]["name"] for each in pods if node_of(each) and "deletionTimestamp" not in each["metadata"]}


def preemption_of(cluster: Cluster, name: str) -> Object | None:
    """Return the hold of a gang once all its units have begun."""
    hold = held(cluster, name)
    return hold if hold is not None and hold["status"].get("evicting") else None


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_critical_gang_of_16_takes_two_gangs_and_the_surplus_of_an_elastic_gang(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={}, gpu_2={})
    agents_of()
    planner(*options(tmp_path))
    create(cluster, *gang("scrap-a", Asked(8, 1, CHEAP)))
    create(cluster, *gang("scrap-b", Asked(6, 1, CHEAP)))
    wait_until_whole(cluster, "scrap-a", 8)
    wait_until_whole(cluster, "scrap-b", 6)
    create(cluster, *gang("elastic", Asked(10, 1, {"gang-minimum": "8", "restart-time": "1h"})))
    wait_until_whole(cluster, "elastic", 10)

    create(cluster, *gang("urgent", Asked(16, 1), priorityClassName=CRITICAL))

    wait_until_whole(cluster, "urgent", 16, 120)
    assert (of(cluster, "scrap-a"), of(cluster, "scrap-b")) == ([], [])
    assert len(of(cluster, "elastic")) == 8


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_in_dry_run_mode_nothing_is_evicted(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    nodes(fleet, gpu_0={})
    agents_of()
    on_node(cluster, "a", "gpu-0")
    leader = planner(*options(tmp_path, "dry-run"))

    create(cluster, *gang("urgent", Asked(2, 4), priorityClassName=CRITICAL))

    wait_for(lambda: leader.count("gputopo_planner_preemptions_total", outcome="dry-run") == 1, "a dry run", 60)
    assert running_pods(cluster) == {"a"}


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_budget_that_forbids_makes_it_choose_the_next_cheapest(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    """Without a controller that counts it, a budget allows nothing."""
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    on_node(cluster, "a", "gpu-0")
    on_node(cluster, "b", "gpu-1")
    budget = {"metadata": {"name": "keep"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}
    cluster.api.create(f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets", budget)
    planner(*options(tmp_path))

    create(cluster, *gang("urgent", Asked(2, 4), priorityClassName=CRITICAL))

    wait_until_whole(cluster, "urgent", 2, 180)
    assert running_pods(cluster) == {"a", "urgent-0", "urgent-1"}


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_job_near_its_end_is_spared(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    soon = {"estimated-completion": format_timestamp(time.time() + 3600), "restart-time": "1s"}
    on_node(cluster, "a", "gpu-0", soon)
    on_node(cluster, "b", "gpu-1", {"restart-time": "1h"})
    planner(*options(tmp_path))

    create(cluster, *gang("urgent", Asked(2, 4), priorityClassName=CRITICAL))

    wait_until_whole(cluster, "urgent", 2, 120)
    assert running_pods(cluster) == {"a", "urgent-0", "urgent-1"}


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_victim_that_does_not_end_keeps_the_gang_waiting_and_a_new_leader_goes_on(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    nodes(fleet, gpu_0={})
    agents_of()
    on_node(cluster, "a", "gpu-0")
    cluster.api.patch(cluster.pods("a"), {"metadata": {"finalizers": ["example.com/keep"]}})
    first = planner(*options(tmp_path))
    create(cluster, *gang("urgent", Asked(2, 4), priorityClassName=CRITICAL))

    wait_for(lambda: preemption_of(cluster, "urgent"), "the eviction to begin", 60)
    wait_for(lambda: running_pods(cluster) == set(), "the pod to be evicted", 60)
    first.kill()
    planner(*options(tmp_path), name="second")
    assert [node_of(each) for each in of(cluster, "urgent")] == [None, None]
    cluster.api.patch(cluster.pods("a"), {"metadata": {"finalizers": None}})

    wait_until_whole(cluster, "urgent", 2, 120)
