"""Count islands by their certainly free GPUs."""

from __future__ import annotations

from scheduler_core.cache.free_islands import FreeIsland, free_islands
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.policy.policy import Policy
from tests.machines import dgx1, hgx_h100, rtx4090, v100_ring
from tests.scheduler_core.builders import NOW, occupant, record

H100, V100, RTX4090 = "NVIDIA-H100-80GB-HBM3", "Tesla-V100-SXM2-32GB", "NVIDIA-GeForce-RTX-4090"
ON_TWO = record("n2", hgx_h100(), held={"a": (0, 1)}, pods=[occupant("a", 2)])
FLEET = (record("n1", hgx_h100(), held={}), ON_TWO, record("n3", hgx_h100(), held={}))


def islands(*records: NodeRecord) -> dict[FreeIsland, int]:
    return dict(free_islands(snapshot_of(records, NOW, Policy()).states))


def test_islands_are_counted_by_their_free_gpus() -> None:
    assert islands(*FLEET) == {FreeIsland(8, H100): 2, FreeIsland(6, H100): 1}


def test_a_full_island_is_left_out() -> None:
    assert islands(record("n", hgx_h100(), held={"a": range(8)}, pods=[occupant("a", 8)])) == {}


def test_only_certainly_free_gpus_count() -> None:
    late = [occupant("late", 1)]
    assert islands(record("n", dgx1(), held={}, pods=late)) == {FreeIsland(7, V100): 1}  # any one of eight
    unheard = record("n", dgx1(), pods=[occupant("late", 3)])  # no report: any three
    assert islands(unheard) == {FreeIsland(5, V100): 1}


def test_gpus_without_nvlinks_are_islands_of_one_and_unknown_links_are_left_out() -> None:
    assert islands(record("n", rtx4090(), held={})) == {FreeIsland(1, RTX4090): 8}
    assert islands(record("n", labels={"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.count": "8"})) == {}
    assert islands(record("n")) == {}
    assert islands(record("n", v100_ring(), held={})) == {FreeIsland(4, "Tesla-V100-SXM2-16GB"): 1}
