"""The observer's metrics. ``CATALOGUE`` goes into docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from gputopo.process.metrics import BUILD, MetricCatalogue, MetricHelp, Sample, cached_samples
from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.metrics import CLUSTER_GAUGES, CLUSTER_TALLIES, table_samples, watch_samples
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.observe.cluster_now import ClusterNow
from scheduler_core.observe.comparison import ComparisonResult, ObservedPlacement
from scheduler_core.observe.totals import dimensions_of

COUNTERS = {
    "gputopo_observed_placements": MetricHelp(
        ("size", "scheduler", "island"),
        "Pods that got their node, by whole GPUs, scheduler, and whether these are in one island: one, split, unknown; "
        "single of one GPU.",
    ),
    "gputopo_observed_verdicts": MetricHelp(
        ("scheduler", "verdict"),
        "The same by what became of them next to what we would have done: good, worse, waits (we would have let it "
        "wait), unknown; of one GPU single, or broke (an island that was free as a whole); shared.",
    ),
    "gputopo_observed_lost_gbps": MetricHelp(
        ("size", "scheduler"),
        "GB/s that the weakest hop of the pods' rings has less than we would have promised, summed over the pods, "
        "where it can be said.",
    ),
    "gputopo_observed_islands_broken_needlessly": MetricHelp(
        ("scheduler",), "Islands that a single GPU broke although a node had one in a broken island."
    ),
}
GAUGES = {
    "gputopo_observe_info": MetricHelp(("version", "python"), "Always 1; what this observer is."),
    "gputopo_observe_ready": MetricHelp((), "1 where it follows the cluster."),
    "gputopo_free_gpus": MetricHelp(
        ("island",), "Free GPUs of islands of several, by whether the island is whole or broken."
    ),
}
CATALOGUE = MetricCatalogue(COUNTERS, GAUGES | CLUSTER_GAUGES, CLUSTER_TALLIES)


class ObserverStatus(NamedTuple):
    """What is known at one moment."""

    table: Snapshot
    ready: bool
    watches: tuple[WatchStatus, ...]
    pods: int
    present: ClusterNow


class ObserverMetrics:
    """Counters that are bumped for each placement, and what is known at a scrape."""

    def __init__(self, seen: Callable[[], ObserverStatus]) -> None:
        self.registry = CollectorRegistry()
        self._placements, self._verdicts, self._lost, self._needless = map(
            partial(CATALOGUE.counter, self.registry), COUNTERS
        )
        of_table_now = cached_samples(table_samples)

        def told() -> Iterator[Sample]:
            now = seen()
            yield from status_samples(now)
            yield from of_table_now(now.table)

        CATALOGUE.register_samples(self.registry, told)

    def count_placement(self, placement: ObservedPlacement) -> None:
        """A pod got its node."""
        by = dimensions_of(placement)
        size, scheduler = by["size"], by["scheduler"]
        self._placements.labels(size, scheduler, _island(placement)).inc()
        self._verdicts.labels(scheduler, placement.result.value).inc()
        if placement.lost_gbps:
            self._lost.labels(size, scheduler).inc(placement.lost_gbps)
        if placement.result is ComparisonResult.BROKE and placement.alternatives.sparing is not None:
            self._needless.labels(scheduler).inc()


def _island(placement: ObservedPlacement) -> str:
    if placement.size == 1:
        return "single"
    return {True: "one", False: "split", None: "unknown"}[placement.one_island]


def status_samples(seen: ObserverStatus) -> Iterator[Sample]:
    """Every sample of a moment but those of its table. Pure."""
    yield "gputopo_observe_info", BUILD, 1
    yield "gputopo_observe_ready", (), seen.ready
    yield from watch_samples(seen.watches)
    yield "gputopo_gpu_pods", (), seen.pods
    yield "gputopo_free_gpus", ("whole",), seen.present.free_in_whole
    yield "gputopo_free_gpus", ("broken",), seen.present.free_in_islands - seen.present.free_in_whole
