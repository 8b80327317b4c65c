"""Fragments, calculated by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.policy.demand_mix import DEFAULT_MIX, Demand, DemandMix, FreeCapacity, Units, free_units

FULL = 1000


def _mix(*wants: Demand) -> DemandMix:
    return DemandMix(tuple((want, 1.0) for want in wants))


@pytest.mark.parametrize(
    ("want", "room", "lost"),
    [
        pytest.param(
            Demand(1), FreeCapacity(((400, FULL),)), 0.4, id="what is left of a shared GPU is too small for a whole one"
        ),
        pytest.param(Demand(0, 500), FreeCapacity(((400, FULL),)), 0.4, id="and for half of one"),
        pytest.param(Demand(0, 400), FreeCapacity(((400, FULL),)), 0.0, id="not for what fits"),
        pytest.param(Demand(2), FreeCapacity(((400, FULL),)), 1.4, id="all, where nothing fits"),
        pytest.param(Demand(2), FreeCapacity(((FULL,), (FULL,))), 0.0, id="without NVLink the node serves"),
        pytest.param(Demand(2), FreeCapacity(((0, FULL), (0, FULL))), 2.0, id="two halves of islands"),
        pytest.param(Demand(2), FreeCapacity(((0, FULL), (FULL, FULL))), 1.0, id="one island is whole"),
        pytest.param(
            Demand(3), FreeCapacity(((0, FULL), (FULL, FULL))), 1.5, id="islands too small, enough on the node: half"
        ),
        pytest.param(
            Demand(4), FreeCapacity(((0, FULL), (FULL, FULL))), 3.0, id="islands too small, too few on the node"
        ),
        pytest.param(Demand(1, products=frozenset({"A"})), FreeCapacity(((FULL,),), "B"), 1.0, id="another product"),
        pytest.param(Demand(1, products=frozenset({"A"})), FreeCapacity(((FULL,),), "A"), 0.0, id="the product"),
        pytest.param(Demand(1, cpu_milli=8000), FreeCapacity(((FULL,),), None, 7999), 1.0, id="too little CPU"),
        pytest.param(Demand(1, cpu_milli=8000), FreeCapacity(((FULL,),), None, 8000), 0.0, id="just enough CPU"),
        pytest.param(Demand(1, cpu_milli=8000), FreeCapacity(((FULL,),)), 0.0, id="CPU unknown"),
    ],
)
def test_fragments(want: Demand, room: FreeCapacity, lost: float) -> None:
    assert _mix(want).fragmented_gpus(room) == pytest.approx(lost)


def test_kinds_are_weighted_by_frequency() -> None:
    """Of three pods one requests both GPUs: (1 x 0 + 1 x 0 + 1 x 1) / 3 if one is free. CPU-only pods do not count."""
    mix = DemandMix(((Demand(1), 2.0), (Demand(2), 1.0), (Demand(cpu_milli=1000), 5.0)))

    assert mix.fragmented_gpus(FreeCapacity(((0, FULL),))) == pytest.approx(1 / 3)


def test_cpu_of_a_kind_is_a_distribution() -> None:
    """One third of the pods request more CPU than is free."""
    mix = DemandMix(
        ((Demand(1, cpu_milli=1000), 1.0), (Demand(1, cpu_milli=2000), 1.0), (Demand(1, cpu_milli=4000), 1.0))
    )

    assert mix.fragmented_gpus(FreeCapacity(((FULL,),), None, 2000)) == pytest.approx(1 / 3)


def test_units_do_not_depend_on_places() -> None:
    assert free_units((0, FULL, 500, FULL), (0b0011, 0b1100)) == free_units((FULL, 500, FULL, 0), (0b0011, 0b1100))


_UNITS = st.lists(st.lists(st.integers(0, FULL), min_size=1, max_size=4), min_size=1, max_size=4)


@given(_UNITS)
def test_fragments_never_exceed_the_free_gpus(free: list[list[int]]) -> None:
    found: Units = tuple(sorted(tuple(sorted(each)) for each in free))
    total = sum(map(sum, found)) / FULL

    assert 0 <= DEFAULT_MIX.fragmented_gpus(FreeCapacity(found)) <= total + 1e-9
