"""The observer's metrics. ``CATALOGUE`` goes into docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from gputopo.process.metrics import BUILD, About, Catalogue, Sample, once_each
from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.metrics import CLUSTER_GAUGES, CLUSTER_TALLIES, of_table, of_watches
from scheduler_core.cache.node_table import NodeTable
from scheduler_core.observe.cluster_now import Present
from scheduler_core.observe.comparison import Placement, Verdict
from scheduler_core.observe.totals import keys

COUNTERS = {
    "gputopo_observed_placements": About(
        ("size", "scheduler", "island"),
        "Pods that got their node, by whole GPUs, scheduler, and whether these are in one island: one, split, unknown; "
        "single of one GPU.",
    ),
    "gputopo_observed_verdicts": About(
        ("scheduler", "verdict"),
        "The same by what became of them next to what we would have done: good, worse, waits (we would have let it "
        "wait), unknown; of one GPU single, or broke (an island that was free as a whole); shared.",
    ),
    "gputopo_observed_lost_gbps": About(
        ("size", "scheduler"),
        "GB/s that the weakest hop of the pods' rings has less than we would have promised, summed over the pods, "
        "where it can be said.",
    ),
    "gputopo_observed_islands_broken_needlessly": About(
        ("scheduler",), "Islands that a single GPU broke although a node had one in a broken island."
    ),
}
GAUGES = {
    "gputopo_observe_info": About(("version", "python"), "Always 1; what this observer is."),
    "gputopo_observe_ready": About((), "1 where it follows the cluster."),
    "gputopo_free_gpus": About(
        ("island",), "Free GPUs of islands of several, by whether the island is whole or broken."
    ),
}
CATALOGUE = Catalogue(COUNTERS, GAUGES | CLUSTER_GAUGES, CLUSTER_TALLIES)


class Seen(NamedTuple):
    """What is known at one moment."""

    table: NodeTable
    ready: bool
    watches: tuple[WatchStatus, ...]
    pods: int
    present: Present


class Metrics:
    """Counters that are bumped for each placement, and what is known at a scrape."""

    def __init__(self, seen: Callable[[], Seen]) -> None:
        self.registry = CollectorRegistry()
        self._placements, self._verdicts, self._lost, self._needless = map(
            partial(CATALOGUE.counter, self.registry), COUNTERS
        )
        of_table_now = once_each(of_table)

        def told() -> Iterator[Sample]:
            now = seen()
            yield from samples(now)
            yield from of_table_now(now.table)

        CATALOGUE.tell(self.registry, told)

    def note(self, placement: Placement) -> None:
        """A pod got its node."""
        by = keys(placement)
        size, scheduler = by["size"], by["scheduler"]
        self._placements.labels(size, scheduler, _island(placement)).inc()
        self._verdicts.labels(scheduler, placement.verdict.value).inc()
        if placement.lost_gbps:
            self._lost.labels(size, scheduler).inc(placement.lost_gbps)
        if placement.verdict is Verdict.BROKE and placement.options.sparing is not None:
            self._needless.labels(scheduler).inc()


def _island(placement: Placement) -> str:
    if placement.size == 1:
        return "single"
    return {True: "one", False: "split", None: "unknown"}[placement.one_island]


def samples(seen: Seen) -> Iterator[Sample]:
    """Every sample of a moment but those of its table. Pure."""
    yield "gputopo_observe_info", BUILD, 1
    yield "gputopo_observe_ready", (), seen.ready
    yield from of_watches(seen.watches)
    yield "gputopo_gpu_pods", (), seen.pods
    yield "gputopo_free_gpus", ("whole",), seen.present.free_in_whole
    yield "gputopo_free_gpus", ("broken",), seen.present.free_in_islands - seen.present.free_in_whole
