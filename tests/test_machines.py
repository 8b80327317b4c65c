"""The machines that other tests draw, print and encode are the machines they say they are."""

import pytest

from gputopo.model import PcieDistance
from tests.machines import MACHINES, dgx1, distance

SIZES = {
    "dgx1": [8],
    "dgx1_link_down": [8],
    "dgx2": [16],
    "dgx_a100": [8],
    "hgx_h100": [8],
    "hgx_b200": [8],
    "b200_fallen_out": [7, 1],
    "h100_weak_uplink": [8],
    "h100_lost_gpu": [7],
    "h100_partial": [4],
    "a100_mesh": [4],
    "a100_bridged": [2, 2],
    "a100_bridged_across": [2, 2],
    "v100_ring": [4],
    "a6000_pair_and_one": [2, 1],
    "rtx4090": [1] * 8,
    "a40x10": [1] * 10,
    "gb200_tray": [4],
    "gh200": [1],
    "ac922": [2, 2],
    "mixed": [2, 1, 1],
    "a100_mig": [5, 1, 1, 1],
    "cloud_vm": [8],
    "nvlink_unknown": None,
    "wsl": None,
    "no_gpu": None,
    "nothing_known": None,
}


@pytest.mark.parametrize("name", MACHINES)
def test_islands_have_the_sizes_of_the_machine(name: str) -> None:
    islands = MACHINES[name]().islands
    assert (None if islands is None else sorted((i.size for i in islands), reverse=True)) == SIZES[name]


def test_every_gpu_of_the_cube_mesh_uses_its_six_lanes() -> None:
    nvlink = dgx1().nvlink
    assert nvlink is not None
    assert [sum(link.lanes for link in nvlink.links if gpu in (link.a, link.b)) for gpu in range(8)] == [6] * 8


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param((0, 0, 0, 0), PcieDistance.PIX, id="same leaf"),
        pytest.param((0, 0, 0, 1), PcieDistance.PXB, id="same switch"),
        pytest.param((0, 0, 1, 0), PcieDistance.PHB, id="same host bridge"),
        pytest.param((0, 1, 0, 0), PcieDistance.NODE, id="same NUMA node"),
        pytest.param((1, 0, 0, 0), PcieDistance.SYS, id="other NUMA node"),
    ],
)
def test_the_deeper_the_common_ancestor_the_nearer(other: tuple[int, int, int, int], expected: PcieDistance) -> None:
    assert distance((0, 0, 0, 0), other) is expected
