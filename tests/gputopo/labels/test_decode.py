"""Labels alone give less knowledge, never wrong knowledge."""

import pytest

from gputopo.labels import AnnotationError, NoTopologyError, decode_topology, encode_topology
from gputopo.model import Gpu, NodeTopology, Problem, ProblemKind

NO_ANNOTATION = "the node has no annotation gputopo.io/topology"


def test_labels_of_gpu_feature_discovery_give_the_gpus_but_no_links() -> None:
    labels = {
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/gpu.family": "ampere",
        "nvidia.com/gpu.memory": "81920",
        "nvidia.com/gpu.numa": "0",
    }

    each = {"product": "NVIDIA-A100-SXM4-80GB", "architecture": "ampere", "memory_mib": 81920}
    assert decode_topology(labels, {}) == NodeTopology(
        gpus=tuple(Gpu(index=i, numa_node=0, numa_affinity="0", **each) for i in range(2)),  # type: ignore[arg-type]
        problems=(Problem("nvlink", ProblemKind.UNKNOWN, NO_ANNOTATION),),
    )


def test_an_interconnect_label_set_by_hand_is_quoted_and_not_turned_into_links() -> None:
    labels = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu-topology": "nvswitch", "nvidia.com/gpu.numa": "0_1"}

    topology = decode_topology(labels, {})

    assert topology.islands is None
    assert topology.gpus[7] == Gpu(index=7, numa_affinity="0,1")
    assert topology.problems[0].why == (
        f"{NO_ANNOTATION}; the labels say nvidia.com/gpu-topology=nvswitch, but not which GPUs"
    )


def test_shared_gpus_are_gpus_and_mig_devices_are_not() -> None:
    shared = decode_topology({"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "NVIDIA-L4-SHARED"}, {})

    assert shared.gpus[0].product == "NVIDIA-L4"
    with pytest.raises(NoTopologyError, match="the labels count MIG devices, not GPUs"):
        decode_topology(
            {"nvidia.com/gpu.count": "14", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"}, {}
        )


def test_products_of_a_mixed_node_are_not_guessed() -> None:
    labels = {
        "gputopo.io/gpus": "2",
        "product.gputopo.io/A": "1",
        "product.gputopo.io/B": "1",
        "nvidia.com/gpu.product": "A",
        "nvidia.com/gpu.memory": "100",
    }

    assert decode_topology(labels, {}).gpus == (Gpu(index=0), Gpu(index=1))


def test_an_annotation_without_gpus_beside_a_label_with_some_is_refused() -> None:
    annotations = encode_topology(NodeTopology()).annotations

    assert decode_topology({"gputopo.io/gpus": "0"}, annotations) == NodeTopology()
    with pytest.raises(AnnotationError, match=r"lists no GPU, but the label gputopo.io/gpus is 4"):
        decode_topology({"gputopo.io/gpus": "4"}, annotations)


UNUSABLE = {
    "no labels": ({}, "its labels: none about GPUs"),
    "a count that is no number": ({"nvidia.com/gpu.count": "many"}, "nvidia.com/gpu.count=many"),
    "an absurd count": ({"nvidia.com/gpu.count": "100000"}, "nvidia.com/gpu.count=100000"),
    "digits of another script": ({"nvidia.com/gpu.count": "٣"}, "nvidia.com/gpu.count=٣"),
}


@pytest.mark.parametrize(("labels", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_node_that_says_nothing_usable_is_refused_with_what_it_says(labels: dict[str, str], message: str) -> None:
    with pytest.raises(NoTopologyError) as caught:
        decode_topology(labels, {})

    assert message in str(caught.value)
    assert "run the agent on it, or label it by hand" in str(caught.value)
