"""The observer's metrics. ``CATALOGUE`` goes into docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from gputopo.process.metrics import BUILD, MetricCatalogue, MetricHelp, Sample, cached_samples
from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.metrics import CLUSTER_GAUGES, CLUSTER_TALLIES, snapshot_samples, watch_samples
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.observe.cluster_now import ClusterNow
from scheduler_core.observe.comparison import Comparison, ObservedPlacement
from scheduler_core.observe.totals import OTHER, dimensions_of

COUNTERS = {
    "gputopo_observed_placements": MetricHelp(
        ("size", "scheduler", "island"),
        "Placed pods, by whole GPUs (1 to 16, >16, shared), scheduler, and islands of these GPUs: one, split, unknown; "
        "single for one GPU.",
    ),
    "gputopo_observed_verdicts": MetricHelp(
        ("scheduler", "verdict"),
        "Placed pods by comparison with gputopo's choice: good, worse, waits (gputopo would have let the pod wait), "
        "unknown; with one GPU single, or broke (it broke a wholly free island); shared (not compared).",
    ),
    "gputopo_observed_lost_gbps": MetricHelp(
        ("size", "scheduler"),
        "GB/s by which the weakest hops of the pods' rings are below gputopo's choice, in total, where known.",
    ),
    "gputopo_observed_islands_broken_needlessly": MetricHelp(
        ("scheduler",),
        "Free islands that a single GPU broke although a node had a free GPU in a partly used island.",
    ),
}
GAUGES = {
    "gputopo_observe_info": MetricHelp(("version", "python"), "Always 1; the version of the observer."),
    "gputopo_observe_ready": MetricHelp(
        (), "1 while the observer has listed the cluster and its watches are not silent."
    ),
    "gputopo_free_gpus": MetricHelp(
        ("island",),
        "Free GPUs in islands of several GPUs: in wholly free (whole) or partly used (broken) islands.",
    ),
}
_MAX_SCHEDULERS = 16  # by name; tenants choose the name in their pods, and each name is a series
CATALOGUE = MetricCatalogue(COUNTERS, GAUGES | CLUSTER_GAUGES, CLUSTER_TALLIES)


class ObserverStatus(NamedTuple):
    """The state of the observer at one moment."""

    table: ClusterSnapshot
    ready: bool
    watches: tuple[WatchStatus, ...]
    pods: int
    present: ClusterNow


class ObserverMetrics:
    """Counters of placements, and gauges that are read at a scrape."""

    def __init__(self, status: Callable[[], ObserverStatus]) -> None:
        self.registry = CollectorRegistry()
        self._placements, self._verdicts, self._lost, self._needless = map(
            partial(CATALOGUE.counter, self.registry), COUNTERS
        )
        self._schedulers = set[str]()
        of_table_now = cached_samples(snapshot_samples)

        def scrape() -> Iterator[Sample]:
            now = status()
            yield from status_samples(now)
            yield from of_table_now(now.table)

        CATALOGUE.register_samples(self.registry, scrape)

    def count_placement(self, placement: ObservedPlacement) -> None:
        """Count a placed pod."""
        by = dimensions_of(placement)
        size, scheduler = by["size"], by["scheduler"]
        if scheduler not in self._schedulers and len(self._schedulers) >= _MAX_SCHEDULERS:
            scheduler = OTHER
        self._schedulers.add(scheduler)
        self._placements.labels(size, scheduler, _island(placement)).inc()
        self._verdicts.labels(scheduler, placement.result.value).inc()
        if placement.lost_gbps:
            self._lost.labels(size, scheduler).inc(placement.lost_gbps)
        if placement.result is Comparison.BROKE and placement.alternatives.sparing is not None:
            self._needless.labels(scheduler).inc()


def _island(placement: ObservedPlacement) -> str:
    if placement.size == 1:
        return "single"
    return {True: "one", False: "split", None: "unknown"}[placement.one_island]


def status_samples(status: ObserverStatus) -> Iterator[Sample]:
    """Yield the samples of a status, without those of its table. Pure."""
    yield "gputopo_observe_info", BUILD, 1
    yield "gputopo_observe_ready", (), status.ready
    yield from watch_samples(status.watches)
    yield "gputopo_gpu_pods", (), status.pods
    yield "gputopo_free_gpus", ("whole",), status.present.free_in_whole_islands
    yield "gputopo_free_gpus", ("broken",), status.present.free_in_islands - status.present.free_in_whole_islands
