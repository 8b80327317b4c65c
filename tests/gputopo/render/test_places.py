"""The positions of devices, derived only from distances and affinities."""

import msgspec
import pytest
from hypothesis import given, settings

from gputopo.model import Gpu, Nic, NodeTopology, NumaNode, PcieDistance
from gputopo.render.places import DeviceGroup, deviceless, numa_places
from tests.machines import MACHINES, a40x10, dgx_a100, gb200_tray, hgx_h100, no_gpu
from tests.property.strategies import topologies

PIX, PXB, PHB, NODE, SYS = PcieDistance


def layout(topology: NodeTopology) -> list[tuple[str | None, list[str]]]:
    """Per NUMA node its groups, each as ``"0 1 mlx5_0"``."""
    return [(place.numa, [_members(group) for group in place.groups]) for place in numa_places(topology)]


def _members(group: DeviceGroup) -> str:
    return " ".join([*(str(gpu.index) for gpu in group.gpus), *(nic.name for nic in group.nics)])


def two_gpus(*, distance: PcieDistance | None, nic: Nic, numa: tuple[int | None, int | None] = (0, 1)) -> NodeTopology:
    return NodeTopology(
        gpus=tuple(Gpu(index=i, numa_node=node) for i, node in enumerate(numa)),
        pcie=((None, distance), (distance, None)),
        nics=(nic,),
    )


def test_switches_are_groups_without_a_cpu_in_between() -> None:
    assert layout(a40x10()) == [("0", ["0 1 2", "3 4"]), ("1", ["5 6 7", "8 9 mlx5_0"])]


def test_nics_join_the_gpus_behind_their_switch_and_others_come_last() -> None:
    assert layout(hgx_h100())[0] == ("0", ["0 mlx5_0", "1 mlx5_1", "2 mlx5_2", "3 mlx5_3", "mlx5_8"])


def test_a_numa_node_with_nics_only_is_a_place() -> None:
    assert [numa for numa, _ in layout(dgx_a100())] == ["1", "2", "3", "4", "5", "7"]
    assert layout(dgx_a100())[1] == ("2", ["mlx5_4", "mlx5_5"])


def test_nodes_without_devices_are_those_with_cpus() -> None:
    assert [node.id for node in deviceless(dgx_a100())] == [0, 6]
    assert [node.id for node in deviceless(no_gpu())] == [0, 1]
    assert deviceless(gb200_tray()) == ()  # what is left there is GPU memory


def test_no_node_is_without_devices_while_a_device_may_sit_anywhere() -> None:
    nodes = (NumaNode(id=0, cpus="0-7"), NumaNode(id=1, cpus="8-15"))

    assert [node.id for node in deviceless(NodeTopology(gpus=(Gpu(index=0, numa_node=0),), numa_nodes=nodes))] == [1]
    assert deviceless(NodeTopology(gpus=(Gpu(index=0),), numa_nodes=nodes)) == ()
    assert deviceless(NodeTopology(gpus=(Gpu(index=0, numa_affinity="0-1"),), numa_nodes=nodes)) == ()


@pytest.mark.parametrize(
    ("nic", "expected"),
    [
        pytest.param(
            Nic(name="nic", numa_node=0, distances=(SYS, PXB)),
            [("0", ["0"]), ("1", ["1 nic"])],
            id="its switch decides",
        ),
        pytest.param(
            Nic(name="nic", numa_node=0, distances=(None, None)),
            [("0", ["0", "nic"]), ("1", ["1"])],
            id="then its node",
        ),
        pytest.param(
            Nic(name="nic", distances=(SYS, NODE)), [("0", ["0"]), ("1", ["1", "nic"])], id="then a host bridge"
        ),
        pytest.param(
            Nic(name="nic", distances=(SYS, SYS)), [("0", ["0"]), ("1", ["1"]), (None, ["nic"])], id="or nobody knows"
        ),
    ],
)
def test_position_of_a_nic(nic: Nic, expected: list[tuple[str | None, list[str]]]) -> None:
    assert layout(two_gpus(distance=SYS, nic=nic)) == expected


def test_a_nic_can_show_that_two_gpus_share_a_switch() -> None:
    nic = Nic(name="nic", distances=(PIX, PXB))

    assert layout(two_gpus(distance=None, nic=nic, numa=(0, 0))) == [("0", ["0 1 nic"])]


def test_a_switch_of_gpus_of_unknown_node_does_not_move_a_nic_from_its_own() -> None:
    nic = Nic(name="nic", numa_node=4, distances=(PIX, SYS))

    assert layout(two_gpus(distance=SYS, nic=nic, numa=(None, None))) == [("4", ["nic"]), (None, ["0", "1"])]


def test_an_affinity_that_is_not_one_node_is_a_place_of_its_own() -> None:
    gpus = (Gpu(index=0, numa_affinity="0-1"), Gpu(index=1, numa_node=10), Gpu(index=2, numa_node=9), Gpu(index=3))
    machine = NodeTopology(gpus=gpus, numa_nodes=(NumaNode(id=9, cpus="0-7"),))

    assert layout(machine) == [("9", ["2"]), ("10", ["1"]), ("0-1", ["0"]), (None, ["3"])]
    assert [place.node and place.node.cpus for place in numa_places(machine)] == ["0-7", None, None, None]


@settings(max_examples=40, deadline=None)
@given(topologies())
def test_every_device_is_in_exactly_one_place(topology: NodeTopology) -> None:
    found = numa_places(topology)

    assert sorted(gpu.index for place in found for gpu in place.gpus) == [gpu.index for gpu in topology.gpus]
    names = [nic.name for place in found for group in place.groups for nic in group.nics]
    assert sorted(names) == sorted(nic.name for nic in topology.nics)


@pytest.mark.parametrize("name", MACHINES)
def test_grouping_does_not_depend_on_the_order_of_nics(name: str) -> None:
    machine = MACHINES[name]()
    turned = msgspec.structs.replace(machine, nics=machine.nics[::-1])

    def as_sets(topology: NodeTopology) -> list[tuple[str | None, set[frozenset[str]]]]:
        return [(numa, {frozenset(group.split()) for group in groups}) for numa, groups in layout(topology)]

    assert as_sets(turned) == as_sets(machine)
