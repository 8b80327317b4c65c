"""Cost and GPU generation of a node, from labels and GPUs."""

from __future__ import annotations

import pytest

from gputopo.model import NodeTopology
from scheduler_core.cache.node_cost import NodeCost, cost_of_node, parse_cost_labels
from scheduler_core.policy.gpu_families import _PRODUCTS, GPU_FAMILIES, family_of
from tests.machines import MACHINES

H100, MIXED, NOTHING = (MACHINES[name]() for name in ("hgx_h100", "mixed", "no_gpu"))
_HOPPER = GPU_FAMILIES.index("hopper")


def cost_by(labels: dict[str, str], topology: NodeTopology | None, allocatable: int) -> NodeCost:
    return cost_of_node(parse_cost_labels(labels), topology, allocatable)


@pytest.mark.parametrize(
    ("labels", "cost"),
    [
        pytest.param({"gputopo.io/cost-per-hour": "32.80"}, 4.1, id="32.80 / 8 GPUs"),
        pytest.param({"node-cost-per-hour": "16"}, 2.0, id="the short key"),
        pytest.param({"gputopo.io/cost-per-hour": "8", "node-cost-per-hour": "16"}, 1.0, id="the long key counts"),
        pytest.param({"gputopo.io/cost-per-hour": "0"}, 0.0, id="free is a cost"),
        pytest.param({"gputopo.io/cost-per-hour": "$3"}, None, id="no number"),
        pytest.param({"gputopo.io/cost-per-hour": "-1"}, None, id="negative"),
        pytest.param({}, None, id="nothing said"),
    ],
)
def test_cost_is_per_gpu(labels: dict[str, str], cost: float | None) -> None:
    assert cost_by(labels, H100, 8) == NodeCost(cost, spot=False, generation=_HOPPER)


def test_allocatable_gpus_count_where_the_topology_lists_none() -> None:
    assert cost_by({"node-cost-per-hour": "8"}, None, 4) == NodeCost(per_gpu_hour=2.0)
    assert cost_by({"node-cost-per-hour": "8"}, NOTHING, 2) == NodeCost(per_gpu_hour=4.0)
    assert cost_by({"node-cost-per-hour": "8"}, None, 0) == NodeCost()


def test_spot_is_parsed_from_labels() -> None:
    assert cost_by({"karpenter.sh/capacity-type": "spot"}, None, 0) == NodeCost(spot=True)


def test_the_oldest_gpu_decides_the_generation() -> None:
    families = {gpu.architecture or family_of(gpu.product) for gpu in MIXED.usable}

    assert len(families) > 1
    assert cost_by({}, MIXED, 0).generation == min(GPU_FAMILIES.index(family or "") for family in families)


@pytest.mark.parametrize(
    ("product", "family"),
    [
        ("NVIDIA-H100-80GB-HBM3", "hopper"),
        ("NVIDIA A100-SXM4-80GB", "ampere"),
        ("NVIDIA-A10", "ampere"),
        ("Tesla-V100-SXM2-16GB", "volta"),
        ("NVIDIA-L4", "ada-lovelace"),
        ("NVIDIA-L40S", "ada-lovelace"),
        ("NVIDIA B200", "blackwell"),
        ("Voodoo 2", None),
        ("", None),
        (None, None),
    ],
)
def test_family_of_a_product(product: str | None, family: str | None) -> None:
    assert family_of(product) == family


def test_every_family_in_the_table_is_one_of_gpu_feature_discovery() -> None:
    assert {family for family, _ in _PRODUCTS} <= set(GPU_FAMILIES)
