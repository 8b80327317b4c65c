"""The best set of free GPUs, by hand on real machines and by brute force on small ones."""

from __future__ import annotations

from itertools import combinations, permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.model import NodeTopology, Nvlink
from scheduler_core.allocation.best_set import SetQuality, best_set, set_quality
from scheduler_core.allocation.gpu_sets import member_places
from scheduler_core.allocation.machine_shape import shape_of
from tests.machines import MACHINES
from tests.scheduler_core.allocation.random_graphs import graphs
from tests.scheduler_core.builders import mask

ALL = 0xFF


@pytest.mark.parametrize(
    ("machine", "free", "size", "chosen"),
    [
        # Two links join 0-3, 1-2, 4-7 and 5-6 within a socket: all alike, and 0b0110 is the lowest mask.
        pytest.param("dgx1", ALL, 2, mask(1, 2), id="cube mesh: a pair of two links, on one socket"),
        pytest.param("dgx1", ALL, 4, mask(0, 1, 2, 3), id="cube mesh: a quad"),
        pytest.param("hgx_h100", ALL, 2, mask(0, 1), id="NVSwitch: all alike, so one socket and near NICs"),
        pytest.param("hgx_h100", 0b11110001, 2, mask(4, 5), id="NVSwitch: not across the sockets"),
        pytest.param("a100_bridged", 0b1111, 2, mask(0, 1), id="bridged pair"),
        pytest.param("a100_bridged", 0b1110, 1, mask(1), id="one GPU: from the pair that is broken already"),
        pytest.param("a100_bridged", 0b1110, 2, mask(2, 3), id="the pair that is whole"),
        pytest.param("v100_ring", 0b1111, 2, mask(0, 1), id="ring: neighbours on one node"),
        pytest.param("rtx4090", ALL, 2, mask(0, 3), id="PCIe: under one socket, one of them beside the NIC"),
        pytest.param("a6000_pair_and_one", 0b111, 1, mask(2), id="one GPU: the one without a bridge"),
        pytest.param("b200_fallen_out", ALL, 1, mask(5), id="one GPU: the one outside of the fabric"),
        pytest.param("wsl", 0b1, 1, mask(0), id="the only one"),
    ],
)
def test_best_set(machine: str, free: int, size: int, chosen: int) -> None:
    found = best_set(shape_of(MACHINES[machine]()), free, size)

    assert found is not None
    assert list(member_places(found.mask)) == list(member_places(chosen))


@pytest.mark.parametrize("size", [0, -1, 3], ids=["none", "fewer than none", "more than are free"])
def test_impossible_size(size: int) -> None:
    assert best_set(shape_of(MACHINES["a100_bridged"]()), 0b0011, size) is None


def test_quality_of_a_set() -> None:
    """The pair {0, 1} of an HGX H100: 900 GB/s over 18 lanes, one node, a NIC beside each."""
    shape = shape_of(MACHINES["hgx_h100"]())
    nics = shape.nic_nearness
    assert nics is not None

    assert set_quality(shape, ALL, mask(0, 1)) == SetQuality(
        ring=(True, 900.0, 18, 0, 0.0),
        fewer_numa_nodes=-1,
        nic=(nics[0] + nics[1]) / 2,
        whole_islands=36,  # 6 x 6 stay
        pairs=3,
    )


def test_quality_with_few_facts() -> None:
    blind = shape_of(NodeTopology(gpus=MACHINES["cloud_vm"]().gpus[:3]))

    assert set_quality(blind, 0b111, 0b011) == SetQuality(
        ring=(False, 0.0, 0, 0, 0.0), fewer_numa_nodes=-2, nic=0.0, whole_islands=1, pairs=0
    )


def test_sixteen_gpus_are_exact_and_more_are_greedy() -> None:
    dgx2 = MACHINES["dgx2"]()
    found = best_set(shape_of(dgx2), 0xFFFF, 8)
    assert found is not None
    assert found.mask == 0x00FF
    twice = tuple(
        msgspec.structs.replace(gpu, index=at, numa_node=at // 8) for at, gpu in enumerate(dgx2.gpus + dgx2.gpus[:8])
    )
    larger = shape_of(NodeTopology(gpus=twice, nvlink=Nvlink()))

    grown = best_set(larger, 0xFFFFFF, 8)

    assert grown is not None
    assert grown.quality.fewer_numa_nodes == -1


@settings(deadline=None, max_examples=100)
@given(graphs(most=5), st.data())
def test_no_set_is_better(bare: NodeTopology, data: st.DataObject) -> None:
    """Compared with the definition, set by set: ring, NUMA nodes, then the islands that stay whole."""
    assert bare.nvlink is not None
    links = tuple(msgspec.structs.replace(each, gbps=each.lanes * 50.0) for each in bare.nvlink.links)
    topology = msgspec.structs.replace(bare, nvlink=Nvlink(links=links))
    free = data.draw(st.integers(1, (1 << len(topology.gpus)) - 1))
    size = data.draw(st.integers(1, free.bit_count()))

    found = best_set(shape_of(topology), free, size)

    assert found is not None
    assert found.mask.bit_count() == size
    assert found.mask & ~free == 0
    best = max(_worth(topology, each, free) for each in combinations(list(member_places(free)), size))
    mine = _worth(topology, tuple(member_places(found.mask)), free)
    assert mine[0] == best[0]
    if best[0] > 0:  # over PCIe distances decide first
        assert mine == best


def _worth(topology: NodeTopology, chosen: tuple[int, ...], free: int) -> tuple[float, int, int]:
    assert topology.nvlink is not None
    assert topology.islands is not None
    rates = {(link.a, link.b): link.gbps or 0.0 for link in topology.nvlink.links}
    rings = [
        min(rates.get((min(a, b), max(a, b)), 0.0) for a, b in zip(way, (*way[1:], way[0]), strict=True))
        for way in permutations(chosen)
    ]
    left = set(member_places(free)) - set(chosen)
    nodes = len({topology.get_gpu(index).numa_node for index in chosen})
    whole = sum(len(left & set(island.gpus)) ** 2 for island in topology.islands)
    return max(rings) if len(chosen) > 1 else 0.0, -nodes, whole
