"""Placements as counters, and what is known at a scrape."""

from __future__ import annotations

import pytest
from prometheus_client.exposition import generate_latest

from scheduler_core.cache.events import WatchStatus
from scheduler_core.observe.cluster_now import ClusterNow
from scheduler_core.observe.comparison import ObservedPlacement
from scheduler_core.observe.metrics import CATALOGUE, ObserverMetrics, ObserverStatus
from scheduler_core.observe.totals import TotalsByDimension
from tests.scheduler_core.explain.fleets import QUADS
from tests.scheduler_core.observe.observed_clusters import ObservedCluster, bound
from tests.scheduler_core.observe.placements import (
    broke,
    broke_needlessly,
    busy,
    good,
    shared,
    single,
    unknown_set,
    waits,
    worse,
    worse_by_unknown,
)


def seen() -> ObserverStatus:
    """A cluster that is followed."""
    table = busy().observer.cache.snapshot
    watch = WatchStatus("pods", True, 1.5, relists=2, failures=3, error=None, lag_s=None)
    return ObserverStatus(
        table, ready=True, watches=(watch,), pods=9, present=ClusterNow(free_in_islands=5, free_in_whole_islands=4)
    )


def samples(*placements: ObservedPlacement) -> dict[str, float]:
    """Return the served samples after these placements."""
    metrics = ObserverMetrics(seen)
    for each in placements:
        metrics.count_placement(each)
    lines = generate_latest(metrics.registry).decode().splitlines()
    parts = (line.rsplit(" ", 1) for line in lines if not line.startswith("#") and "_created" not in line)
    return {name: float(value) for name, value in parts}


def of(name: str, found: dict[str, float]) -> dict[str, float]:
    return {sample[len(name) :]: value for sample, value in found.items() if sample.startswith(name)}


def test_placements_by_size_scheduler_and_island() -> None:
    found = samples(worse(), good(), good(), single(), unknown_set(), shared())
    by = 'scheduler="default-scheduler",size='

    assert of("gputopo_observed_placements_total", found) == {
        f'{{island="split",{by}"4"}}': 1,
        f'{{island="one",{by}"4"}}': 2,
        f'{{island="single",{by}"1"}}': 1,
        f'{{island="unknown",{by}"4"}}': 1,
        '{island="unknown",scheduler="(none)",size="shared"}': 1,
    }


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (good, "good"),
        (worse, "worse"),
        (waits, "waits"),
        (unknown_set, "unknown"),
        (single, "single"),
        (broke, "broke"),
    ],
)
def test_placements_by_verdict(made: object, verdict: str) -> None:
    assert callable(made)

    assert of("gputopo_observed_verdicts_total", samples(made())) == {
        f'{{scheduler="default-scheduler",verdict="{verdict}"}}': 1
    }


def test_only_known_losses_count() -> None:
    found = samples(worse(), worse(), worse_by_unknown(), unknown_set(), waits(), good())

    assert of("gputopo_observed_lost_gbps_total", found) == {
        '{scheduler="default-scheduler",size="4"}': pytest.approx(2 * 73.9)
    }


def test_islands_that_need_not_have_been_broken() -> None:
    found = samples(broke(), broke_needlessly())

    assert of("gputopo_observed_islands_broken_needlessly_total", found) == {'{scheduler="default-scheduler"}': 1}


def test_gauges() -> None:
    found = samples()

    assert found["gputopo_observe_ready"] == 1
    assert of("gputopo_free_gpus", found) == {'{island="whole"}': 4, '{island="broken"}': 1}
    assert of("gputopo_watch_", found) == {
        'synced{kind="pods"}': 1,
        'age_seconds{kind="pods"}': 1.5,
        'relists_total{kind="pods"}': 2,
        'failures_total{kind="pods"}': 3,
        'unreadable{kind="pods"}': 0,
    }
    assert found["gputopo_gpu_pods"] == 9
    assert found["gputopo_table_nodes"] == 4
    assert not [name for name in found if name.startswith(("gputopo_extender", "gputopo_assumed_pods"))]


def test_every_metric_that_is_served_is_described() -> None:
    families = generate_latest(ObserverMetrics(seen).registry).decode().splitlines()
    served = {
        line.split()[2] for line in families if line.startswith("# TYPE") and not line.split()[2].endswith("_created")
    }

    assert {name for name, *_ in CATALOGUE.described()} == served


def test_tenants_cannot_add_series_without_end() -> None:
    """A tenant writes any spec.schedulerName into pods that name their node."""
    base = good()
    found = samples(*(base._replace(scheduler=f"tenant-{number}") for number in range(100)))

    placed = of("gputopo_observed_placements_total", found)
    assert len(placed) == 17
    assert placed['{island="one",scheduler="(other)",size="4"}'] == 84


def test_tenants_cannot_add_series_by_numbers_of_gpus() -> None:
    """A pod that names its node and requests more than it has counts when it is deleted."""
    observed = ObservedCluster({"gpu-1": QUADS})
    placed = list[ObservedPlacement]()
    for number in range(100):
        observed.pods(bound("p", 1_000 + number, "gpu-1"))
        placed += observed.pods(gone=["p"])

    assert of("gputopo_observed_placements_total", samples(*placed)) == {
        '{island="unknown",scheduler="default-scheduler",size=">16"}': 100
    }


def test_tenants_cannot_fill_the_report_with_names() -> None:
    totals = TotalsByDimension()
    base = good()
    for number in range(2_000):
        totals.add_placement(base._replace(scheduler=f"tenant-{number}", namespace=f"n-{number}"))

    assert {dimension: len(found) for dimension, found in totals.by.items()} == {
        "scheduler": 1_001,
        "size": 1,
        "namespace": 1_001,
    }
    assert totals.by["scheduler"]["(other)"].placed == 1_000
