"""Pods that were refused only because we did not know yet what had happened. Nothing else happens that would help."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from gputopo.labels.reasons import Reason
from scheduler_core.evaluation.transient import RETRY_MESSAGE
from tests.api_objects import pod
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import Timed
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import condition, gpu_pod, refused, started
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.kubelet import Device
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e
SECONDS = 15.0  # within which whoever fits must run; kube-scheduler looks at everybody again after 300
ENDS = 8


def singles_in_order(available: Sequence[Device], _: Sequence[Device], size: int) -> Sequence[Device]:
    """A device plugin that gives single GPUs from the first island, and four from the second."""
    return sorted(available, key=lambda device: -device.gpu if size > 1 else device.gpu)[:size]


def pairs_in_turn(available: Sequence[Device], _: Sequence[Device], size: int) -> Sequence[Device]:
    """A device plugin that gives pairs from the two islands in turn."""
    return sorted(available, key=lambda device: (device.gpu % 4 // 2, device.gpu))[:size]


@pytest.mark.usefixtures("gputopo_scheduler")
def test_the_pod_is_placed_when_the_kubelet_has_reported(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, timed: Timed
) -> None:
    """Two single GPUs may be in one island or in two. Where they were in one, the other is whole."""
    fleet.add(NodeSpec(name="gpu-0", shape=islands_4_4(), policy=singles_in_order))
    agents = agents_of()
    with agents.silenced():
        for name in ("one", "two"):
            cluster.create_pod(gpu_pod(name, 1))
            started(cluster, name)
        cluster.create_pod(gpu_pod("train", 4, {"island": "required"}))
        waiting = cluster.wait_for_pod("train", condition)
        assert condition(waiting)["reason"] == "SchedulerError"
        assert RETRY_MESSAGE in condition(waiting)["message"]

    with timed("from the kubelet's word to the pod that waited for it"):
        running = started(cluster, "train", SECONDS)
    assert fleet.gpus_of(running) == (4, 5, 6, 7)


@pytest.mark.usefixtures("gputopo_scheduler")
def test_no_pod_waits_that_was_refused_because_kube_scheduler_got_the_event_first(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents
) -> None:
    """kube-scheduler retries when its own watch shows the end of a pod, often before the extender's watch does."""
    fleet.add(NodeSpec(name="gpu-0", shape=islands_4_4(), policy=pairs_in_turn))
    agents = agents_of()
    for number in range(ENDS):
        for name in ("left", "right"):
            cluster.create_pod(pod(f"{name}-{number}", 2, nodeName="gpu-0"))
            started(cluster, f"{name}-{number}")
        agents.catch_up()
        cluster.create_pod(gpu_pod(f"train-{number}", 4, {"island": "required"}))
        assert Reason.ISLAND.value in refused(cluster, f"train-{number}")
        time.sleep(1.0)  # nothing happens but the one event

        cluster.api.delete(cluster.pods(f"left-{number}"))

        started(cluster, f"train-{number}", SECONDS)
        for name in ("right", "train"):
            cluster.api.delete(cluster.pods(f"{name}-{number}"))
        agents.catch_up()
