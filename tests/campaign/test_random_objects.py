"""Random objects with several odd values stop no program."""

from __future__ import annotations

from random import Random

import pytest

from tests.campaign.random_objects import random_objects, stopped_programs


@pytest.mark.parametrize("seed", range(60))
def test_random_objects_stop_no_program(seed: int) -> None:
    assert stopped_programs(Random(seed)) == {}


def test_the_objects_of_a_seed_are_the_same() -> None:
    assert random_objects(Random(7)) == random_objects(Random(7))
