"""The rings through the sets that a pod may get."""

from __future__ import annotations

import pytest

from gputopo.rings import Ring
from scheduler_core.allocation.gpu_sets import ExactSets, subsets
from scheduler_core.allocation.machine_shape import shape_of
from scheduler_core.evaluation.possible_gpus import possible_rings
from tests.scheduler_core.allocation.machines16 import MACHINES16


def worst(rings: list[Ring]) -> Ring:
    return min(rings, key=lambda ring: ring.sort_key)


@pytest.mark.parametrize("size", [2, 8, 14])
@pytest.mark.parametrize("machine", sorted(MACHINES16))
def test_of_many_sets_the_worst_ring_is_known_without_a_long_search(machine: str, size: int) -> None:
    """Where the links are irregular, it may be better than the worst hop."""
    shape = shape_of(MACHINES16[machine]())
    masks = tuple(sorted(subsets(0xFFFF, size)))[:256]
    rings = [ring for ring in map(shape.ring, masks) if ring is not None]

    found = worst(possible_rings(shape, ExactSets(masks)))

    assert found.sort_key <= worst(rings).sort_key
    if machine != "uneven":
        assert found == worst(rings)


def test_the_ring_of_a_single_set_is_exact() -> None:
    shape = shape_of(MACHINES16["uneven"]())

    assert possible_rings(shape, ExactSets((0xFFFF,))) == [shape.ring(0xFFFF)]
