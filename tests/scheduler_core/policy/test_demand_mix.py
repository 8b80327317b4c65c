"""Fragments, counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.policy.demand_mix import USUAL, Mix, Room, Units, Want, units

FULL = 1000


def _mix(*wants: Want) -> Mix:
    return Mix(tuple((want, 1.0) for want in wants))


@pytest.mark.parametrize(
    ("want", "room", "lost"),
    [
        pytest.param(
            Want(1), Room(((400, FULL),)), 0.4, id="what is left of a shared GPU is too small for a whole one"
        ),
        pytest.param(Want(0, 500), Room(((400, FULL),)), 0.4, id="and for half of one"),
        pytest.param(Want(0, 400), Room(((400, FULL),)), 0.0, id="not for what fits"),
        pytest.param(Want(2), Room(((400, FULL),)), 1.4, id="all, where nothing fits"),
        pytest.param(Want(2), Room(((FULL,), (FULL,))), 0.0, id="without NVLink the node serves"),
        pytest.param(Want(2), Room(((0, FULL), (0, FULL))), 2.0, id="two halves of islands"),
        pytest.param(Want(2), Room(((0, FULL), (FULL, FULL))), 1.0, id="one island is whole"),
        pytest.param(Want(3), Room(((0, FULL), (FULL, FULL))), 1.5, id="islands too small, enough on the node: half"),
        pytest.param(Want(4), Room(((0, FULL), (FULL, FULL))), 3.0, id="islands too small, too few on the node"),
        pytest.param(Want(1, products=frozenset({"A"})), Room(((FULL,),), "B"), 1.0, id="another product"),
        pytest.param(Want(1, products=frozenset({"A"})), Room(((FULL,),), "A"), 0.0, id="the product"),
        pytest.param(Want(1, cpu_milli=8000), Room(((FULL,),), None, 7999), 1.0, id="too little CPU"),
        pytest.param(Want(1, cpu_milli=8000), Room(((FULL,),), None, 8000), 0.0, id="just enough CPU"),
        pytest.param(Want(1, cpu_milli=8000), Room(((FULL,),)), 0.0, id="CPU unknown"),
    ],
)
def test_fragments(want: Want, room: Room, lost: float) -> None:
    assert _mix(want).fragments(room) == pytest.approx(lost)


def test_kinds_count_by_how_often_they_come() -> None:
    """Of three pods one wants both GPUs: (1 x 0 + 1 x 0 + 1 x 1) / 3 where one is free. CPU-only pods do not count."""
    mix = Mix(((Want(1), 2.0), (Want(2), 1.0), (Want(cpu_milli=1000), 5.0)))

    assert mix.fragments(Room(((0, FULL),))) == pytest.approx(1 / 3)


def test_cpu_of_a_kind_is_graded() -> None:
    """A third asks for more CPU than there is."""
    mix = Mix(((Want(1, cpu_milli=1000), 1.0), (Want(1, cpu_milli=2000), 1.0), (Want(1, cpu_milli=4000), 1.0)))

    assert mix.fragments(Room(((FULL,),), None, 2000)) == pytest.approx(1 / 3)


def test_units_do_not_depend_on_places() -> None:
    assert units((0, FULL, 500, FULL), (0b0011, 0b1100)) == units((FULL, 500, FULL, 0), (0b0011, 0b1100))


_UNITS = st.lists(st.lists(st.integers(0, FULL), min_size=1, max_size=4), min_size=1, max_size=4)


@given(_UNITS)
def test_never_more_than_is_free(free: list[list[int]]) -> None:
    found: Units = tuple(sorted(tuple(sorted(each)) for each in free))
    total = sum(map(sum, found)) / FULL

    assert 0 <= USUAL.fragments(Room(found)) <= total + 1e-9
