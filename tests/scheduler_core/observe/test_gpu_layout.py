"""The layout of GPUs that are not certain."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputopo.paths import PathKind
from scheduler_core.allocation.gpu_sets import ExactSets, SomeSet
from scheduler_core.allocation.machine_shape import shape_of
from scheduler_core.cache.node_state import NodeState
from scheduler_core.observe.gpu_layout import (
    GpuLayout,
    LayoutRange,
    is_unknown,
    layout_of,
    layout_range,
    possible_layouts,
)
from tests.machines import MACHINES
from tests.scheduler_core.builders import mask, profile
from tests.scheduler_core.explain.fleets import H100, QUADS

QUAD, HGX, BLIND = shape_of(QUADS), shape_of(H100), shape_of(MACHINES["nvlink_unknown"]())


def test_each_fact_is_that_of_the_worst_and_of_the_best_set() -> None:
    found = layout_range(QUAD, ExactSets((mask(0, 1), mask(0, 4))))

    assert found == LayoutRange(
        GpuLayout(QUAD.ring(mask(0, 4)), one_island=False, numa_nodes=2),
        GpuLayout(QUAD.ring(mask(0, 1)), one_island=True, numa_nodes=1),
    )
    assert not found.known


def test_sets_of_the_same_layout_are_known() -> None:
    found = layout_range(QUAD, ExactSets((mask(0, 1), mask(4, 5))))

    assert found is not None
    assert found.known


@pytest.mark.parametrize(
    ("among", "one_island"),
    [pytest.param(0xFF, None, id="split-or-not"), pytest.param(0x0F, True, id="within-an-island")],
)
def test_of_too_many_sets_only_the_worst_is_known(among: int, one_island: bool | None) -> None:
    found = layout_range(QUAD, SomeSet(among, 2))

    assert found is not None
    assert found.worst.one_island is one_island
    assert found.worst.ring == QUAD.ring(mask(0, 7) if one_island is None else mask(0, 1))
    assert found.best == GpuLayout(None, None, None)
    assert not found.known


def test_unknown_gpus_have_no_layout() -> None:
    assert possible_layouts(profile(2).device_request, NodeState()) is None


def test_no_set_has_no_layout() -> None:
    assert layout_range(QUAD, ExactSets(())) is None


def test_an_unknown_ring_may_be_the_worst() -> None:
    found = layout_range(BLIND, ExactSets((mask(0, 1), mask(0, 2))))

    assert found is not None
    assert found.worst.ring is not None
    assert found.worst.ring.kind is PathKind.UNKNOWN
    assert (found.worst.one_island, found.best.one_island) == (None, None)


def test_a_ring_without_a_rate_is_unknown_unless_over_pcie() -> None:
    fast, slow = layout_of(HGX, mask(0, 1)).ring, layout_of(QUAD, mask(0, 4)).ring
    assert fast is not None
    assert slow is not None

    assert [is_unknown(each) for each in (None, fast, replace(fast, gbps=None), slow, replace(slow, gbps=None))] == [
        True,
        False,
        True,
        False,
        False,
    ]
