"""Facts that a simulation assumes: against bundled machines without the facts, and by hand."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.cli.source import topology_of
from gputopo.model import FactGroup, Gpu, Link, Nic, NodeTopology, Nvlink, PcieDistance
from scheduler_core.simulation.assumed_facts import LANE_GBPS, MissingFact, complete_machine

NODE, PHB, PXB, SYS = PcieDistance.NODE, PcieDistance.PHB, PcieDistance.PXB, PcieDistance.SYS


def _pair(one: int | None = None, other: int | None = None, nics: tuple[Nic, ...] = ()) -> NodeTopology:
    """Return two GPUs on these NUMA nodes, with an NVLink that hides their distance."""
    gpus = (Gpu(index=0, uuid="a", numa_node=one), Gpu(index=1, uuid="b", numa_node=other))
    nvlink = Nvlink(links=(Link(a=0, b=1, lanes=2, gbps=80.0),))
    return NodeTopology(gpus=gpus, nvlink=nvlink, nics=nics)


def _nic(*distances: PcieDistance | None) -> Nic:
    return Nic(name="n", distances=distances)


@pytest.mark.parametrize("machine", ["a100-pcie", "dgx-a100", "dgx-1", "a6000x3", "hgx-h200", "one-sided-link"])
def test_what_a_matrix_hides_is_completed_as_the_machine_has_it(machine: str) -> None:
    """The bandwidth too, where an NVLink has 50 GB/s."""
    known = topology_of(machine)
    assert known.nvlink is not None
    linked = {(link.a, link.b) for link in known.nvlink.links} or {
        (a.gpu, b.gpu) for a in known.nvlink.uplinks for b in known.nvlink.uplinks
    }
    hidden = msgspec.structs.replace(
        known,
        gpus=tuple(msgspec.structs.replace(gpu, uuid=None) for gpu in known.gpus),
        pcie=tuple(
            tuple(None if {(a, b), (b, a)} & linked else distance for b, distance in enumerate(row))
            for a, row in enumerate(known.pcie)
        ),
    )

    found = complete_machine(hidden)

    assert found.topology.pcie == known.pcie
    assert len({gpu.uuid for gpu in found.topology.gpus} - {None}) == len(known.gpus)


def test_a_machine_with_all_facts_stays_the_same_object() -> None:
    known = topology_of("a100-pcie")

    found = complete_machine(known)

    assert found.topology is known
    assert not found.missing


@pytest.mark.parametrize(
    ("topology", "distance", "is_assumed"),
    [
        pytest.param(_pair(), SYS, True, id="nothing known"),
        pytest.param(_pair(0, 0), NODE, True, id="one NUMA node"),
        pytest.param(_pair(0, 1), SYS, False, id="two NUMA nodes"),
        pytest.param(_pair(0, 0, (_nic(PXB, PXB),)), PXB, True, id="equally near a NIC"),
        pytest.param(
            _pair(0, 0, (_nic(PXB, PHB),)), PHB, False, id="not equally near a NIC: only one distance is possible"
        ),
        pytest.param(_pair(0, 0, (_nic(None, PHB),)), NODE, True, id="the distance to the NIC is unknown"),
    ],
)
def test_a_hidden_distance_is_the_largest_possible(
    topology: NodeTopology, distance: PcieDistance, is_assumed: bool
) -> None:
    found = complete_machine(topology)

    assert found.topology.pcie == ((None, distance), (distance, None))
    assert (MissingFact.PCIE in found.missing) is is_assumed


def test_a_distance_through_a_third_gpu_bounds_a_hidden_one() -> None:
    gpus = tuple(Gpu(index=index) for index in range(3))
    rows = ((None, None, PXB), (None, None, PXB), (PXB, PXB, None))

    found = complete_machine(NodeTopology(gpus=gpus, nvlink=Nvlink(), pcie=rows))

    assert found.topology.pcie[0][1] is PXB


def test_an_unknown_bandwidth_is_the_one_of_the_other_nvlinks_else_50_for_each() -> None:
    gpus = tuple(Gpu(index=index) for index in range(3))
    links = (Link(a=0, b=1, lanes=2), Link(a=1, b=2, lanes=4, gbps=160.0))

    both, one = (complete_machine(NodeTopology(gpus=gpus, nvlink=Nvlink(links=each))) for each in (links, links[:1]))

    assert both.topology.nvlink is not None
    assert one.topology.nvlink is not None
    assert [link.gbps for link in both.topology.nvlink.links] == [80.0, 160.0]
    assert [link.gbps for link in one.topology.nvlink.links] == [2 * LANE_GBPS]
    assert MissingFact.BANDWIDTH in both.missing & one.missing


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"nvlink": None}, id="no source shows them"),
        pytest.param({"nvlink": Nvlink(unknown=((0, 1),))}, id="a pair is unknown"),
        pytest.param({"uncertain": (FactGroup.NVLINK,)}, id="the input is damaged"),
    ],
)
def test_unknown_nvlinks_are_named_and_not_assumed(more: dict[str, object]) -> None:
    topology = msgspec.structs.replace(_pair(0, 1), **more)

    found = complete_machine(topology)

    assert MissingFact.NVLINKS in found.missing
    assert found.topology.nvlink == topology.nvlink


def test_a_single_gpu_lacks_no_nvlinks() -> None:
    assert not complete_machine(NodeTopology(gpus=(Gpu(index=0),))).missing
