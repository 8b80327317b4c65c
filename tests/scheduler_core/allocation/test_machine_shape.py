"""The tables of a machine's GPUs."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.model import Degradation, NodeTopology, Nvlink, PcieDistance
from scheduler_core.allocation.machine_shape import shape_of
from tests.machines import MACHINES
from tests.scheduler_core.builders import mask


def test_whole_and_partitioned_gpus() -> None:
    mig = shape_of(MACHINES["a100_mig"]())
    lost = shape_of(MACHINES["h100_lost_gpu"]())

    assert (mig.whole, mig.partitioned) == (0b11111000, 0b00000111)
    assert (lost.whole, lost.partitioned) == (0b11111011, 0)


def test_islands_are_sets_of_places() -> None:
    assert shape_of(MACHINES["a100_bridged"]()).islands == (0b0011, 0b1100)
    assert shape_of(MACHINES["nvlink_unknown"]()).islands is None


def test_machines_that_differ_in_names_only_share_a_shape() -> None:
    one = MACHINES["hgx_h100"]()
    gpus = tuple(msgspec.structs.replace(gpu, uuid=f"other-{gpu.index}", bus_id=None, minor=7) for gpu in one.gpus)
    other = msgspec.structs.replace(one, gpus=gpus, machine="else", boot_id="x", driver_version="1", problems=())

    assert shape_of(one) is shape_of(other)
    assert shape_of(one) is not shape_of(msgspec.structs.replace(one, nvlink=Nvlink()))


def test_products_are_spelled_as_in_labels() -> None:
    assert shape_of(MACHINES["hgx_h100"]()).gpus[0].product == "NVIDIA-H100-80GB-HBM3"
    assert shape_of(NodeTopology(gpus=())).gpus == ()


def test_points_equal_those_of_the_device_plugin() -> None:
    """Bridged pair across two host bridges of a node: 20 + 12 x 100; across the sockets: 10."""
    assert shape_of(MACHINES["a100_bridged"]()).points == (
        (
            (0, 1220, 10, 10),
            (1220, 0, 10, 10),
            (10, 10, 0, 1220),
            (10, 10, 1220, 0),
        ),
    )


def test_points_are_unknown_if_a_distance_is_unknown() -> None:
    whole = MACHINES["a100_bridged"]()
    row = (None, None, PcieDistance.SYS, PcieDistance.SYS)
    torn = (row, *((row[at] if at < 1 else None, *whole.pcie[at][1:]) for at in (1, 2, 3)))
    torn = tuple(tuple(torn[max(a, b)][min(a, b)] if a != b else None for b in range(4)) for a in range(4))

    assert shape_of(msgspec.structs.replace(whole, pcie=torn)).points is None
    assert shape_of(msgspec.structs.replace(whole, pcie=())).points is None
    assert shape_of(msgspec.structs.replace(whole, nvlink=None)).points is None


def test_nearest_nic_counts() -> None:
    """One NIC behind GPU 3's host bridge: PHB 0.6; NODE 0.4 on its socket; SYS 0.2 on the other."""
    near = shape_of(MACHINES["rtx4090"]()).nic_nearness

    assert near == pytest.approx((0.4, 0.4, 0.4, 0.6, 0.2, 0.2, 0.2, 0.2))
    assert shape_of(MACHINES["a100_bridged"]()).nic_nearness is None


def test_nic_of_unknown_distance_is_not_near() -> None:
    whole = MACHINES["rtx4090"]()
    unknown = msgspec.structs.replace(whole.nics[0], distances=(None,) * 8)

    assert shape_of(msgspec.structs.replace(whole, nics=(unknown,))).nic_nearness == (0.0,) * 8


@pytest.mark.parametrize(
    ("what", "hurt"),
    [
        ("gpu3", mask(3)),
        ("gpu3.nvlink", mask(3)),
        ("gpu2-gpu5", mask(2, 5)),
        ("fabric", mask(*range(8))),
        ("gpu77", mask(*range(8))),
    ],
)
def test_degradations_name_gpus_or_affect_all(what: str, hurt: int) -> None:
    topology = msgspec.structs.replace(MACHINES["hgx_h100"](), degraded=(Degradation(what, "why"),))

    assert shape_of(topology).degraded == hurt


def test_numa_nodes() -> None:
    shape, unknown = shape_of(MACHINES["ac922"]()), shape_of(MACHINES["cloud_vm"]())

    assert [shape.count_numa_nodes(each) for each in (0b0011, 0b0110, 0b1000)] == [1, 2, 1]
    assert shape.on_numa(8, 0b0111) == 0b0100
    assert unknown.count_numa_nodes(0b1) is None
