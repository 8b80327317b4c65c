"""Simulated nodes as the API server, a PodResources client and the agent see them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import permutations

import grpc
import pytest

from agent.discover import discover
from agent.recording.io import load_snapshot
from gputopo.model import Health, NodeTopology
from tests.api_objects import Object, container, pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.kubelet import Device
from tests.simulated_node.node import ANY, DISTRIBUTED, NodeSpec
from tests.simulated_node.podresources_client import pod_resources
from tests.simulated_node.preferred import best_effort, pair_scores
from tests.simulated_node.shapes import SHAPES, bridged_pairs_8, cube_mesh_8, islands_4_4, pcie_8
from tests.simulated_node.topology_manager import NumaPolicy

pytestmark = pytest.mark.e2e
SHARED = "nvidia.com/gpu.shared"


def _running(cluster: Cluster, *wanted: Object) -> list[Object]:
    """Create pods one after the other, each once the one before it runs; the pods."""
    return [_run(cluster, each) for each in wanted]


def _run(cluster: Cluster, wanted: Object) -> Object:
    cluster.create_pod(wanted)
    return cluster.wait_for_pod(wanted["metadata"]["name"], lambda each: each["status"]["phase"] == "Running")


def _refused(cluster: Cluster, wanted: Object) -> tuple[str, str]:
    """Reason and message of a pod that its node does not take."""
    cluster.create_pod(wanted)
    status = cluster.wait_for_pod(wanted["metadata"]["name"], lambda each: each["status"]["phase"] == "Failed")[
        "status"
    ]
    return status["reason"], status["message"]


def test_pod_resources_lists_pods_with_their_devices_and_numa_nodes(cluster: Cluster, gpu_nodes: Fleet) -> None:
    train, web = _running(cluster, pod("train", gpus=4, nodeName="gpu-0"), pod("web", nodeName="gpu-0"))
    topology = gpu_nodes["gpu-0"].topology
    given = [topology.get_gpu(index) for index in gpu_nodes.gpus_of(train)]

    with pod_resources(gpu_nodes["gpu-0"].socket) as ask:
        listed = ask("List").pod_resources
        one = ask("Get", pod_name="web", pod_namespace=cluster.namespace).pod_resources

    assert [(each.name, each.namespace) for each in listed] == [(name, cluster.namespace) for name in ("train", "web")]
    (main,) = listed[0].containers
    assert sorted(
        (devices.resource_name, *devices.device_ids, *(node.ID for node in devices.topology.nodes))
        for devices in main.devices
    ) == sorted(("nvidia.com/gpu", gpu.uuid, gpu.numa_node) for gpu in given)
    assert one == listed[1]
    assert [(each.name, list(each.devices)) for each in one.containers] == [("main", [])]
    assert gpu_nodes.gpus_of(web) == ()


def test_pod_resources_of_a_pod_that_is_not_here_is_the_kubelets_error(gpu_nodes: Fleet) -> None:
    with pod_resources(gpu_nodes["gpu-1"].socket) as ask, pytest.raises(grpc.RpcError) as failed:
        ask("Get", pod_name="nobody", pod_namespace="nowhere")

    assert failed.value.code() is grpc.StatusCode.UNKNOWN
    assert failed.value.details() == "pod nobody in namespace nowhere not found"


def test_allocatable_resources_are_the_healthy_devices(gpu_nodes: Fleet) -> None:
    gpu_nodes.kill_gpu("gpu-0", 3)

    with pod_resources(gpu_nodes["gpu-0"].socket) as ask:
        devices = ask("GetAllocatableResources").devices

    built = gpu_nodes["gpu-0"].machine.built
    assert [list(each.device_ids) for each in devices] == [[gpu.uuid] for gpu in built.gpus if gpu.index != 3]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sizes", [(4, 2, 2), (1, 2, 4), (3, 3)], ids=str)
def test_pods_get_what_the_policy_says(cluster: Cluster, fleet: Fleet, shape: str, sizes: Sequence[int]) -> None:
    """Each pod's GPUs are an outcome of the policy for some order of the free ones; they never overlap."""
    (node,) = fleet.add(NodeSpec(name="gpu-0", shape=SHAPES[shape]()))
    free = set(range(8))
    for number, size in enumerate(sizes):
        gpus = fleet.gpus_of(_run(cluster, pod(f"train-{number}", gpus=size, nodeName="gpu-0")))

        assert frozenset(gpus) in _outcomes(node.topology, free, size)
        free -= set(gpus)


