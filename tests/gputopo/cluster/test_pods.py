"""The GPUs of pods, compared with the best possible."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.cluster.nodes import GpuNode
from gputopo.cluster.pods import PodGpus, PodName, is_worse, pod_placements, rate_share
from gputopo.crd.nodegpus import DeviceAllocation, PodRef
from gputopo.model import Health, PcieDistance
from gputopo.paths import PathKind
from gputopo.rings import Ring
from tests.gputopo.cluster.machines import gpu_node, state
from tests.machines import a40x10, a100_bridged, cloud_vm, dgx1, dgx_a100, hgx_h100, mixed, nvlink_unknown, v100_ring

SLOW = Ring(PathKind.NVLINK, 50.0, 1, None)
FAST = Ring(PathKind.NVLINK, 100.0, 2, None)
NOBODY_KNOWS = Ring(PathKind.UNKNOWN, None, None, PcieDistance.PIX)
NO_RATE = Ring(PathKind.NVSWITCH, None, 18, None)
MACHINE = dgx1()
NEAR, FAR = (Ring(PathKind.PCIE, 63.0, None, distance) for distance in (PcieDistance.PIX, PcieDistance.SYS))


def names(*pods: str) -> dict[PodName, int | None]:
    return {PodName("team-a", pod): None for pod in pods}


def shares(pod: PodGpus) -> tuple[float | None, float | None]:
    """The rate of a pod's ring as a part of the best on its node, and in the cluster."""
    return rate_share(pod.ring, pod.best_ring_on_node), rate_share(pod.ring, pod.best_ring_in_cluster)


def test_a_pod_is_compared_with_its_node_and_with_the_cluster() -> None:
    nodes = [gpu_node("ring", v100_ring(), {"p": (0, 1)}), gpu_node("mesh", v100_ring())]

    (found,) = pod_placements(nodes, names("p"))

    assert found == PodGpus(
        namespace="team-a",
        name="p",
        node="ring",
        count=2,
        gpus=(0, 1),
        gpus_by_island=(2,),
        numa=(0,),
        ring=FAST,
        best_ring_on_node=FAST,
        best_ring_in_cluster=FAST,
    )
    assert shares(found) == (1.0, 1.0)


def test_a_pod_that_is_split_over_islands_and_numa_nodes_is_seen_to_be() -> None:
    (found,) = pod_placements([gpu_node("n", a100_bridged(), {"p": (0, 1, 2)})], names("p"))

    assert (found.gpus_by_island, found.numa) == ((2, 1), (0, 1))
    (found,) = pod_placements([gpu_node("n", dgx_a100(), {"p": (0, 2)})], names("p"))
    assert (found.gpus_by_island, found.numa) == ((2,), (1, 3))


def test_the_best_in_the_cluster_is_that_of_the_same_product() -> None:
    """V100s are compared with V100s, however many H100s there are."""
    nodes = [gpu_node("v", dgx1(), {"p": (0, 1)}), gpu_node("h", hgx_h100())]

    (found,) = pod_placements(nodes, names("p"))

    assert (found.ring, found.best_ring_on_node, found.best_ring_in_cluster) == (SLOW, FAST, FAST)
    assert shares(found) == (0.5, 0.5)


def test_a_pod_of_several_products_is_compared_with_its_node_only() -> None:
    (found,) = pod_placements([gpu_node("n", mixed(), {"p": (0, 1, 2, 3)})], names("p"))

    assert found.best_ring_in_cluster is None
    assert found.best_ring_on_node == found.ring


def test_the_worst_come_first_and_single_gpus_last() -> None:
    nodes = [
        gpu_node("a", dgx1(), {"half-of-the-best": (0, 1), "single": (2,), "good": (4, 5, 6, 7)}),
        gpu_node("b", a100_bridged(), {"a-tenth-of-the-best": (0, 2)}),
        gpu_node("c", v100_ring(), {"lost-its-gpu": (0,)}),
        gpu_node("d", a40x10(), {"far-over-pcie": (0, 9)}),
    ]
    lost = msgspec.structs.replace(
        nodes[2].state,  # type: ignore[type-var]
        allocations=(DeviceAllocation("GPU-gone", PodRef("team-a", "lost-its-gpu", "main")),),
    )
    nodes[2] = msgspec.structs.replace(nodes[2], state=lost)
    running = names("half-of-the-best", "single", "good", "a-tenth-of-the-best", "lost-its-gpu", "far-over-pcie")

    assert [each.name for each in pod_placements(nodes, running)] == [
        "lost-its-gpu",
        "a-tenth-of-the-best",
        "half-of-the-best",
        "far-over-pcie",
        "good",
        "single",
    ]


