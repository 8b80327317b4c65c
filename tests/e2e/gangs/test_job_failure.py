"""A Job whose gang ends as a whole when a member fails: it starts again as a whole, and counts one failure."""

from __future__ import annotations

import pytest

from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import Asked, create_job, job, job_status, node_of, of_job
from tests.e2e.gangs.running import entries
from tests.e2e.scheduler.conftest import StartAgents
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e


@pytest.mark.usefixtures("controller_manager")
def test_a_failed_member_ends_its_gang_and_the_job_starts_it_again(
    cluster: Cluster, gpu_nodes: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner
) -> None:
    agents_of()
    scheduler()
    planner()
    create_job(cluster, job("train", Asked(3, 8, {"on-member-failure": "end-gang"}, "default-scheduler")))
    first = wait_for(lambda: running(cluster, set()), "three running pods", 60)

    wait_for(lambda: entries(cluster) == [] or None, "the ledger to forget the gang")

    gpu_nodes.finish(first[0], exit_code=1)

    seen = {each["metadata"]["uid"] for each in first}
    second = wait_for(lambda: running(cluster, seen), "three other running pods", 90)
    left = {each["metadata"]["uid"] for each in of_job(cluster, "train")}
    assert left - {first[0]["metadata"]["uid"]} == {each["metadata"]["uid"] for each in second}
    assert job_status(cluster, "train")["failed"] == 1
    assert "GangEnded" in {
        each["reason"] for each in cluster.api.items(f"/api/v1/namespaces/{cluster.namespace}/events")
    }


def running(cluster: Cluster, seen: set[str]) -> list[Object] | None:
    """Return the running pods of the Job, if there are three and none was seen before."""
    pods = [each for each in of_job(cluster, "train") if node_of(each) and each["status"].get("phase") == "Running"]
    return pods if len(pods) == 3 and not {each["metadata"]["uid"] for each in pods} & seen else None
