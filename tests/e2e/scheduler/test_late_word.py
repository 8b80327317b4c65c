"""A pod that was refused only because nobody knew yet which GPUs its neighbours got."""

from __future__ import annotations

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.conftest import Timed
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import condition, gpu_pod, started
from tests.e2e.simulation.fleet import Fleet
from tests.e2e.simulation.node import NodeSpec
from tests.e2e.simulation.shapes import islands_4_4

pytestmark = pytest.mark.e2e


@pytest.mark.usefixtures("gputopo_scheduler")
def test_it_is_placed_when_the_kubelet_has_spoken(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, timed: Timed
) -> None:
    """Two single GPUs may be in one island or in two. Where they were in one, the other is whole."""
    fleet.add(
        NodeSpec(
            name="gpu-0",
            shape=islands_4_4(),
            policy=lambda devices, _, size: (
                sorted(devices)[:size] if size > 1 else [min(devices, key=lambda device: device.gpu)]
            ),
        )
    )
    agents = agents_of()
    with agents.silenced():
        for name in ("one", "two"):
            cluster.create_pod(gpu_pod(name, 1))
            started(cluster, name)
        cluster.create_pod(gpu_pod("train", 4, {"island": "required"}))
        cluster.wait_for_pod("train", condition)
        print(condition(cluster.pod("train")))
    agents.catch_up()
    with timed("from the kubelet's word to the pod"):
        started(cluster, "train", 20)
