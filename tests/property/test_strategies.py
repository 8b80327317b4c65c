"""The strategies produce every kind of input that the property tests need."""

from random import Random

import pytest
from hypothesis import Phase, find, given, settings

from gputopo.model import Health, Interconnect, NodeTopology
from tests.property.strategies import topologies

INTERCONNECTS = {*Interconnect} - {Interconnect.PCIE}  # of islands: one of many has NVLink


def kinds(topology: NodeTopology) -> set[object]:
    """The kinds of content in a topology."""
    found: set[object] = {island.interconnect for island in topology.islands or ()}
    found |= {gpu.health for gpu in topology.gpus}
    return found | ({"mig"} if any(gpu.mig_devices for gpu in topology.gpus) else set())


@settings(max_examples=50, deadline=None)
@given(topologies())
def test_every_example_is_a_topology_whose_islands_cover_its_usable_gpus(topology: NodeTopology) -> None:
    if topology.islands is None:
        assert topology.nvlink is None
    else:
        covered = sorted(index for island in topology.islands for index in island.gpus)
        assert covered == [gpu.index for gpu in topology.usable]
        assert {island.interconnect for island in topology.islands} <= INTERCONNECTS


@pytest.mark.parametrize("kind", [*sorted(INTERCONNECTS, key=str), *Health, "mig"], ids=str)
def test_there_are_examples_with(kind: object) -> None:
    # Searched for, each by itself: what a fixed number of examples holds depends on which modules are loaded, since
    # hypothesis draws the constants that it finds in them.
    enough = settings(max_examples=20_000, deadline=None, database=None, phases=[Phase.generate])

    found = find(topologies(), lambda topology: kind in kinds(topology), settings=enough, random=Random(0))

    assert kind in kinds(found)
