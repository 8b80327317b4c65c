"""Two gangs of three whole nodes each, on four nodes: if both start partly, neither ever runs."""

from __future__ import annotations

import pytest

from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import Asked, gang, gated, node_of, of, unschedulable, wait_until_whole
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
ASKED = Asked(size=3, gpus=8, scheduler="default-scheduler")
GANGS = ("red", "blue")


def in_turns(**spec: object) -> list[Object]:
    """Return the members of both gangs alternately, as from two controllers."""
    red, blue = (gang(name, ASKED, **spec) for name in GANGS)
    return [each for pair in zip(red, blue, strict=True) for each in pair]


def bound(cluster: Cluster) -> dict[str, int]:
    """Return the number of bound members of each gang."""
    return {name: sum(node_of(each) is not None for each in of(cluster, name)) for name in GANGS}


@pytest.mark.usefixtures("gpu_nodes")
def test_under_the_stock_scheduler_alone_two_gangs_lock_each_other_out(
    cluster: Cluster, scheduler: StartScheduler
) -> None:
    scheduler()
    for each in in_turns(schedulingGates=[]):
        cluster.create_pod(each)

    wait_for(lambda: sum(map(unschedulable, cluster.api.items(cluster.pods()))) == 2, "the last two to be refused")
    assert bound(cluster) == {"red": 2, "blue": 2}


def test_with_the_planner_one_gang_runs_after_the_other(
    cluster: Cluster, gpu_nodes: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner
) -> None:
    agents_of()
    scheduler()
    planner()
    for each in in_turns():
        cluster.create_pod(each)

    first = wait_for(lambda: next((name for name, count in bound(cluster).items() if count == 3), None), "one", 60)
    (second,) = set(GANGS) - {first}
    assert [gated(each) for each in of(cluster, second)] == [True, True, True]
    for each in of(cluster, first):
        gpu_nodes.finish(started(cluster, each["metadata"]["name"]))
    wait_until_whole(cluster, second, 3)