def _outcomes(topology: NodeTopology, free: set[int], size: int) -> set[frozenset[int]]:
    """Return the policy's choices of the free GPUs, over the orders in which they can be offered.

    Which GPU comes first decides between equal divisions, and the order of the others within it: rotations and
    reversals of every choice of the first two gave all that hundreds of random orders give, on each of these shapes.
    """
    orders = set()
    for first in permutations(sorted(free), min(2, len(free))):
        rest = [gpu for gpu in sorted(free) if gpu not in first]
        orders |= {(*first, *rest[turn:], *rest[:turn]) for turn in range(max(len(rest), 1))}
        orders |= {(*first, *reversed(rest))}
    return {frozenset(best_effort(order, (), size, pair_scores(topology))) for order in orders}


def test_single_gpus_fall_anywhere(cluster: Cluster, fleet: Fleet) -> None:
    """A plugin is no help here: it takes the first GPU that it is offered."""
    fleet.add(*(NodeSpec(name=f"gpu-{number}", shape=bridged_pairs_8()) for number in range(12)))

    pods = _running(cluster, *(pod(f"one-{number}", gpus=1, nodeName=f"gpu-{number}") for number in range(12)))

    assert len({fleet.gpus_of(each) for each in pods}) > 3


def test_same_seed_gives_the_same_gpus(cluster: Cluster) -> None:
    outcomes = []
    for attempt in ("first", "second"):
        with Fleet(cluster.api, seed=7) as fleet:
            fleet.add(NodeSpec(name=f"gpu-{attempt}", shape=cube_mesh_8()))
            sizes = (1, 2, 1, 3)
            wanted = [pod(f"{attempt}-{n}", gpus=size, nodeName=f"gpu-{attempt}") for n, size in enumerate(sizes)]
            outcomes.append([fleet.gpus_of(each) for each in _running(cluster, *wanted)])

    assert outcomes[0] == outcomes[1]


def test_test_may_choose_the_policy(cluster: Cluster, fleet: Fleet) -> None:
    def highest(available: Sequence[Device], _: Sequence[Device], size: int) -> Sequence[Device]:
        return sorted(available, key=lambda device: -device.gpu)[:size]

    fleet.add(
        NodeSpec(name="highest", shape=islands_4_4(), policy=highest),
        NodeSpec(name="any", shape=islands_4_4(), policy=ANY),
        NodeSpec(name="shared", shape=islands_4_4(), policy=DISTRIBUTED, resource=SHARED, replicas=4),
    )
    shares = pod("shares", nodeName="shared") | {}
    shares["spec"]["containers"] = [container("main", 8, SHARED)]

    chosen, some, spread = _running(
        cluster, pod("chosen", gpus=3, nodeName="highest"), pod("some", gpus=3, nodeName="any"), shares
    )

    assert fleet.gpus_of(chosen) == (5, 6, 7)
    assert len(fleet.gpus_of(some)) == 3
    assert fleet.gpus_of(spread) == tuple(range(8))
    assert cluster.api.get("/api/v1/nodes/shared")["status"]["allocatable"][SHARED] == "32"


