"""Scale up with a simulated Karpenter, which adds nodes for pods that kube-scheduler reports as unschedulable."""

from __future__ import annotations

import pytest

from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import Asked, create, gang, gated, node_of, of, unschedulable, wait_until_whole
from tests.e2e.gangs.running import GATED, reserved
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e
TWO = Asked(2, 8, scheduler="default-scheduler")


def pending(cluster: Cluster) -> list[Object]:
    """Return the pods for which Karpenter adds nodes: gated pods are none of them."""
    return [each for each in cluster.api.items(cluster.pods()) if unschedulable(each)]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("present", [0, 1], ids=["no-node", "one-node-of-two"])
def test_a_gang_that_fits_nowhere_is_released_and_gets_new_nodes(
    cluster: Cluster, fleet: Fleet, scheduler: StartScheduler, planner: StartPlanner, present: int
) -> None:
    fleet.add(*(NodeSpec(name=f"old-{each}", shape=islands_4_4()) for each in range(present)))
    scheduler()
    planner(*GATED, "--release-after", "5s")
    create(cluster, *gang("train", TWO))

    wait_for(lambda: len(pending(cluster)) == 2 - present, "pods that Karpenter sees", 60)

    assert not any(gated(each) for each in of(cluster, "train"))
    # No longer placed as a gang: only the pods that fit have a reservation, until they are bound.
    wait_for(lambda: reserved(cluster) == [], "no reservation", 60)
    fleet.add(*(NodeSpec(name=f"new-{each}", shape=islands_4_4()) for each in range(2 - present)))
    found = wait_until_whole(cluster, "train", 2)
    assert {node_of(each) for each in found} == set(fleet.names)
