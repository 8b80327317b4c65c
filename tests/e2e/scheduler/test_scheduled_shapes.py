"""Required shapes are kept while kube-scheduler delays the binding: volumes, preemption, failures, restarts.

The node has 6 free GPUs, 4 in one island and 2 in the other. A pod that requires 3 in one island leaves 3, but not
in one island.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
import yaml

from gputopo.labels.reasons import Reason
from scheduler_core.extender.decision_record import parse_decision, replay_differences
from tests.api_objects import Object, pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.scheduler import real_state, volumes
from tests.e2e.scheduler.agents import Agents
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, condition, gpu_pod, refused, started
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.kubelet import Device
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e
REQUIRED = {"island": "required"}
NODE = "gpu-0"


def pairs_in_turn(available: Sequence[Device], _: Sequence[Device], size: int) -> Sequence[Device]:
    """A device plugin that gives pairs from the two islands in turn; else what comes first."""
    return sorted(available, key=lambda device: (device.gpu % 4 // 2 if size == 2 else 0, device.gpu))[:size]


@pytest.fixture
def six_free(cluster: Cluster, fleet: Fleet, agents_of: StartAgents, controllers: tuple[str, ...]) -> Agents:
    """One node with a pod on two GPUs of one island."""
    assert controllers
    fleet.add(NodeSpec(name=NODE, shape=islands_4_4()))
    cluster.create_pod(pod("holder", 2, nodeName=NODE))
    started(cluster, "holder")
    return agents_of()


def wait_between_filter_and_bind(cluster: Cluster) -> None:
    """Create ``slow``, which is promised an island of 3 and has no volume yet."""
    volumes.offer(cluster, NODE)
    cluster.create_pod(volumes.using(gpu_pod("slow", 3, REQUIRED)))
    volumes.wait_for_pre_bind(cluster, NODE)
    assert "nodeName" not in cluster.pod("slow")["spec"]


def on_islands(cluster: Cluster, fleet: Fleet, *names: str) -> bool:
    """Wait until the pods run; return whether each is on one island. Fails if two pods have the same GPU."""
    pods = [started(cluster, name) for name in names]
    real_state.held(fleet, cluster.api.items(cluster.pods()))
    return all(real_state.in_one_island(fleet[NODE].topology, frozenset(fleet.gpus_of(each))) for each in pods)


@pytest.mark.usefixtures("six_free", "gputopo_scheduler")
def test_a_pod_that_waits_for_its_volume_keeps_its_assumed_gpus(cluster: Cluster, fleet: Fleet) -> None:
    wait_between_filter_and_bind(cluster)

    cluster.create_pod(gpu_pod("rival", 3, REQUIRED))
    said = refused(cluster, "rival")
    with volumes.completed(cluster):
        started(cluster, "slow")

    assert said.startswith(f"0/1 nodes are available: 1 {Reason.ISLAND.value}. "), said
    assert on_islands(cluster, fleet, "slow")


@pytest.mark.usefixtures("six_free")
def test_an_acknowledgement_holds_after_the_extender_that_made_it_has_ended(
    cluster: Cluster, fleet: Fleet, gputopo_scheduler: Extender
) -> None:
    wait_between_filter_and_bind(cluster)

    gputopo_scheduler.restart()
    gputopo_scheduler.wait_until_ready()
    cluster.create_pod(gpu_pod("rival", 3, REQUIRED))

    refused(cluster, "rival")
    with volumes.completed(cluster):
        started(cluster, "slow")
    assert on_islands(cluster, fleet, "slow")


@pytest.mark.usefixtures("six_free", "gputopo_scheduler")
def test_a_pod_that_is_deleted_between_filter_and_bind_leaves_its_island_to_the_next(
    cluster: Cluster, fleet: Fleet
) -> None:
    wait_between_filter_and_bind(cluster)
    cluster.create_pod(gpu_pod("rival", 3, REQUIRED))
    refused(cluster, "rival")

    cluster.api.delete(cluster.pods("slow"))

    assert on_islands(cluster, fleet, "rival")


@pytest.mark.usefixtures("six_free")
def test_a_pod_whose_pre_bind_fails_is_placed_again_without_a_double_booking(
    cluster: Cluster, fleet: Fleet, extender: Extender, scheduler: StartScheduler
) -> None:
    """kube-scheduler gives up after a second, and tries again, which asks us again."""
    document: Object = yaml.safe_load(extender.configuration())
    (profile,) = document["profiles"]
    profile["pluginConfig"].append({"name": "VolumeBinding", "args": {"bindTimeoutSeconds": 1}})
    scheduler(yaml.safe_dump(document))
    wait_between_filter_and_bind(cluster)

    # Before, the pod is Unschedulable if the scheduler sees it before its volume.
    cluster.wait_for_pod("slow", lambda found: condition(found).get("reason") == "SchedulerError")
    cluster.create_pod(gpu_pod("rival", 3, REQUIRED))
    first = wait_for(lambda: next((name for name in ("slow", "rival") if _bound(cluster, name)), None), "the first", 40)
    with volumes.completed(cluster):
        if first == "rival":
            cluster.api.delete(cluster.pods("rival"))
        assert on_islands(cluster, fleet, "slow")


def preempt(cluster: Cluster, names: list[str], wishes: dict[str, str] = REQUIRED) -> None:
    """Fill the node with pods of low priority, and create ``urgent``, for which some of them must go."""
    high = {"metadata": {"name": "high"}, "value": 1000}
    cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", high)
    for name in names:
        cluster.create_pod(gpu_pod(name, 2))
        started(cluster, name)
    cluster.create_pod(gpu_pod("urgent", 4, wishes, priorityClassName="high"))


@pytest.mark.usefixtures("gputopo_scheduler")
def test_a_pod_that_preempts_is_placed_on_the_island_that_its_victims_leave(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents
) -> None:
    """kube-scheduler chooses whom to evict by numbers alone, nominates the node, and asks about that node alone."""
    fleet.add(NodeSpec(name=NODE, shape=islands_4_4()))
    cluster.create_pod(pod("holder", 4, nodeName=NODE))
    started(cluster, "holder")
    agents_of()

    preempt(cluster, ["low-0", "low-1"])

    assert on_islands(cluster, fleet, "urgent")
    assert [each["metadata"]["name"] for each in cluster.api.items(cluster.pods())] == ["holder", "urgent"]


def test_victims_that_leave_no_island_are_not_evicted_and_the_pod_starts_once_an_island_is_free(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, gputopo_scheduler: Extender
) -> None:
    """The youngest go first: of pairs that were given in turn from one island and the other, one of each."""
    fleet.add(NodeSpec(name=NODE, shape=islands_4_4(), policy=pairs_in_turn))
    agents_of()
    preempt(cluster, ["low-0", "low-1", "low-2", "low-3"])

    wait_for(lambda: gputopo_scheduler.count("gputopo_preemption_nodes_total", outcome="island"), "a dropped node")
    said = refused(cluster, "urgent")
    left = [each["metadata"]["name"] for each in cluster.api.items(cluster.pods())]
    assert left == ["low-0", "low-1", "low-2", "low-3", "urgent"]
    assert not any("deletionTimestamp" in each["metadata"] for each in cluster.api.items(cluster.pods()))
    assert gputopo_scheduler.count("gputopo_preemption_nodes_total", outcome="kept") == 0
    assert said.startswith("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."), said
    for name in ("low-1", "low-3"):
        fleet.finish(cluster.pod(name))

    assert on_islands(cluster, fleet, "urgent")
    real_state.held(fleet, cluster.api.items(cluster.pods()))
    (line,) = [each for each in gputopo_scheduler.lines("/decisions") if each.get("victims")][-1:]
    assert list(replay_differences(parse_decision(msgspec.json.encode(line)))) == []


def test_a_pod_of_no_shape_preempts_by_number_as_before(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, gputopo_scheduler: Extender
) -> None:
    fleet.add(NodeSpec(name=NODE, shape=islands_4_4(), policy=pairs_in_turn))
    agents_of()
    preempt(cluster, ["low-0", "low-1", "low-2", "low-3"], {})

    started(cluster, "urgent")
    left = [each["metadata"]["name"] for each in cluster.api.items(cluster.pods())]
    assert left == ["low-0", "low-1", "urgent"]
    assert gputopo_scheduler.count("gputopo_preemption_nodes_total", outcome="kept") >= 1


def test_pods_that_arrive_while_no_kubelet_admits_pods_do_not_get_the_same_gpus(
    cluster: Cluster, fleet: Fleet, six_free: Agents, gputopo_scheduler: Extender
) -> None:
    """Bound together, admitted in every order: whoever runs first takes what the others were not promised."""
    with six_free.silenced(), fleet.admissions_held(lambda pods: sorted(pods, key=_by_name, reverse=True)):
        for name, gpus in (("a", 2), ("b", 3), ("c", 1), ("d", 3)):
            cluster.create_pod(gpu_pod(name, gpus, REQUIRED if gpus > 1 else None))
            cluster.wait_for_pod(name, lambda each: "nodeName" in each["spec"] or condition(each))
        bound = [name for name in "abcd" if _bound(cluster, name)]
        wait_for(lambda: fleet.held == len(bound), "the pods to reach their kubelet")

    assert on_islands(cluster, fleet, *(name for name in bound if name != "c"))
    six_free.catch_up()
    wait_for(
        lambda: gputopo_scheduler.count("gputopo_predictions_total") >= len(bound), "the predictions to be checked"
    )
    assert gputopo_scheduler.count("gputopo_required_shapes_violated_total") == 0


def _bound(cluster: Cluster, name: str) -> bool:
    return "nodeName" in cluster.pod(name)["spec"]


_by_name: Callable[[Object], str] = lambda found: found["metadata"]["name"]  # noqa: E731