def test_single_numa_node_policy_rejects_what_no_node_can_hold(cluster: Cluster, fleet: Fleet) -> None:
    fleet.add(NodeSpec(name="gpu-0", shape=pcie_8(), numa_policy=NumaPolicy.SINGLE_NUMA_NODE))
    first, second = _running(cluster, pod("first", gpus=3, nodeName="gpu-0"), pod("second", gpus=3, nodeName="gpu-0"))

    refused = _refused(cluster, pod("third", gpus=2, nodeName="gpu-0"))

    message = "Pod was rejected: Resources cannot be allocated with Topology locality"
    assert refused == ("TopologyAffinityError", message)
    assert {gpu // 4 for gpu in fleet.gpus_of(first)} == {0}
    assert {gpu // 4 for gpu in fleet.gpus_of(second)} == {1}


def test_finished_and_deleted_pods_give_their_gpus_back(cluster: Cluster, gpu_nodes: Fleet) -> None:
    done, gone = _running(cluster, pod("done", gpus=4, nodeName="gpu-0"), pod("gone", gpus=4, nodeName="gpu-0"))
    graceful = pod("graceful", gpus=4, nodeName="gpu-0", terminationGracePeriodSeconds=30)

    gpu_nodes.finish(done)
    third = _run(cluster, graceful)
    cluster.api.delete(cluster.pods("gone"))
    fourth = _run(cluster, pod("fourth", gpus=4, nodeName="gpu-0"))
    cluster.api.delete(cluster.pods("graceful"), grace_s=None)
    fifth = _run(cluster, pod("fifth", gpus=4, nodeName="gpu-0"))

    assert cluster.pod("done")["status"]["phase"] == "Succeeded"
    assert gpu_nodes.gpus_of(third) + gpu_nodes.gpus_of(gone) == ()
    assert sorted(gpu_nodes.gpus_of(fourth) + gpu_nodes.gpus_of(fifth)) == list(range(8))
    wait_for(lambda: "graceful" not in _pod_names(cluster), "the kubelet to delete the pod")


def test_pod_that_is_changed_as_it_finishes_is_not_admitted_again(cluster: Cluster, gpu_nodes: Fleet) -> None:
    done = _run(cluster, pod("done", gpus=8, nodeName="gpu-0"))
    gpu_nodes.finish(done)
    for number in range(5):
        cluster.api.patch(cluster.pods("done"), {"metadata": {"labels": {"number": str(number)}}})
    _run(cluster, pod("next", gpus=8, nodeName="gpu-0"))

    assert [each.name for each, _ in gpu_nodes["gpu-0"].devices.pods] == ["next"]
    with pytest.raises(ValueError, match="pod done does not run on gpu-0"):
        gpu_nodes.finish(done)


def test_pods_that_were_bound_before_their_node_came_are_admitted(cluster: Cluster, fleet: Fleet) -> None:
    cluster.create_pod(pod("early", gpus=2, nodeName="gpu-0"))

    fleet.add(NodeSpec(name="gpu-0", shape=islands_4_4()))

    early = cluster.wait_for_pod("early", lambda each: each["status"]["phase"] == "Running")
    assert len(fleet.gpus_of(early)) == 2


def test_pods_with_a_lifetime_finish_by_themselves(cluster: Cluster) -> None:
    with Fleet(cluster.api, lifetime=lambda each: 0.2 if each["metadata"]["name"] == "short" else None) as fleet:
        fleet.add(NodeSpec(name="gpu-0", shape=pcie_8()))
        long, short = (pod(name, gpus=1, nodeName="gpu-0") for name in ("long", "short"))
        _running(cluster, long)
        cluster.create_pod(short)

        cluster.wait_for_pod("short", lambda each: each["status"]["phase"] == "Succeeded")

        assert cluster.pod("long")["status"]["phase"] == "Running"
        assert fleet.failures == []


def test_held_pods_are_admitted_in_the_order_that_the_test_wants(cluster: Cluster, fleet: Fleet) -> None:
    """Bound 4, 2, 2 and admitted 2, 2, 4 the last one still finds an island only because the policy keeps it whole."""
    fleet.add(NodeSpec(name="gpu-0", shape=islands_4_4()))
    by_size = sorted
    wanted = [pod(f"p{number}", gpus=size, nodeName="gpu-0") for number, size in enumerate((4, 2, 2))]

    with fleet.admissions_held(lambda held: by_size(held, key=_gpus_wanted)):
        for each in wanted:
            cluster.create_pod(each)
        wait_for(lambda: fleet.held == 3, "three held pods")
        assert {cluster.pod(f"p{number}")["status"]["phase"] for number in range(3)} == {"Pending"}
    large, *small = (
        cluster.wait_for_pod(f"p{number}", lambda each: each["status"]["phase"] == "Running") for number in range(3)
    )

    given = [fleet.gpus_of(each) for each in (*small, large)]
    assert sorted(gpu for gpus in given for gpu in gpus) == list(range(8))
    order = [each.name for each, _ in fleet["gpu-0"].devices.pods]
    assert order == ["p1", "p2", "p0"]


def _gpus_wanted(each: Object) -> int:
    return int(each["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])


def test_lost_gpu_shows_on_the_node_and_in_the_snapshot_and_fails_the_plugin(
    cluster: Cluster, gpu_nodes: Fleet
) -> None:
    gpu_nodes.kill_gpu("gpu-0", 5)

    status = cluster.api.get("/api/v1/nodes/gpu-0")["status"]
    assert (status["capacity"]["nvidia.com/gpu"], status["allocatable"]["nvidia.com/gpu"]) == ("8", "7")
    assert _seen(gpu_nodes, "gpu-0").get_gpu(5).health is Health.LOST
    reason, message = _refused(cluster, pod("train", gpus=1, nodeName="gpu-0"))
    assert reason == "UnexpectedAdmissionError"
    assert "unable to get device link information: GPU is lost" in message

    gpu_nodes.revive_gpu("gpu-0", 5)

    status = cluster.api.get("/api/v1/nodes/gpu-0")["status"]
    assert status["allocatable"]["nvidia.com/gpu"] == "8"
    assert len(gpu_nodes.gpus_of(_run(cluster, pod("again", gpus=8, nodeName="gpu-0")))) == 8


def test_an_unhealthy_gpu_is_not_allocated_and_its_pod_stays(cluster: Cluster, gpu_nodes: Fleet) -> None:
    (first,) = _running(cluster, pod("first", gpus=1, nodeName="gpu-0"))
    (sick,) = gpu_nodes.gpus_of(first)
    gpu_nodes.kill_gpu("gpu-0", sick, lost=False)

    second = _run(cluster, pod("second", gpus=7, nodeName="gpu-0"))

    assert gpu_nodes.gpus_of(first) == (sick,)
    assert gpu_nodes.gpus_of(second) == tuple(gpu for gpu in range(8) if gpu != sick)


def test_a_failed_link_is_in_the_snapshot_and_the_policy_rejects_the_node(cluster: Cluster, fleet: Fleet) -> None:
    fleet.add(NodeSpec(name="gpu-0", shape=bridged_pairs_8()))
    before = _seen(fleet, "gpu-0").islands
    for pair in ((0, 1), (2, 3), (6, 7)):
        fleet.kill_link("gpu-0", *pair)
    after = _seen(fleet, "gpu-0").islands

    assert before is not None
    assert after is not None
    assert [island.gpus for island in before] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [island.gpus for island in after if island.size > 1] == [(4, 5)]
    assert fleet.gpus_of(_run(cluster, pod("train", gpus=2, nodeName="gpu-0"))) == (4, 5)

    fleet.revive_link("gpu-0", 0, 1)

    assert fleet.gpus_of(_run(cluster, pod("again", gpus=2, nodeName="gpu-0"))) == (0, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_agent_finds_in_the_snapshot_what_the_node_is(fleet: Fleet, shape: str) -> None:
    (node,) = fleet.add(NodeSpec(name="gpu-0", shape=SHAPES[shape]()))

    seen = _seen(fleet, "gpu-0")

    assert seen.islands == node.topology.islands
    assert (seen.pcie, seen.boot_id, seen.problems) == (node.topology.pcie, node.topology.boot_id, ())
    assert [(gpu.uuid, gpu.bus_id, gpu.product, gpu.memory_mib, gpu.numa_node) for gpu in seen.gpus] == [
        (gpu.uuid, gpu.bus_id, gpu.product, gpu.memory_mib, gpu.numa_node) for gpu in node.topology.gpus
    ]


def test_fleet_that_ends_hangs_up_on_its_clients(cluster: Cluster) -> None:
    with ExitStack() as clients:
        with Fleet(cluster.api) as fleet:
            (node,) = fleet.add(NodeSpec(name="gpu-0", shape=pcie_8()))
            ask = clients.enter_context(pod_resources(node.socket))
            assert len(ask("GetAllocatableResources").devices) == 8
        with pytest.raises(grpc.RpcError) as failed:
            ask("List")

    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


def test_nodes_that_a_scheduler_fills(cluster: Cluster, gpu_nodes: Fleet, scheduler: StartScheduler) -> None:
    """32 GPUs for 8 pods of 4: all of them, each an island."""
    scheduler()
    cluster.api.create_all([(cluster.pods(), pod(f"train-{number}", gpus=4)) for number in range(8)])

    pods = [cluster.wait_for_pod(f"train-{n}", lambda each: each["status"]["phase"] == "Running") for n in range(8)]

    assert sorted((each["spec"]["nodeName"], gpu_nodes.gpus_of(each)) for each in pods) == sorted(
        (name, island) for name in gpu_nodes.names for island in ((0, 1, 2, 3), (4, 5, 6, 7))
    )


def _seen(fleet: Fleet, name: str) -> NodeTopology:
    """Return the topology that the agent discovers from the snapshot file of a node."""
    return discover(load_snapshot(fleet[name].snapshot.read_text()))


def _pod_names(cluster: Cluster) -> set[str]:
    return {each["metadata"]["name"] for each in cluster.api.items(cluster.pods())}
