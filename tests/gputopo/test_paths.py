"""The path between two GPUs, for every kind of connection."""

from itertools import permutations

import msgspec
import pytest
from hypothesis import given, settings

from gputopo.model import Gpu, Link, ModelError, NodeTopology, Nvlink, Pcie, PcieDistance, Uplink
from gputopo.paths import Path, PathKind, find_path, pcie_gbps
from gputopo.render.path import render_path
from tests.machines import (
    MACHINES,
    a40x10,
    a100_mig,
    b200_fallen_out,
    cloud_vm,
    dgx1,
    dgx1_link_down,
    h100_lost_gpu,
    h100_weak_uplink,
    hgx_h100,
    nvlink_unknown,
    rtx4090,
)
from tests.property.strategies import topologies

SOCKETS = "SYS: through the link between NUMA nodes, whose bandwidth is unknown: expect less than PCIe's"
HOST_BRIDGES = "NODE: through several PCIe host bridges of one NUMA node"


def chain(*, gbps: float | None = 50.0) -> NodeTopology:
    """Four GPUs in a row 0-1-2-3, of which nothing else is known."""
    links = tuple(Link(a=i, b=i + 1, lanes=2 - i % 2, gbps=gbps) for i in range(3))
    return NodeTopology(gpus=tuple(Gpu(index=i) for i in range(4)), nvlink=Nvlink(links=links))


def test_a_pair_with_links_of_its_own_uses_them() -> None:
    assert find_path(dgx1(), 3, 0) == Path(
        a=3,
        b=0,
        kind=PathKind.NVLINK,
        lanes=2,
        distance=PcieDistance.PHB,
        gbps=100.0,
        why=("connected directly by 2 NVLinks",),
    )


def test_a_pair_in_a_fabric_has_the_bandwidth_of_the_weaker_uplink() -> None:
    assert find_path(h100_weak_uplink(), 3, 4) == Path(
        a=3,
        b=4,
        kind=PathKind.NVSWITCH,
        lanes=17,
        distance=PcieDistance.SYS,
        gbps=850.0,
        why=(
            "connected through an NVSwitch fabric, each by at least 17 NVLinks",
            "degraded: 17 of 18 NVLinks active",
        ),
    )


def test_links_of_its_own_are_preferred_to_a_fabric() -> None:
    both = Nvlink(
        links=(Link(a=0, b=1, lanes=1, gbps=25.0),),
        uplinks=(Uplink(gpu=0, fabric=0, lanes=2, gbps=50.0), Uplink(gpu=1, fabric=0, lanes=2, gbps=50.0)),
    )

    found = find_path(NodeTopology(gpus=(Gpu(index=0), Gpu(index=1)), nvlink=both), 0, 1)

    assert (found.kind, found.lanes, found.gbps) == (PathKind.NVLINK, 1, 25.0)
    assert found.why == ("connected directly by 1 NVLink",)


def test_fabrics_do_not_reach_each_other() -> None:
    apart = Nvlink(uplinks=(Uplink(gpu=0, fabric=0, lanes=2), Uplink(gpu=1, fabric=1, lanes=2)))

    assert find_path(NodeTopology(gpus=(Gpu(index=0), Gpu(index=1)), nvlink=apart), 0, 1).kind is PathKind.PCIE


def test_the_speed_of_an_assumed_fabric_is_not_known() -> None:
    found = find_path(cloud_vm(), 0, 7)

    assert (found.kind, found.lanes, found.gbps) == (PathKind.NVSWITCH, 18, None)
    assert found.why[1] == "the NVLink bandwidth is unknown"


def test_a_copy_takes_pcie_where_nvlink_would_have_to_hop_over_a_gpu() -> None:
    # PCIe 3.0: 0.985 GB/s a lane and direction x 16 lanes x 2 directions = 31.52
    assert find_path(dgx1(), 0, 5) == Path(
        a=0,
        b=5,
        kind=PathKind.NVLINK_HOPS,
        lanes=1,
        hops=(1,),
        distance=PcieDistance.SYS,
        gbps=31.5,
        why=(
            "no NVLink connects them",
            (
                "NVLink reaches from one to the other through GPU1, but does not route over a GPU: "
                "a CUDA peer-to-peer copy takes PCIe"
            ),
            "NCCL can relay through GPU1 over NVLink, at most 50 GB/s both ways",
            SOCKETS,
            "PCIe generation 3 x16 of GPU0: at most 31.5 GB/s both ways",
        ),
    )


