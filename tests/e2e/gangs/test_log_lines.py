"""The logs of a real extender and planner tell what was decided, and when: one line for each step."""

from __future__ import annotations

import json

import pytest

from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import nodes
from tests.e2e.gangs.members import Asked, create, gang, node_of, wait_until_whole
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, Served, gpu_pod, placed, refused
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e


def lines(program: Served, event: str) -> list[Object]:
    """Return the log lines of one event, in order."""
    found = [json.loads(each) for each in program.server.log.read_text().splitlines() if each.startswith("{")]
    return [each for each in found if each["event"] == event]


def test_the_log_of_an_extender_has_one_line_for_each_decision(
    gputopo_scheduler: Extender, cluster: Cluster, fleet: Fleet, agents_of: StartAgents
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    cluster.create_pod(gpu_pod("fits", 4, {"island": "required"}))
    node = placed(cluster, "fits")["spec"]["nodeName"]
    cluster.create_pod(gpu_pod("waits", 4, {"min-bandwidth": "5000"}))
    refused(cluster, "waits")

    (fits,) = [each for each in lines(gputopo_scheduler, "decision") if each["pod"] == f"{cluster.namespace}/fits"]
    waits, *_ = [each for each in lines(gputopo_scheduler, "decision") if each["pod"] == f"{cluster.namespace}/waits"]

    assert (fits["level"], fits["nodes"], fits["refused"], fits["node"]) == ("info", 2, {}, node)
    assert fits["passed"] >= 1  # the nodes that are offered to kube-scheduler
    assert fits["asks"] == {"nvidia.com/gpu": 4, "island": "required"}
    assert fits["score"] > 0 < fits["ms"]
    assert (waits["passed"], waits["node"], waits["score"]) == (0, None, None)
    assert waits["refused"] == {"bandwidth": 2}


def test_the_log_of_a_planner_has_one_line_for_each_step_of_a_reservation(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    scheduler()
    running = planner()
    create(cluster, *gang("llm", Asked(2, 8, scheduler="default-scheduler")))
    pods = wait_until_whole(cluster, "llm", 2)

    def steps() -> list[Object]:
        found = lines(running, "reservation")
        return found if found and found[-1]["state"] == "bound" else []

    proposed, *_, bound = wait_for(steps, "the line of the bound gang")

    assert [each["state"] for each in lines(running, "reservation")] == ["proposed", "committed", "bound"]
    assert proposed["gang"] == bound["gang"] == f"{cluster.namespace}/llm"
    assert set(bound["on"]) == {node_of(each) for each in pods}
    assert bound["since_planned_s"] >= proposed["since_planned_s"] >= 0
    (waited,) = wait_for(lambda: lines(running, "gang"), "the line of the gang that started")
    assert (waited["gang"], waited["outcome"], waited["waited_s"] > 0) == (f"{cluster.namespace}/llm", "bound", True)
