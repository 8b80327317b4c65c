"""The strategies reach what they promise: a property test is worth what its inputs are."""

from hypothesis import given, settings

from gputopo.model import Health, Interconnect, NodeTopology
from tests.property.strategies import topologies


@settings(max_examples=50, deadline=None)
@given(topologies())
def test_every_example_is_a_topology_whose_islands_cover_its_usable_gpus(topology: NodeTopology) -> None:
    if topology.islands is None:
        assert topology.nvlink is None
    else:
        covered = sorted(index for island in topology.islands for index in island.gpus)
        assert covered == [gpu.index for gpu in topology.usable]


def test_the_examples_hold_every_interconnect_and_lost_gpus_and_mig() -> None:
    seen: set[object] = set()

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(topologies())
    def look(topology: NodeTopology) -> None:
        seen.update(island.interconnect for island in topology.islands or ())
        seen.update(gpu.health for gpu in topology.gpus)
        seen.update({"mig"} if any(gpu.mig_devices for gpu in topology.gpus) else ())

    look()

    assert seen == {*Interconnect, *Health, "mig"} - {Interconnect.PCIE}  # an island of many has NVLink