def test_over_two_gpus_only_a_ring_can_use_nvlink() -> None:
    found = find_path(chain(), 3, 0)

    assert (found.kind, found.hops, found.lanes, found.gbps) == (PathKind.NVLINK_HOPS, (2, 1), 1, None)
    assert found.why[2] == "NCCL can use NVLink here only by a ring through these GPUs, at most 50 GB/s both ways"


def test_hops_of_unknown_speed_give_no_bandwidth() -> None:
    assert find_path(chain(gbps=None), 0, 2).why[2] == "NCCL can relay through GPU1 over NVLink"


def test_a_link_that_is_down_is_named() -> None:
    found = find_path(dgx1_link_down(), 5, 7)

    assert (found.kind, found.hops) == (PathKind.NVLINK_HOPS, (4,))
    assert found.why[0] == "degraded: no NVLink between them is active, of 1 expected"


def test_a_gpu_out_of_its_fabric_takes_pcie_and_says_why() -> None:
    found = find_path(b200_fallen_out(), 6, 5)

    assert (found.kind, found.gbps) == (PathKind.PCIE, 126.1)
    assert found.why == (
        "degraded: no NVLink of GPU5 into its fabric is active, of 18 expected",
        HOST_BRIDGES,
        "PCIe generation 5 x16 of GPU5: at most 126.1 GB/s both ways",
    )


@pytest.mark.parametrize(
    ("pair", "distance", "way"),
    [
        pytest.param((0, 1), PcieDistance.PXB, "PXB: through several PCIe bridges, without the CPU", id="one switch"),
        pytest.param((0, 3), PcieDistance.PHB, "PHB: through a PCIe host bridge, that is the CPU", id="one socket"),
        pytest.param((0, 9), PcieDistance.SYS, SOCKETS, id="two sockets"),
    ],
)
def test_without_nvlink_it_is_pcie_by_distance(pair: tuple[int, int], distance: PcieDistance, way: str) -> None:
    found = find_path(a40x10(), *pair)

    assert (found.kind, found.distance, found.gbps) == (PathKind.PCIE, distance, 63.0)
    assert found.why == ("no NVLink connects them", way, "PCIe generation 4 x16 of GPU0: at most 63 GB/s both ways")


def test_pcie_is_bounded_by_the_narrower_gpu() -> None:
    whole = rtx4090()
    narrow = msgspec.structs.replace(whole.gpus[1], pcie=Pcie(max_generation=4, max_width=8))
    machine = msgspec.structs.replace(whole, gpus=(whole.gpus[0], narrow, *whole.gpus[2:]))

    found = find_path(machine, 0, 1)

    assert found.gbps == 31.5
    assert found.why[-1] == "PCIe generation 4 x8 of GPU1: at most 31.5 GB/s both ways"


def test_a_pcie_link_that_is_not_known_bounds_nothing() -> None:
    two = NodeTopology(gpus=(Gpu(index=0), Gpu(index=1)), nvlink=Nvlink())

    assert find_path(two, 0, 1) == Path(
        a=0,
        b=1,
        kind=PathKind.PCIE,
        why=(
            "no NVLink connects them",
            "the PCIe distance is unknown",
            "the PCIe link of GPU0 and GPU1 is unknown",
        ),
    )


@pytest.mark.parametrize(
    ("pair", "names"),
    [
        pytest.param((0, 5), "GPU0 is", id="one in MIG mode"),
        pytest.param((5, 0), "GPU0 is", id="the other"),
        pytest.param((0, 2), "GPU0 and GPU2 are", id="both"),
    ],
)
def test_mig_forbids_peers(pair: tuple[int, int], names: str) -> None:
    found = find_path(a100_mig(), *pair)

    assert (found.kind, found.lanes, found.gbps) == (PathKind.PCIE, None, 63.0)
    assert found.why[0] == (
        f"{names} in MIG mode, which forbids peer-to-peer over NVLink and PCIe: copies go through host memory"
    )


def test_no_way_leads_to_a_lost_gpu() -> None:
    assert find_path(h100_lost_gpu(), 3, 2) == Path(a=3, b=2, kind=PathKind.NONE, why=("GPU2 lost",))


