"""The planner is killed after each of its writes, and another takes over: nothing is lost, no GPU committed twice.

``make e2e`` kills it after every third write; GPUTOPO_E2E_CRASHES=all after each write (docs/testing.md).
"""

from __future__ import annotations

import signal

import pytest

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.conftest import Timed
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.crashing import Run, points, run_on, run_until
from tests.e2e.gangs.history import History
from tests.e2e.gangs.invariant import broken, halves, violations, watched
from tests.e2e.gangs.members import (
    BATCH,
    TRACKING,
    Asked,
    create,
    create_job,
    gang,
    job,
    job_status,
    node_of,
    of,
    of_job,
    wait_until_whole,
)
from tests.e2e.gangs.running import GATED, entries, expire_lease, running
from tests.e2e.gangs.ungated_pods import UngatedPodLoad
from tests.e2e.process import Server
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
SIZE = 3
MIXED = ("--settle", "1s")
AT_LEAST = 8  # writes of one gang from a planner's start to its end: less, and something was not written


def whole(cluster: Cluster, name: str) -> bool:
    """Return whether all members are bound and the ledger no longer lists their reservation."""
    return sum(node_of(each) is not None for each in of(cluster, name)) == SIZE and not entries(cluster)


def remove(cluster: Cluster, name: str) -> None:
    """Delete the members; the next planner deletes their reservation."""
    for each in of(cluster, name):
        cluster.api.delete(cluster.pods(each["metadata"]["name"]))


def check(cluster: Cluster, fleet: Fleet, past: History, sizes: dict[str, int]) -> None:
    """Check the invariants at every instant, and that no gang is partly started now."""
    events = past.events()
    assert violations(events, dict.fromkeys(fleet.names, 8)) == []
    assert broken(events, {name: fleet[name].topology for name in fleet.names}, fleet.given()) == []
    assert halves(cluster.api.items(cluster.pods()), sizes) == {}


def gang_with_killed_planner(cluster: Cluster, number: int, asked: Asked) -> Run:
    """Create a gang, kill its planner after this number of writes, and let the next planner finish it."""
    name = f"gang-{number}"
    create(cluster, *gang(name, asked))
    run = run_until(cluster, MIXED, number, lambda: whole(cluster, name), answered=number % 2 == 0)
    run_on(cluster, MIXED, lambda: whole(cluster, name), run)
    remove(cluster, name)
    return run


def test_a_planner_killed_after_any_write_commits_no_gpu_twice(
    cluster: Cluster,
    gpu_nodes: Fleet,
    agents_of: StartAgents,
    served: None,
    gputopo_scheduler: Extender,
    timed: Timed,
) -> None:
    assert served is None
    assert gputopo_scheduler.ready
    agents_of()
    asked = Asked(SIZE, 4, {"island": "required"})
    with watched(cluster) as past:
        with running(cluster, *MIXED), timed("the first gang, once the extender acknowledges"):
            create(cluster, *gang("first", asked))
            wait_until_whole(cluster, "first", SIZE, 120)
        expire_lease(cluster)
        with UngatedPodLoad(cluster, seed=8) as load:  # not before: for half a minute nothing is promised
            for number in points("1"):
                run = gang_with_killed_planner(cluster, number, asked)
                if not run.killed:
                    break
        assert len(run.writes) >= AT_LEAST, run.writes
        assert load.count > 100
        check(cluster, gpu_nodes, past, {"first": SIZE})


def rollback_with_killed_planner(cluster: Cluster, stock: Server, number: int) -> Run:
    """Create a Job while kube-scheduler is stopped, so that no pod is bound in time; then as above."""
    name, asked = f"job-{number}", Asked(SIZE, 4, {"gang-timeout": "1s", "island": "required"}, "default-scheduler")
    stock.send(signal.SIGSTOP)
    create_job(cluster, job(name, asked))
    wait_for(lambda: len(of_job(cluster, name)) == SIZE, f"the pods of {name}")
    first = {each["metadata"]["uid"] for each in of_job(cluster, name)}

    run = run_until(cluster, GATED, number, lambda: is_recreated(cluster, name, first), answered=True)

    stock.send(signal.SIGCONT)
    run_on(cluster, GATED, lambda: whole(cluster, name), run)
    assert job_status(cluster, name).get("failed", 0) == 0, run.writes
    assert all(TRACKING in each["metadata"]["finalizers"] for each in of_job(cluster, name)), run.writes
    cluster.api.delete(f"{BATCH}/{cluster.namespace}/jobs/{name}")
    wait_for(lambda: not of_job(cluster, name), f"the pods of {name} to go")
    return run


def is_recreated(cluster: Cluster, name: str, first: set[str]) -> bool:
    """Return whether all pods of a Job were recreated and the ledger no longer lists the first pods."""
    pods = {each["metadata"]["uid"] for each in of_job(cluster, name)}
    return len(pods) == SIZE and not pods & first and not entries(cluster)


@pytest.mark.usefixtures("controller_manager", "served")
def test_a_planner_killed_after_any_write_of_a_rollback_fails_no_job(
    cluster: Cluster, gpu_nodes: Fleet, agents_of: StartAgents, scheduler: StartScheduler
) -> None:
    agents_of()
    stock = scheduler()
    with watched(cluster) as past:
        for number in points("2"):
            run = rollback_with_killed_planner(cluster, stock, number)
            if not run.killed:
                break
        assert len(run.writes) >= AT_LEAST + 2 * SIZE, run.writes
        check(cluster, gpu_nodes, past, {})
