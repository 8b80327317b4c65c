"""Preemption and the objects around it: the Jobs of victims, and planners that are killed after any write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.crashing import Run, points, run_on, run_until
from tests.e2e.gangs.holds import held, nodes
from tests.e2e.gangs.invariant import violations, watched
from tests.e2e.gangs.members import (
    Asked,
    create,
    create_job,
    gang,
    gated,
    job,
    job_status,
    node_of,
    of,
    of_job,
    unschedulable,
    wait_until_whole,
)
from tests.e2e.gangs.preempting import CHEAP, CRITICAL, MIXED, create_classes, on_node, options, running_pods
from tests.e2e.gangs.running import GATED, entries, expire_lease, running
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
IGNORED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
SURVIVES: Object = {
    "backoffLimit": 0,  # one pod that counted as failed would end the Job
    "podReplacementPolicy": "Failed",
    "podFailurePolicy": {"rules": [IGNORED]},
}
AT_LEAST = 12  # writes from a planner's start to the end of a preemption with two victims


@pytest.fixture(autouse=True)
def _priority_classes(cluster: Cluster) -> None:
    create_classes(cluster)


def victims_job(*, is_gated: bool) -> Object:
    """Return a Job of two pods that is evicted; not gated: two pods of their own for kube-scheduler."""
    made = job("scrap", Asked(2, 4, CHEAP), **SURVIVES)
    template = made["spec"]["template"]
    if not is_gated:
        del template["spec"]["schedulingGates"]
        template["metadata"]["annotations"] = {"gputopo.io/restart-time": "1s"}
    return made


def live_pods(cluster: Cluster) -> list[Object]:
    """Return the pods of the Job that are not terminating or finished."""
    return [
        each
        for each in of_job(cluster, "scrap")
        if "deletionTimestamp" not in each["metadata"] and each["status"]["phase"] in ("Pending", "Running")
    ]


@pytest.mark.usefixtures("served", "gputopo_scheduler", "controller_manager")
@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "not gated"])
def test_the_job_of_victims_survives_and_its_replacements_queue_behind_the_gang(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path, *, is_gated: bool
) -> None:
    nodes(fleet, gpu_0={})
    agents_of()
    planner(*options(tmp_path, pool=GATED if is_gated else MIXED))
    create_job(cluster, victims_job(is_gated=is_gated))
    wait_for(lambda: [node_of(each) for each in live_pods(cluster)] == ["gpu-0"] * 2, "the Job to run", 120)
    first = {each["metadata"]["uid"] for each in of_job(cluster, "scrap")}

    create(cluster, *gang("urgent", Asked(2, 4), priorityClassName=CRITICAL))

    urgent = wait_until_whole(cluster, "urgent", 2, 180)
    wait_for(lambda: len(live_pods(cluster)) == 2, "the replacements", 60)
    again = live_pods(cluster)
    assert {each["metadata"]["uid"] for each in again}.isdisjoint(first)
    assert [node_of(each) for each in again] == [None, None]
    waits = gated if is_gated else unschedulable
    wait_for(lambda: all(map(waits, live_pods(cluster))), "the replacements to wait", 60)
    for each in urgent:
        fleet.finish(started(cluster, each["metadata"]["name"]))
    wait_for(lambda: [node_of(each) for each in live_pods(cluster)] == ["gpu-0"] * 2, "the Job to run again", 120)
    status = job_status(cluster, "scrap")
    assert (status.get("failed", 0), status.get("conditions", [])) == (0, [])


def preemption_with_killed_planner(cluster: Cluster, options_: tuple[str, ...], number: int) -> Run:
    """Run a gang on two nodes, preempt it, kill the planner after this write, and let the next planner go on."""
    scrap, urgent = f"scrap-{number}", f"urgent-{number}"
    create(cluster, *gang(scrap, Asked(2, 8, CHEAP)))
    with running(cluster, *options_):
        wait_until_whole(cluster, scrap, 2, 120)
        wait_for(lambda: not entries(cluster), "the end of the plan", 60)
    expire_lease(cluster)
    create(cluster, *gang(urgent, Asked(2, 8), priorityClassName=CRITICAL))

    def done() -> bool:
        return sum(node_of(each) is not None for each in of(cluster, urgent)) == 2 and not entries(cluster)

    run = run_until(cluster, options_, number, done, answered=number % 2 == 0)
    run_on(cluster, options_, done, run)
    assert running_pods(cluster) == {"dear", f"{urgent}-0", f"{urgent}-1"}, run.writes
    for each in of(cluster, urgent):
        cluster.api.delete(cluster.pods(each["metadata"]["name"]))
    wait_for(lambda: not of(cluster, urgent), "the gang to go", 60)
    return run


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_planner_killed_after_any_write_of_a_preemption_evicts_a_unit_as_a_whole_and_no_other_pod(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, tmp_path: Path
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={}, gpu_2={})
    agents_of()
    on_node(cluster, "dear", "gpu-2", {"restart-time": "1h"})
    with watched(cluster) as past:
        for number in points("1"):
            run = preemption_with_killed_planner(cluster, options(tmp_path), number)
            if not run.killed:
                break
        assert len(run.writes) >= AT_LEAST, run.writes
        assert violations(past.events(), dict.fromkeys(fleet.names, 8)) == []


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_where_a_member_of_the_gang_is_deleted_before_the_first_eviction_nothing_is_evicted(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    """An incomplete gang starts nowhere. Once it is complete again, pods are evicted for it."""
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    for node in ("gpu-0", "gpu-1"):
        on_node(cluster, f"on-{node}", node)
    leader = planner(*options(tmp_path))
    members = gang("urgent", Asked(2, 8), priorityClassName=CRITICAL)
    create(cluster, *members)

    wait_for(lambda: (hold := held(cluster, "urgent")) and hold["spec"].get("preemption"), "the intent", 60)
    cluster.api.delete(cluster.pods("urgent-1"))
    wait_for(lambda: held(cluster, "urgent") is None, "the end of the hold", 60)
    assert running_pods(cluster) == {"on-gpu-0", "on-gpu-1"}
    assert leader.count("gputopo_planner_preemption_evictions_total") == 0

    create(cluster, members[1])
    wait_until_whole(cluster, "urgent", 2, 180)
