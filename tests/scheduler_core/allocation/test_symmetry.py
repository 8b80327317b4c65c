"""GPUs that can be exchanged, compared with all permutations of small machines; and the results for large machines."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputopo.model import NodeTopology
from scheduler_core.allocation.gpu_sets import subsets
from scheduler_core.allocation.machine_shape import MachineShape, shape_of
from scheduler_core.allocation.symmetry import Permutation, Symmetry
from tests.machines import MACHINES
from tests.scheduler_core.allocation.machines16 import MACHINES16, two_cube_meshes
from tests.scheduler_core.allocation.random_graphs import graphs

DGX2 = shape_of(MACHINES["dgx2"]())


@pytest.mark.parametrize("machine", sorted(MACHINES | MACHINES16))
def test_exchanges_keep_everything_that_placement_uses(machine: str) -> None:
    shape, random = shape_of((MACHINES | MACHINES16)[machine]()), Random(machine)
    everything = (1 << len(shape.gpus)) - 1
    for _ in range(30):
        mask = random.randint(0, everything)
        exchange = shape.symmetry.permutation(mask)
        moved = exchange.apply(mask & shape.whole)

        assert _measured(shape, mask & shape.whole) == _measured(shape, moved)
        assert exchange.inverse.apply(moved) == mask & shape.whole
        assert shape.symmetry.canonical(mask) == exchange.apply(mask)
        assert shape.symmetry_on_numa_nodes.permutation(mask).apply(mask).bit_count() == mask.bit_count()


@pytest.mark.parametrize("machine", sorted(MACHINES | MACHINES16))
def test_sets_have_one_form_if_and_only_if_an_exchange_makes_them_equal(machine: str) -> None:
    symmetry, random = shape_of((MACHINES | MACHINES16)[machine]()).symmetry, Random(machine)
    size = len(symmetry.permutation(0).places)
    forms: dict[object, object] = {}
    for _ in range(300):
        masks = tuple(sum(1 << at for at in random.sample(range(size), min(size, count))) for count in (2, 1))
        moved = tuple(map(symmetry.permutation(*masks).apply, masks))

        assert forms.setdefault(symmetry.form(*masks), moved) == moved
        assert symmetry.form(*moved) == symmetry.form(*masks)
    assert len(forms) == len(set(forms.values()))


def _measured(shape: MachineShape, mask: int) -> tuple[object, ...]:
    return (
        shape.ring(mask),
        shape.is_one_island(mask),
        shape.count_numa_nodes(mask),
        shape.max_pcie_distance(mask) if mask.bit_count() > 1 else None,
        mask.bit_count(),
    )


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(most=5), st.data())
def test_equal_sets_are_equal_by_some_permutation(topology: NodeTopology, data: st.DataObject) -> None:
    """Never too many exchanges: each keeps the labels of all pairs, and the fixed set."""
    size = len(topology.gpus)
    shape = shape_of(topology)
    assert shape.points is not None
    (points,) = shape.points
    among = data.draw(st.integers(0, (1 << size) - 1))
    mask = among & data.draw(st.integers(0, (1 << size) - 1))
    kept = [
        order
        for order in permutations(range(size))
        if all(points[order[a]][order[b]] == points[a][b] for a in range(size) for b in range(a))
        and Permutation(order).apply(among) == among
    ]

    found = shape.symmetry.equals((among,), [mask], 1 << size)

    assert found is not None
    assert found <= {Permutation(order).apply(mask) for order in kept}
    assert {shape.symmetry.canonical(each) for each in found} == {shape.symmetry.canonical(mask)}


@pytest.mark.parametrize("machine", ["dgx2", "all_alike", "two_baseboards", "weak_uplink"])
def test_representatives_stand_for_all_subsets(machine: str) -> None:
    symmetry = shape_of(MACHINES16[machine]()).symmetry
    for among, size in ((0x0FFF, 3), (0xFFFF, 2), (0x5BD7, 4)):
        chosen = symmetry.representatives(among, size, 2000)

        assert chosen is not None
        assert symmetry.equals((among,), chosen, 1 << 16) == set(subsets(among, size))


@pytest.mark.parametrize("machine", sorted(MACHINES16))
def test_distinct_sets_stand_for_all(machine: str) -> None:
    shape, random = shape_of(MACHINES16[machine]()), Random(machine)
    for symmetry in (shape.symmetry, shape.symmetry_on_numa_nodes):
        fixed, size = (random.getrandbits(16), random.getrandbits(16)), random.randint(1, 4)
        masks = list(subsets(0x0FFF, size))

        found = symmetry.distinct(fixed, masks)

        equal = [symmetry.equals(fixed, [mask], 1 << 16) or set() for mask in found]
        assert set(masks) <= set().union(*equal)
        assert sum(map(len, equal)) == len(set().union(*equal))  # none of them is equal to another one


def test_trees_have_few_different_sets() -> None:
    """231 of 65,536 on a DGX-2: a tree of two octets, four quads and eight pairs."""
    assert len({DGX2.symmetry.canonical(mask) for mask in range(1 << 16)}) == 231
    assert len(set(map(shape_of(MACHINES16["all_alike"]()).symmetry.canonical, range(1 << 16)))) == 17
    assert shape_of(two_cube_meshes()).symmetry.is_trivial


def test_numa_nodes_are_not_exchanged_where_their_ids_matter() -> None:
    assert DGX2.symmetry.canonical(0x00FF) == DGX2.symmetry.canonical(0xFF00)
    assert DGX2.symmetry_on_numa_nodes.canonical(0x00FF) == 0x00FF
    assert DGX2.symmetry_on_numa_nodes.canonical(0xFF00) == 0xFF00


def test_many_sets_are_moved_as_single_ones_are() -> None:
    exchange, random = DGX2.symmetry.permutation(0b1010_0110_0000_1001), Random(1)
    masks = [random.getrandbits(16) for _ in range(200)]

    assert exchange.apply_all(masks) == [exchange.apply(mask) for mask in masks]


def test_machine_without_gpus_has_an_empty_exchange() -> None:
    assert Symmetry([], lambda *_: None).permutation(0) == Permutation(())
