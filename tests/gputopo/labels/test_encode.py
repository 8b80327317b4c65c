"""The labels of a topology: every label, no label for an unknown fact, and the mirrors."""

import pytest
from hypothesis import given

from gputopo.labels import encode_topology
from gputopo.labels.values import is_label_value
from gputopo.model import (
    Degradation,
    FabricState,
    Gpu,
    GpuFabric,
    Health,
    Link,
    NodeTopology,
    Nvlink,
    Uplink,
)
from tests.property.strategies import topologies

UUID = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"


def h100(index: int, **facts: object) -> Gpu:
    known = {
        "product": "NVIDIA H100 80GB HBM3",
        "architecture": "hopper",
        "compute_capability": (9, 0),
        "memory_mib": 81559,
        "numa_node": index // 4,
    }
    return Gpu(index=index, **(known | facts))  # type: ignore[arg-type]


def test_an_eight_gpu_nvswitch_node_carries_every_label() -> None:
    fabric = GpuFabric(FabricState.COMPLETED, UUID, 1)
    topology = NodeTopology(
        gpus=tuple(h100(index, fabric=fabric) for index in range(8)),
        nvlink=Nvlink(uplinks=tuple(Uplink(gpu=index, fabric=0, lanes=18, gbps=900.0) for index in range(8))),
    )

    facts = encode_topology(topology)

    assert facts.labels == {
        "gputopo.io/schema": "1",
        "gputopo.io/gpus": "8",
        "gputopo.io/degraded": "false",
        "product.gputopo.io/NVIDIA-H100-80GB-HBM3": "8",
        "gputopo.io/interconnect": "nvswitch",
        "gputopo.io/islands": "8",
        "gputopo.io/largest-island": "8",
        "gputopo.io/island-bandwidth": "900",
        "gputopo.io/numa-layout": "4-4",
        "gputopo.io/vram-mib": "81559",
        "gputopo.io/fabric": f"{UUID}.1",
    }
    assert facts.mirrors == {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.clique": f"{UUID}.1",
        "nvidia.com/gpu-topology": "nvswitch",
        "nvidia.com/gpu.numa": "0_1",
    }
    assert list(facts.annotations) == ["gputopo.io/topology"]


def test_an_unknown_fact_has_no_label() -> None:
    topology = NodeTopology(gpus=(Gpu(index=0, numa_node=0, memory_mib=100), Gpu(index=1)))

    facts = encode_topology(topology)

    assert facts.labels == {"gputopo.io/schema": "1", "gputopo.io/gpus": "2"}
    assert facts.mirrors == {}  # the count is that of one product


def test_a_node_without_gpus_is_an_error() -> None:
    facts = encode_topology(NodeTopology(nvlink=Nvlink()))

    assert facts.labels == {
        "gputopo.io/schema": "1",
        "gputopo.io/gpus": "0",
        "gputopo.io/degraded": "false",
        "gputopo.io/interconnect": "none",
    }
    assert facts.mirrors == {"nvidia.com/gpu.count": "0", "nvidia.com/gpu-topology": "none"}


def test_mixed_products_are_counted_each_and_the_mirror_names_the_most_frequent_then_the_first_by_name() -> None:
    products = ("NVIDIA B", "NVIDIA A", "NVIDIA B", "NVIDIA A", "NVIDIA C")
    machine = tuple(Gpu(index=index, product=product, memory_mib=100 + index) for index, product in enumerate(products))

    facts = encode_topology(NodeTopology(gpus=machine))

    counts = {key: value for key, value in facts.labels.items() if key.startswith("product.")}
    assert counts == {
        "product.gputopo.io/NVIDIA-A": "2",
        "product.gputopo.io/NVIDIA-B": "2",
        "product.gputopo.io/NVIDIA-C": "1",
    }
    assert facts.mirrors["nvidia.com/gpu.product"] == "NVIDIA-A"
    assert facts.mirrors["nvidia.com/gpu.memory"] == "101"
    assert facts.labels["gputopo.io/vram-mib"] == "100"


