"""Evictions for gangs that do not fit, beside the real API server, kube-scheduler and Eviction API."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gputopo.timestamps import format_timestamp
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import nodes
from tests.e2e.gangs.invariant import violations, watched
from tests.e2e.gangs.members import Asked, create, gang, node_of, of, wait_until_whole
from tests.e2e.gangs.preempting import (
    CHEAP,
    COSTLY,
    CRITICAL,
    MIXED,
    TOP,
    built_in_rules,
    create_classes,
    create_shipped_classes,
    on_node,
    options,
    preemption_of,
    running_pods,
)
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import gpu_pod, refused, started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _priority_classes(cluster: Cluster) -> None:
    create_classes(cluster)


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_critical_gang_of_16_takes_two_gangs_and_the_surplus_of_an_elastic_gang(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    """By the built-in rules, with the shipped PriorityClasses."""
    create_shipped_classes(cluster)
    nodes(fleet, gpu_0={}, gpu_1={}, gpu_2={})
    agents_of()
    planner(*built_in_rules(tmp_path))
    scavenger: dict[str, Any] = {"priorityClassName": "gputopo-scavenger"}
    create(cluster, *gang("scrap-a", Asked(8, 1), **scavenger))
    create(cluster, *gang("scrap-b", Asked(6, 1), **scavenger))
    wait_until_whole(cluster, "scrap-a", 8)
    wait_until_whole(cluster, "scrap-b", 6)
    wishes = {"gang-minimum": "8", "restart-time": "1h", "workload": "inference"}
    create(cluster, *gang("elastic", Asked(10, 1, wishes), priorityClassName="gputopo-normal"))
    wait_until_whole(cluster, "elastic", 10)

    create(cluster, *gang("urgent", Asked(16, 1), priorityClassName="gputopo-critical"))

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
def test_pods_of_a_budget_do_not_hide_another_pod_of_their_namespace(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    """Five cheap pods have a budget that allows none: the sixth is evicted as soon as the first was counted."""
    cheap = [f"cheap-{at}" for at in range(5)]
    nodes(fleet, **{f"gpu_{at}": {} for at in range(6)})
    agents_of()
    for at, name in enumerate(cheap):
        on_node(cluster, name, f"gpu-{at}", CHEAP)
    on_node(cluster, "other", "gpu-5", COSTLY)
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": cheap}]}
    budget = {"metadata": {"name": "keep"}, "spec": {"minAvailable": 5, "selector": selector}}
    cluster.api.create(f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets", budget)
    planner(*options(tmp_path))

    create(cluster, *gang("urgent", Asked(2, 4), priorityClassName=CRITICAL))

    wait_until_whole(cluster, "urgent", 2, 100)
    assert running_pods(cluster) == {*cheap, "urgent-0", "urgent-1"}


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_training_two_hours_from_its_end_is_spared_although_it_is_the_cheapest(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    """By the built-in rules."""
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    now = time.time()
    training = {"workload": "training", "last-checkpoint": format_timestamp(now)}
    on_node(cluster, "a", "gpu-0", {**training, "estimated-completion": format_timestamp(now + 7_100), **CHEAP})
    on_node(cluster, "b", "gpu-1", {**training, "estimated-completion": format_timestamp(now + 9_000), **COSTLY})
    planner(*built_in_rules(tmp_path))

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
    fleet.keep_running(cluster.pod("a"))
    first = planner(*options(tmp_path))
    create(cluster, *gang("urgent", Asked(2, 4), priorityClassName=CRITICAL))

    wait_for(lambda: preemption_of(cluster, "urgent"), "the eviction to begin", 60)
    wait_for(lambda: running_pods(cluster) == set(), "the pod to be evicted", 60)
    first.kill()
    planner(*options(tmp_path), name="second")
    assert [node_of(each) for each in of(cluster, "urgent")] == [None, None]
    fleet.let_end(cluster.pod("a"))

    wait_until_whole(cluster, "urgent", 2, 120)


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_victim_that_does_not_end_does_not_keep_another_gang_from_preempting(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    on_node(cluster, "a", "gpu-0", CHEAP)
    on_node(cluster, "b", "gpu-1", COSTLY)
    fleet.keep_running(cluster.pod("a"))
    leader = planner(*options(tmp_path, timeout="5s"))
    create(cluster, *gang("urgent", Asked(2, 4), priorityClassName=CRITICAL))
    wait_for(lambda: preemption_of(cluster, "urgent"), "the eviction to begin", 60)

    create(cluster, *gang("second", Asked(2, 4), priorityClassName=CRITICAL))

    assert {node_of(each) for each in wait_until_whole(cluster, "second", 2, 180)} == {"gpu-1"}
    assert leader.count("gputopo_planner_preemptions_total", outcome="stuck") == 1
    assert leader.count("gputopo_planner_preemption_evictions_total") == 2
    assert [node_of(each) for each in of(cluster, "urgent")] == [None, None]
    fleet.let_end(cluster.pod("a"))
    assert {node_of(each) for each in wait_until_whole(cluster, "urgent", 2, 120)} == {"gpu-0"}


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_pod_of_a_higher_priority_that_arrives_meanwhile_causes_no_further_eviction(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    """In a pool with pods that are not gated. Such a pod ignores the hold: it or the gang gets the devices first."""
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    on_node(cluster, "a", "gpu-0", CHEAP)
    on_node(cluster, "b", "gpu-1", COSTLY)
    fleet.keep_running(cluster.pod("a"))
    leader = planner(*options(tmp_path, pool=MIXED))
    create(cluster, *gang("urgent", Asked(2, 4), priorityClassName=CRITICAL))
    wait_for(lambda: "a" not in running_pods(cluster), "the eviction", 120)
    cluster.create_pod(gpu_pod("top", 8, priorityClassName=TOP))
    refused(cluster, "top")

    with watched(cluster) as past:
        fleet.let_end(cluster.pod("a"))
        urgent = {"urgent-0", "urgent-1"}
        wait_for(lambda: running_pods(cluster) in ({"b", "top"}, {"b", *urgent}), "the first to run", 120)
        first = running_pods(cluster) - {"b"}
        for name in first:
            fleet.finish(started(cluster, name))
        wait_for(lambda: running_pods(cluster) - first in ({"b", "top"}, {"b", *urgent}), "the other to run", 180)

        assert violations(past.events(), {"gpu-0": 8, "gpu-1": 8}) == []
    assert leader.count("gputopo_planner_preemption_evictions_total") == 1
    wait_for(lambda: leader.count("gputopo_planner_preemptions_total", outcome="won") == 1, "the outcome", 30)
    assert leader.count("gputopo_planner_preemptions_total", outcome="in-vain") == 0