def test_a_missing_gpu_is_named_and_the_rest_is_unknown() -> None:
    result = state(dgx1(), {"p": (0, 1)})
    gone = DeviceAllocation("GPU-gone", PodRef("team-a", "p", "main"))
    result = msgspec.structs.replace(result, allocations=(*(result.allocations or ()), gone))

    (found,) = pod_placements([GpuNode("n", dgx1(), result)], names("p"))

    assert found == PodGpus(namespace="team-a", name="p", node="n", count=3, gpus=(0, 1), missing=("GPU-gone",))


def test_shares_and_mig_devices_of_one_gpu_are_one_gpu() -> None:
    uuid = str(dgx1().get_gpu(2).uuid)
    parts = (
        DeviceAllocation(uuid, PodRef("team-a", "p", "main"), replica=0),
        DeviceAllocation(uuid, PodRef("team-a", "p", "side"), replica=1),
        DeviceAllocation(str(dgx1().get_gpu(3).uuid), PodRef("team-a", "q", "main"), mig_device="MIG-1"),
    )
    result = msgspec.structs.replace(state(dgx1(), {}), allocations=parts)

    found = pod_placements([GpuNode("n", dgx1(), result)], names("p", "q"))

    assert [(each.name, each.count, each.gpus, each.shared) for each in found] == [
        ("p", 1, (2,), True),
        ("q", 1, (3,), True),
    ]


def test_pods_that_do_not_run_and_nodes_that_say_nothing_are_left_out() -> None:
    nodes = [gpu_node("n", dgx1(), {"ended": (0,)}), GpuNode("m", dgx1())]

    assert pod_placements(nodes, names("other")) == []


def test_unknown_facts_of_placements_stay_unknown() -> None:
    (found,) = pod_placements([gpu_node("n", nvlink_unknown(), {"p": (0, 1)})], names("p"))
    assert (found.gpus_by_island, found.ring and found.ring.kind, shares(found)[0]) == (None, PathKind.UNKNOWN, None)

    (found,) = pod_placements([gpu_node("n", cloud_vm(), {"p": (0, 1)})], names("p"))
    assert (found.numa, found.ring and found.ring.gbps, shares(found)[0]) == (None, None, None)


@pytest.mark.parametrize(
    ("has", "best", "part", "worse"),
    [
        pytest.param(SLOW, FAST, 0.5, True, id="half the rate"),
        pytest.param(FAST, FAST, 1.0, False, id="the same"),
        pytest.param(FAR, NEAR, 1.0, True, id="the same links, a longer way"),
        pytest.param(FAR, SLOW, 1.0, True, id="PCIe is worse than NVLink at any rate"),
        pytest.param(NO_RATE, FAST, None, False, id="a rate that is not known"),
        pytest.param(FAST, NO_RATE, None, False, id="a best whose rate is not known"),
        pytest.param(FAR, NO_RATE, None, True, id="PCIe where there is NVLink of whatever rate"),
        pytest.param(NOBODY_KNOWS, FAST, None, False, id="a ring that is not known"),
        pytest.param(FAR, NOBODY_KNOWS, None, False, id="a best that is not known"),
        pytest.param(None, FAST, None, False, id="no ring"),
        pytest.param(FAST, None, None, False, id="no best"),
    ],
)
def test_one_ring_next_to_another(has: Ring | None, best: Ring | None, part: float | None, worse: bool) -> None:
    assert (rate_share(has, best), is_worse(has, best)) == (part, worse)


@pytest.mark.parametrize(
    ("changes", "differ"),
    [
        ({"numa_node": 1}, "numa"),
        ({"product": "another"}, "best_ring_in_cluster"),
        ({"health": Health.LOST}, "missing"),
        ({"mig_enabled": True}, "gpus_by_island"),
    ],
)
def test_machines_that_differ_in_one_gpu_share_no_facts(changes: dict[str, Any], differ: str) -> None:
    machine = dgx1()  # the objects of its links are in all three
    first, *rest = machine.gpus
    other = msgspec.structs.replace(machine, gpus=(msgspec.structs.replace(first, **changes), *rest))
    machines = {"q": other, "p": machine, "r": machine}
    nodes = [gpu_node(f"of-{pod}", each, {pod: (0, 1)}) for pod, each in machines.items()]

    found = {each.name: getattr(each, differ) for each in pod_placements(nodes, names("p", "q", "r"))}

    assert found["p"] == found["r"] != found["q"]


def test_machines_of_one_shape_share_the_facts_about_their_gpus() -> None:
    nodes = [gpu_node("a", MACHINE, {"p": (0, 1)}), gpu_node("b", MACHINE, {"q": (0, 1)})]

    one, other = pod_placements(nodes, names("p", "q"))

    assert one.numa is other.numa
