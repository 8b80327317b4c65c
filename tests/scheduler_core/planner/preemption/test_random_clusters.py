"""Laws of the search on random clusters: no eviction in vain, no spare victim, and the cheapest victims."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from scheduler_core.planner.preemption.model import NoPreemption, PreemptionPlan
from scheduler_core.planner.preemption.search import FITS_ALREADY, search_preemption
from tests.scheduler_core.planner.preemption.random_clusters import cheapest, fits_without, price_of, random_task

CLUSTERS = 1_000
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
def test_no_pod_is_evicted_in_vain(part: int) -> None:
    results = {"evicted": 0, "fits already": 0, "none": 0}
    for seed in range(part * CLUSTERS // PARTS, (part + 1) * CLUSTERS // PARTS):
        asked = random_task(Random(seed), 2 + seed % 5)
        found = search_preemption(asked)
        if isinstance(found, PreemptionPlan):
            assert fits_without(asked, found.pods), seed
            assert not fits_without(asked, ()), seed
            for unit in found.units:
                assert not fits_without(asked, [pod for pod in found.pods if pod not in unit.pods]), (seed, unit.name)
            results["evicted"] += 1
        elif found.reason == FITS_ALREADY or not asked.units:
            assert fits_without(asked, ()) or not asked.units, seed
            results["fits already"] += 1
        else:
            assert not fits_without(asked, [pod for each in asked.units for pod in each.pods]) or found.gave_up, seed
            results["none"] += 1

    assert min(results.values()) > 2, results


@pytest.mark.parametrize("part", range(4))
def test_on_small_clusters_the_victims_are_the_cheapest_of_all_and_none_is_spare(part: int) -> None:
    evicted = 0
    for seed in range(part * 25, part * 25 + 25):
        asked = random_task(Random(10_000 + seed), 2 + seed % 2, most_choices=7)
        found = search_preemption(asked)
        best = cheapest(asked)
        if isinstance(found, NoPreemption):
            assert best is None or best[1] == 0, (seed, found.reason)
            continue
        evicted += 1
        assert (found.exact, found.gave_up) == (True, False)
        assert best is not None
        assert price_of(asked, found.units)[:3] == best[:3], seed
        for number in range(len(found.pods)):
            for fewer in combinations(found.units, min(number, len(found.units) - 1)):
                assert not fits_without(asked, [pod for unit in fewer for pod in unit.pods]), seed

    assert evicted > 3
