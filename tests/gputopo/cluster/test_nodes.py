"""GPU nodes from labels, annotation and ``NodeGpus``."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from gputopo.cluster.nodes import GpuNode, gpu_nodes
from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from gputopo.kube.objects import ObjectMeta
from gputopo.labels import encode_topology, keys
from tests.gputopo.cluster.machines import NOW, gpu_node, state
from tests.machines import dgx1, h100_lost_gpu, hgx_h100


def metadata(name: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> ObjectMeta:
    return ObjectMeta(name, labels=labels, annotations=annotations or {})


def test_gpu_nodes_by_name() -> None:
    facts = encode_topology(dgx1())
    nodes = [
        metadata("b", facts.labels, facts.annotations),
        metadata("cpu", {"kubernetes.io/os": "linux"}),
        metadata("a", {keys.NVIDIA_COUNT.key: "4"}),
    ]
    result = state(dgx1(), {})

    found = gpu_nodes(nodes, {"b": result})

    assert [node.name for node in found] == ["a", "b"]
    assert (found[1].topology, found[1].state) == (dgx1().stable_facts(), result)
    assert (len(found[0].topology.gpus), found[0].state) == (4, None)


def test_a_node_that_advertises_too_many_gpus_hides_no_other() -> None:
    """Time slicing without labels: 8 GPUs in 16 shares each."""
    good, shared = gpu_nodes([metadata("good", {}), metadata("shared", {})], {}, {"good": 8, "shared": 128})

    assert (len(good.topology.gpus), good.annotation_error) == (8, None)
    assert (len(shared.topology.gpus), shared.name) == (0, "shared")
    assert shared.annotation_error == "the node advertises 128 GPUs; more than 64 are shares of GPUs, or an error"


def test_a_damaged_annotation_leaves_the_facts_of_the_labels_and_the_reason() -> None:
    facts = encode_topology(dgx1())

    (node,) = gpu_nodes([metadata("n", facts.labels, {keys.TOPOLOGY.key: '{"v":9}'})], {})

    assert len(node.topology.gpus) == 8
    assert node.topology.nvlink is None
    assert node.annotation_error is not None
    assert "version 9" in node.annotation_error


def test_gpus_without_an_allocation_are_free() -> None:
    node = gpu_node("n", dgx1(), {"train": (0, 1), "serve": (4,)})

    assert node.unheld == frozenset({2, 3, 5, 6, 7})
    assert node.held_devices == {0: 1, 1: 1, 4: 1}


def test_shares_of_a_gpu_are_counted_and_unknown_devices_are_not() -> None:
    uuid = str(dgx1().get_gpu(3).uuid)
    shares = tuple(DeviceAllocation(uuid, PodRef("ns", f"p{n}", "main"), replica=n) for n in range(3))
    stranger = DeviceAllocation("GPU-of-another-boot", PodRef("ns", "p", "main"))
    result = msgspec.structs.replace(state(dgx1(), {}), allocations=(*shares, stranger))

    assert GpuNode("n", dgx1(), result).held_devices == {3: 3}


def test_allocations_of_gpus_without_uuids_leave_free_gpus_unknown() -> None:
    """As after the loss of the node's annotation: the labels have no UUIDs."""
    bare = msgspec.structs.replace(dgx1(), gpus=tuple(msgspec.structs.replace(g, uuid=None) for g in dgx1().gpus))

    held = GpuNode("n", bare, state(dgx1(), {"train": (0, 1)}))
    idle = GpuNode("n", bare, state(dgx1(), {}))

    assert (held.held_devices, held.is_reported_at(NOW)) == (None, False)
    assert idle.held_devices == {}


def test_a_lost_gpu_is_not_free() -> None:
    lost = {gpu.index for gpu in h100_lost_gpu().gpus if not gpu.usable}

    assert gpu_node("n", h100_lost_gpu()).unheld == frozenset(range(8)) - lost


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(None, id="no agent"),
        pytest.param(NodeGpus("2026-11-21T12:00:00Z", "", "0.1.0", None), id="no socket of the kubelet"),
    ],
)
def test_unknown_allocations_leave_free_gpus_unknown(result: NodeGpus | None) -> None:
    node = GpuNode("n", hgx_h100(), result)

    assert (node.unheld, node.held_devices) == (None, None)


