"""Tables of products, fabric states and health bits; and the precedence of sources."""

import pytest

from agent.discover.fabric import gpu_fabric
from agent.discover.precedence import SourcePrecedence
from agent.discover.products import architecture_family, product_lane_bandwidth
from agent.snapshot import NvmlFabric
from gputopo.model import FabricState, GpuFabric, Problem, ProblemKind

FAMILIES = {
    "volta": ((7, 0), None, "volta"),
    "turing": ((7, 5), None, "turing"),
    "ampere": ((8, 6), 7, "ampere"),
    "ada": ((8, 9), None, "ada-lovelace"),
    "hopper": ((9, 0), 9, "hopper"),
    "blackwell consumer": ((12, 0), None, "blackwell"),
    "by NVML's enum": (None, 9, "hopper"),
    "younger than the table": ((99, 0), 10, "blackwell"),
    "younger than both": ((99, 0), 99, None),
    "unknown": (None, None, None),
}


@pytest.mark.parametrize(("capability", "architecture", "name"), FAMILIES.values(), ids=FAMILIES)
def test_architectures_have_the_names_that_gpu_feature_discovery_uses(
    capability: tuple[int, int] | None, architecture: int | None, name: str | None
) -> None:
    assert architecture_family(capability, architecture) == name


LANES = {
    "Tesla P100-SXM2-16GB": 40.0,
    "Tesla V100-SXM2-32GB": 50.0,
    "NVIDIA A100-SXM4-80GB": 50.0,
    "NVIDIA H100 80GB HBM3": 50.0,
    "NVIDIA A40": 28.125,
    "NVIDIA RTX A6000": 28.125,
    "NVIDIA GeForce RTX 3090": 28.125,
    "Quadro RTX 6000": 50.0,
    "NVIDIA B200": 100.0,
    "NVIDIA GB200": 100.0,
    "NVIDIA GeForce RTX 4090": None,
    "NVIDIA L40S": None,
}


@pytest.mark.parametrize(("product", "gbps"), LANES.items())
def test_the_speed_of_a_lane_by_product(product: str, gbps: float | None) -> None:
    assert product_lane_bandwidth(product) == gbps


def test_an_unknown_product_has_an_unknown_speed() -> None:
    assert product_lane_bandwidth(None) is None


UUID = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"
ZERO = "00000000-0000-0000-0000-000000000000"
FABRICS = {
    "no information": (None, None),
    "not supported": (NvmlFabric(state=0), None),
    "younger than the table": (NvmlFabric(state=9), None),
    "registered": (NvmlFabric(3, 0, UUID, 7), GpuFabric(FabricState.COMPLETED, UUID, 7)),
    "registered, no multi-node fabric": (NvmlFabric(3, 0, ZERO, 0), GpuFabric(FabricState.COMPLETED)),
    "at boot": (NvmlFabric(2, 0, ZERO, 0), GpuFabric(FabricState.IN_PROGRESS)),
    "failed": (NvmlFabric(3, 23, ZERO, 0), GpuFabric(FabricState.COMPLETED, status="INSUFFICIENT_RESOURCES")),
    "failed oddly": (NvmlFabric(3, 777, ZERO, 0), GpuFabric(FabricState.COMPLETED, status="NVML error 777")),
    # every field "false" (2), configuration "none" (1)
    "healthy": (
        NvmlFabric(3, 0, UUID, 1, health_mask=0b10_10_10_10 | 1 << 8),
        GpuFabric(FabricState.COMPLETED, UUID, 1),
    ),
    "healthy by its mask, with limited capacity": (
        NvmlFabric(3, 0, UUID, 1, health_mask=0b10_10_10_10 | 1 << 8, health_summary=3),
        GpuFabric(FabricState.COMPLETED, UUID, 1, unhealthy=("limited capacity",)),
    ),
    "unhealthy without a reason": (
        NvmlFabric(3, 0, UUID, 1, health_summary=2),
        GpuFabric(FabricState.COMPLETED, UUID, 1, unhealthy=("unhealthy",)),
    ),
    # degraded bandwidth (1 << 0), route unhealthy (1 << 4), configuration 5 << 8
    "sick": (
        NvmlFabric(3, 0, UUID, 1, health_mask=1 | 1 << 4 | 5 << 8),
        GpuFabric(
            FabricState.COMPLETED,
            UUID,
            1,
            unhealthy=("bandwidth", "route unhealthy", "incorrect configuration: insufficient nvlinks"),
        ),
    ),
    "sick in a new way": (
        NvmlFabric(3, 0, UUID, 1, health_mask=15 << 8),
        GpuFabric(FabricState.COMPLETED, UUID, 1, unhealthy=("incorrect configuration: 15",)),
    ),
}


@pytest.mark.parametrize(("info", "expected"), FABRICS.values(), ids=FABRICS)
def test_fabric_membership(info: NvmlFabric | None, expected: GpuFabric | None) -> None:
    assert gpu_fabric(info) == expected


def test_the_first_known_value_is_used_and_a_conflict_is_a_problem() -> None:
    precedence = SourcePrecedence()

    assert precedence.resolve("gpus.0.numaNode", sysfs=None, smi=1, nvml=0, nccl=None) == 1
    assert precedence.resolve("gpus.1.numaNode", sysfs=0, smi=0) == 0
    assert precedence.resolve("gpus.2.numaNode", sysfs=None) is None
    assert precedence.problems == [
        Problem("gpus.0.numaNode", ProblemKind.CONFLICT, "smi says 1 and is used; nvml says 0")
    ]
