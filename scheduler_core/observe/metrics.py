"""The observer's metrics, on a registry of their own. ``described`` goes into docs/metrics.md."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gputopo import __version__
from scheduler_core import metrics as of_extender
from scheduler_core.metrics import About, Standing, of_table, samples
from scheduler_core.observe.judging import Placement, Verdict
from scheduler_core.observe.present import Present
from scheduler_core.observe.tally import keys

# On the wire each ends in _total.
COUNTERS: dict[str, About] = {
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
# What the extender has too.
_SHARED = (
    "gputopo_watch_relists",
    "gputopo_watch_failures",
    "gputopo_watch_synced",
    "gputopo_watch_age_seconds",
    "gputopo_watch_lag_seconds",
    "gputopo_cache_age_seconds",
    "gputopo_table_generation",
    "gputopo_table_nodes",
    "gputopo_table_stale_nodes",
    "gputopo_gpu_pods",
    "gputopo_free_islands",
)
GAUGES: dict[str, About] = {
    "gputopo_observe_info": About(("version", "python"), "Always 1; what this observer is."),
    "gputopo_observe_ready": About((), "1 where it follows the cluster."),
    "gputopo_free_gpus": About(
        ("island",), "Free GPUs of islands of several, by whether the island is whole or broken."
    ),
}


class Seen(NamedTuple):
    """What is known at one moment."""

    standing: Standing
    present: Present


class Metrics:
    """Counters that are bumped for each placement, and what is known at a scrape."""

    def __init__(self, seen: Callable[[], Seen]) -> None:
        self.registry = CollectorRegistry()
        made = {
            name: Counter(name, each.meaning, each.labels, registry=self.registry) for name, each in COUNTERS.items()
        }
        self._placements, self._verdicts, self._lost, self._needless = made.values()
        self.registry.register(_Told(seen))

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


class _Told(Collector):
    def __init__(self, seen: Callable[[], Seen]) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            name: _family(name, kind, about) for name, kind, about in _told()
        }
        for name, labels, value in told(self._seen()):
            families[name].add_metric(labels, value)
        return iter(families.values())


def told(seen: Seen) -> Iterator[of_extender.Sample]:
    """Every sample of a moment: name, label values, value. Pure."""
    standing, present = seen
    yield "gputopo_observe_info", (__version__, platform.python_version()), 1
    yield "gputopo_observe_ready", (), standing.ready
    yield "gputopo_free_gpus", ("whole",), present.free_in_whole
    yield "gputopo_free_gpus", ("broken",), present.free_in_islands - present.free_in_whole
    yield from (each for each in (*samples(standing), *of_table(standing.table)) if each[0] in _SHARED)


def described() -> Iterable[tuple[str, str, tuple[str, ...], str]]:
    """Every metric: name on the wire, type, labels, meaning."""
    yield from ((f"{name}_total", "counter", *about) for name, about in COUNTERS.items())
    for name, kind, about in _told():
        yield (name if kind == "gauge" else f"{name}_total", kind, *about)


def _told() -> Iterator[tuple[str, str, About]]:
    """Name, type and meaning of what is told at a scrape."""
    yield from ((name, "gauge", about) for name, about in GAUGES.items())
    for name in _SHARED:
        counts = name in of_extender.TOLD
        yield name, "counter" if counts else "gauge", (of_extender.TOLD if counts else of_extender.GAUGES)[name]


def _family(name: str, kind: str, about: About) -> GaugeMetricFamily | CounterMetricFamily:
    make = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
    return make(name, about.meaning, labels=about.labels)