@pytest.mark.parametrize(
    ("observed", "age"),
    [
        pytest.param("2026-11-21T11:58:30Z", timedelta(seconds=90), id="in UTC"),
        pytest.param("2026-11-21T12:58:30+01:00", timedelta(seconds=90), id="elsewhere"),
        pytest.param("2026-11-21T11:58:30", timedelta(seconds=90), id="without a zone"),
        pytest.param("yesterday", None, id="no time at all"),
    ],
)
def test_the_age_of_an_observation(observed: str, age: timedelta | None) -> None:
    assert GpuNode("n", dgx1(), NodeGpus(observed, "", "0.1.0")).age(NOW) == age
    assert GpuNode("n", dgx1()).age(NOW) is None


def silent_node(requested: dict[str, int] | None, *, unusable: tuple[str, ...] = (), **more: int | None) -> GpuNode:
    """A node of two islands of four GPUs, whose kubelet reports nothing. ``requested``: by its pods."""
    return GpuNode("n", dgx1(), None, None, unusable, requested, more.get("allocatable", 8))


@pytest.mark.parametrize(
    ("node", "free", "count"),
    [
        pytest.param(silent_node(None), None, None, id="pods not read"),
        pytest.param(silent_node({}), frozenset(range(8)), 8, id="no GPU pod: all are free"),
        pytest.param(silent_node({"nvidia.com/gpu": 3}), None, 5, id="it is not known which"),
        pytest.param(silent_node({"nvidia.com/gpu": 8}), frozenset(), 0, id="all in use"),
        pytest.param(silent_node({"nvidia.com/gpu": 3}, allocatable=6), None, 3, id="not all offered"),
        pytest.param(silent_node({}, allocatable=6), None, 6, id="no GPU pod, not all offered"),
        pytest.param(silent_node({"nvidia.com/gpu": 3}, allocatable=None), None, 5, id="offer unknown"),
        pytest.param(silent_node({"nvidia.com/gpu": 3}, allocatable=32), None, None, id="shares"),
        pytest.param(silent_node({"nvidia.com/gpu.shared": 1}), None, None, id="shares by name"),
        pytest.param(silent_node({"nvidia.com/gpu": 3}, unusable=("cordoned",)), frozenset(), 0, id="cordoned"),
    ],
)
def test_without_a_report_the_requests_of_pods_count(
    node: GpuNode, free: frozenset[int] | None, count: int | None
) -> None:
    assert (node.free_at(NOW), node.free_count_at(NOW)) == (free, count)


@pytest.mark.parametrize(
    ("offered", "free", "count"),
    [
        pytest.param(None, frozenset({0, 1, 2, 3, 4}), 5, id="not known"),
        pytest.param(8, frozenset({0, 1, 2, 3, 4}), 5, id="all"),
        pytest.param(32, frozenset({0, 1, 2, 3, 4}), 5, id="shares"),
        pytest.param(7, None, 4, id="one is unhealthy: it is not known which"),
        pytest.param(3, frozenset(), 0, id="none but the used ones"),
        pytest.param(0, frozenset(), 0, id="none"),
    ],
)
def test_gpus_that_the_kubelet_does_not_offer_are_not_free(
    offered: int | None, free: frozenset[int] | None, count: int
) -> None:
    node = msgspec.structs.replace(gpu_node("n", dgx1(), {"train": (5, 6, 7)}), allocatable=offered)

    assert (node.free_at(NOW), node.free_count_at(NOW)) == (free, count)


def test_unused_gpus_of_a_node_that_takes_no_pods_are_draining_or_tainted() -> None:
    cordoned, control_plane = (silent_node({}, unusable=(why,)) for why in ("cordoned", "control plane"))

    assert (cordoned.draining_count_at(NOW), cordoned.tainted_count_at(NOW)) == (8, 0)
    assert (control_plane.draining_count_at(NOW), control_plane.tainted_count_at(NOW)) == (0, 8)
