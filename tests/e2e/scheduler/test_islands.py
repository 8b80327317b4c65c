"""Pods that need one NVLink island, on nodes whose kubelets choose the GPUs."""

from __future__ import annotations

from random import Random

import pytest

from gputopo.labels.reasons import Reason
from tests.api_objects import Object, pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.scheduler import real_state
from tests.e2e.scheduler.agents import Agents
from tests.e2e.scheduler.allocations import alternating
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, condition, gpu_pod, refused, started
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import bridged_pairs_8, islands_4_4

pytestmark = pytest.mark.e2e
REQUIRED = {"island": "required"}


@pytest.fixture
def split_and_whole(cluster: Cluster, fleet: Fleet, agents_of: StartAgents) -> Agents:
    """Two nodes in two islands of 4. On ``split`` a pod holds two GPUs of each, on ``whole`` nobody holds any."""
    fleet.add(NodeSpec(name="split", shape=islands_4_4(), policy=alternating))
    fleet.add(NodeSpec(name="whole", shape=islands_4_4()))
    cluster.create_pod(pod("holder", 4, nodeName="split"))
    assert fleet.gpus_of(started(cluster, "holder")) == (0, 1, 4, 5)
    return agents_of()


@pytest.mark.usefixtures("split_and_whole", "gputopo_scheduler")
def test_a_whole_island_is_chosen_and_a_node_with_2_and_2_refused(cluster: Cluster, fleet: Fleet) -> None:
    for name in ("first", "second"):
        cluster.create_pod(gpu_pod(name, 4, REQUIRED))
        assert started(cluster, name)["spec"]["nodeName"] == "whole"
    cluster.create_pod(gpu_pod("third", 4, REQUIRED))

    said = refused(cluster, "third")

    assert said.startswith(f"0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 {Reason.ISLAND.value}. "), said
    assert {fleet.gpus_of(cluster.pod(name)) for name in ("first", "second")} == {(0, 1, 2, 3), (4, 5, 6, 7)}


@pytest.mark.usefixtures("split_and_whole", "gputopo_scheduler")
def test_a_pod_that_was_refused_is_placed_when_an_island_becomes_free(cluster: Cluster, fleet: Fleet) -> None:
    for name in ("first", "second", "third"):
        cluster.create_pod(gpu_pod(name, 4, REQUIRED))
        if name != "third":
            started(cluster, name)
    refused(cluster, "third")

    fleet.finish(cluster.pod("first"))

    third = started(cluster, "third")
    assert third["spec"]["nodeName"] == "whole"
    assert fleet.gpus_of(third) == fleet.gpus_of(cluster.pod("first")) or fleet.gpus_of(third) in {
        (0, 1, 2, 3),
        (4, 5, 6, 7),
    }


def test_a_shape_that_the_kubelet_breaks_all_the_same_is_counted_and_the_pod_told(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, gputopo_scheduler: Extender
) -> None:
    """The node's device plugin does not follow NVIDIA's policy, and the node's labels do not say so."""
    fleet.add(NodeSpec(name="odd", shape=islands_4_4(), policy=alternating))
    agents_of()
    cluster.create_pod(gpu_pod("train", 2, REQUIRED))

    running = started(cluster, "train")

    assert fleet.gpus_of(running) == (0, 4)
    uid = running["metadata"]["uid"]
    warnings = f"involvedObject.uid={uid},type=Warning"
    (event,) = wait_for(lambda: cluster.api.items("/api/v1/events", fieldSelector=warnings), "an event")
    assert event["message"].startswith(
        "the GPUs that the kubelet of odd allocated to this pod are not in one NVLink island."
    )
    assert gputopo_scheduler.count("gputopo_required_shapes_violated_total") == 1
    assert gputopo_scheduler.count("gputopo_predictions_total", outcome="miss") == 1
    assert cluster.pod("train")["status"]["phase"] == "Running"


@pytest.mark.parametrize("seed", [1, 2], ids=["seed-1", "seed-2"])
@pytest.mark.parametrize("shape", [islands_4_4, bridged_pairs_8], ids=["islands-4-4", "bridged-pairs-8"])
def test_islands_that_fill_up_over_time_hold_what_was_required(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, gputopo_scheduler: Extender, shape: object, seed: int
) -> None:
    """No pod is rejected that would certainly have got an island, and no pod is placed that gets no island."""
    assert callable(shape)
    fleet.add(NodeSpec(name="gpu-0", shape=shape()))
    agents = agents_of()
    topology, random = fleet["gpu-0"].topology, Random(seed)
    living: list[str] = []
    verdicts = []
    for turn in range(16):
        if living and random.random() < 0.35:
            fleet.finish(cluster.pod(living.pop(random.randrange(len(living)))))
            agents.catch_up()
        pods = cluster.api.items(cluster.pods())
        left = real_state.free(topology, real_state.held(fleet, pods)["gpu-0"])
        size, name = random.choice((1, 2, 2, 3, 4)), f"p{turn}"
        sure = real_state.surely_in_one_island(topology, left, size)
        if len(left) < size:
            continue
        cluster.create_pod(gpu_pod(name, size, REQUIRED if size > 1 else {}))
        wait_for(lambda name=name: is_decided(cluster.pod(name)), f"a verdict on {name}")  # type: ignore[misc]
        found = cluster.pod(name)
        verdicts.append(("nodeName" in found["spec"], size == 1 or sure))
        if "nodeName" in found["spec"]:
            living.append(name)
            gpus = frozenset(fleet.gpus_of(started(cluster, name)))
            assert size == 1 or real_state.in_one_island(topology, gpus), (name, sorted(gpus), sorted(left))
        else:
            cluster.api.delete(cluster.pods(name))
        agents.catch_up()

    assert [placed for placed, _ in verdicts] == [sure for _, sure in verdicts]
    assert {placed for placed, _ in verdicts} == {True, False}
    assert gputopo_scheduler.count("gputopo_predictions_total", outcome="miss") == 0


def is_decided(found: Object) -> bool:
    """Return whether a scheduler has placed the pod, or has written why it did not."""
    return "nodeName" in found["spec"] or bool(condition(found))