def test_the_mirrored_count_is_that_of_the_mirrored_product() -> None:
    """GPU Feature Discovery counts the GPUs of the product that it names."""
    products = ("A100-40GB",) * 7 + ("A100-80GB",)
    mixed = NodeTopology(gpus=tuple(Gpu(index=index, product=product) for index, product in enumerate(products)))
    unread = NodeTopology(gpus=(*mixed.gpus[:7], Gpu(index=7)))

    assert encode_topology(mixed).mirrors == {"nvidia.com/gpu.product": "A100-40GB", "nvidia.com/gpu.count": "7"}
    assert encode_topology(mixed).labels["gputopo.io/gpus"] == "8"
    assert encode_topology(unread).mirrors == {"nvidia.com/gpu.product": "A100-40GB"}


def test_products_that_spell_alike_are_counted_together() -> None:
    facts = encode_topology(NodeTopology(gpus=(Gpu(index=0, product="A B"), Gpu(index=1, product="A-B"))))

    assert facts.labels["product.gputopo.io/A-B"] == "2"


def test_a_lost_gpu_is_not_counted_and_the_node_is_degraded() -> None:
    topology = NodeTopology(
        gpus=(h100(0), h100(1, health=Health.LOST)), degraded=(Degradation("gpu1", "lost"),), nvlink=Nvlink()
    )

    labels = encode_topology(topology).labels

    assert (labels["gputopo.io/gpus"], labels["gputopo.io/degraded"]) == ("1", "true")


def test_a_node_with_mig_does_not_mirror_what_the_mig_strategy_decides() -> None:
    mirrors = encode_topology(NodeTopology(gpus=(h100(0, mig_enabled=True), h100(1)))).mirrors

    assert "nvidia.com/gpu.count" not in mirrors
    assert "nvidia.com/gpu.memory" not in mirrors
    assert mirrors["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"


def pairs(count: int, *links: Link) -> NodeTopology:
    return NodeTopology(gpus=tuple(Gpu(index=index) for index in range(count)), nvlink=Nvlink(links=links))


ISLANDS = {
    "bridged pair beside singles": (
        pairs(4, Link(a=1, b=2, lanes=4, gbps=112.0)),
        {"interconnect": "nvlink", "islands": "2-1-1", "largest-island": "2", "island-bandwidth": "112"},
    ),
    "unequal islands of one size": (
        pairs(4, Link(a=0, b=1, lanes=2, gbps=100.0), Link(a=2, b=3, lanes=4, gbps=200.0)),
        {"interconnect": "nvlink", "islands": "2-2", "largest-island": "2", "island-bandwidth": "200"},
    ),
    "PCIe only": (pairs(2), {"interconnect": "pcie", "islands": "1-1", "largest-island": "1"}),
    "one GPU": (pairs(1), {"interconnect": "none", "islands": "1", "largest-island": "1"}),
    "unknown speed": (
        pairs(2, Link(a=0, b=1, lanes=4)),
        {"interconnect": "nvlink", "islands": "2", "largest-island": "2"},
    ),
}


@pytest.mark.parametrize(("topology", "expected"), ISLANDS.values(), ids=ISLANDS)
def test_island_labels(topology: NodeTopology, expected: dict[str, str]) -> None:
    labels = encode_topology(topology).labels

    names = ("interconnect", "islands", "largest-island", "island-bandwidth")
    assert {name: labels[f"gputopo.io/{name}"] for name in names if f"gputopo.io/{name}" in labels} == expected


def test_uncertain_islands_have_no_labels() -> None:
    facts = encode_topology(NodeTopology(gpus=(h100(0), h100(1)), nvlink=Nvlink(unknown=((0, 1),))))

    assert not [key for key in facts.labels if "island" in key or "interconnect" in key]
    assert "nvidia.com/gpu-topology" not in facts.mirrors


@given(topologies())
def test_every_label_is_valid_for_kubernetes(topology: NodeTopology) -> None:
    facts = encode_topology(topology)

    for key, value in (facts.labels | facts.mirrors).items():
        assert is_label_value(key.partition("/")[2]), key
        assert is_label_value(value), (key, value)