def test_unknown_nvlink_is_not_pcie() -> None:
    found = find_path(nvlink_unknown(), 0, 1)

    assert (found.kind, found.distance, found.gbps) == (PathKind.UNKNOWN, PcieDistance.NODE, None)
    assert found.why[0] == "the NVLinks are unknown; without NVLink:"


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        pytest.param((4, 4), "GPU 4 and GPU 4 are the same: specify two GPUs", id="itself"),
        pytest.param((0, 8), "GPU 8 does not exist; existing: 0, 1, 2, 3, 4, 5, 6, 7", id="not there"),
    ],
)
def test_a_path_needs_two_gpus_that_are_there(pair: tuple[int, int], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        find_path(hgx_h100(), *pair)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("link", "gbps"),
    [
        pytest.param(Pcie(max_generation=3, max_width=16), 31.5, id="gen 3 x16"),
        pytest.param(Pcie(max_generation=6, max_width=16), 240.0, id="gen 6 x16"),
        pytest.param(Pcie(max_generation=1, max_width=1), 0.5, id="gen 1 x1"),
        pytest.param(Pcie(generation=4, width=16), None, id="current values are not maxima"),
        pytest.param(Pcie(max_generation=4), None, id="width unknown"),
        pytest.param(Pcie(max_generation=9, max_width=16), None, id="generation of the future"),
    ],
)
def test_the_rate_of_a_pcie_link(link: Pcie, gbps: float | None) -> None:
    assert pcie_gbps(Gpu(index=0, pcie=link)) == gbps


@pytest.mark.parametrize("name", MACHINES)
def test_a_path_is_the_same_in_both_directions(name: str) -> None:
    machine = MACHINES[name]()
    for a, b in permutations([gpu.index for gpu in machine.gpus], 2):
        there, back = find_path(machine, a, b), find_path(machine, b, a)
        assert (there.kind, there.gbps, there.lanes, there.distance, len(there.hops)) == (
            back.kind, back.gbps, back.lanes, back.distance, len(back.hops),
        )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(topologies(max_gpus=6))
def test_nvlink_connects_exactly_the_gpus_of_an_island(topology: NodeTopology) -> None:
    over_nvlink = {PathKind.NVLINK, PathKind.NVSWITCH, PathKind.NVLINK_HOPS}
    island_of = {gpu: island for island in topology.islands or () for gpu in island.gpus}

    for a, b in permutations([gpu.index for gpu in topology.usable], 2):
        together = topology.islands is not None and island_of[a] == island_of[b]
        assert (find_path(topology, a, b).kind in over_nvlink) == together


def test_in_words_the_answer_comes_first() -> None:
    assert render_path(find_path(dgx1(), 0, 3)) == (
        "GPU0 ↔ GPU3: NVLink (2 lanes), at most 100 GB/s both ways\n  • connected directly by 2 NVLinks\n"
    )


@pytest.mark.parametrize(
    ("found", "first"),
    [
        pytest.param(
            find_path(dgx1(), 0, 1), "GPU0 <-> GPU1: NVLink (1 lane), at most 50 GB/s both ways", id="one link"
        ),
        pytest.param(
            find_path(cloud_vm(), 0, 1),
            "GPU0 <-> GPU1: NVLink through NVSwitch (18 lanes), bandwidth unknown",
            id="fabric of unknown speed",
        ),
        pytest.param(
            find_path(dgx1(), 0, 5),
            "GPU0 <-> GPU5: PCIe (NVLink only through other GPUs), at most 31.5 GB/s both ways",
            id="hops",
        ),
        pytest.param(find_path(rtx4090(), 0, 5), "GPU0 <-> GPU5: PCIe, at most 63 GB/s both ways", id="pcie"),
        pytest.param(find_path(h100_lost_gpu(), 2, 5), "GPU2 <-> GPU5: no path", id="lost"),
        pytest.param(find_path(nvlink_unknown(), 2, 5), "GPU2 <-> GPU5: unknown", id="unknown"),
    ],
)
def test_in_plain_ascii_too(found: Path, first: str) -> None:
    text = render_path(found, ascii_only=True)

    assert text.splitlines()[0] == first
    assert text.isascii()
    assert [line.removeprefix("  - ") for line in text.splitlines()[1:]] == list(found.why)
