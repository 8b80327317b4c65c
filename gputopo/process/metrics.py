"""Prometheus metrics: the registry, the samples and docs/metrics.md of a program come from one ``MetricCatalogue``.

To add a metric: add it to the ``CATALOGUE`` in the program's own ``metrics`` module, and set it there.

Every program has its own registry: importing this module has no side effects. Counters and histograms are updated when
something happens. Gauges are computed at each scrape, so that removed objects leave no series and a scrape never shows
half an update.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gputopo import __version__

T = TypeVar("T")
Sample = tuple[str, tuple[str, ...], float]  # name, label values, value
CatalogueRow = tuple[str, str, tuple[str, ...], str]  # exposed name, type, labels, meaning
BUILD = (__version__, platform.python_version())  # the labels of a program's ``_info``


class MetricHelp(NamedTuple):
    """The labels and the help text of a metric."""

    labels: tuple[str, ...]
    meaning: str


class HistogramHelp(NamedTuple):
    """The labels, the help text and the buckets of a histogram of durations."""

    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...]  # seconds


class MetricCatalogue(NamedTuple):
    """The metrics of a program, by name; names of counters are without the suffix ``_total``."""

    counters: Mapping[str, MetricHelp]  # incremented by the program
    gauges: Mapping[str, MetricHelp]  # computed at a scrape
    tallies: Mapping[str, MetricHelp] = {}  # counters whose values are computed at a scrape
    times: Mapping[str, HistogramHelp] = {}

    def counter(self, registry: CollectorRegistry, name: str) -> Counter:
        """Return a counter of ``counters``."""
        labels, meaning = self.counters[name]
        return Counter(name, meaning, labels, registry=registry)

    def histogram(self, registry: CollectorRegistry, name: str) -> Histogram:
        """Return a histogram of ``times``."""
        labels, meaning, buckets = self.times[name]
        return Histogram(name, meaning, labels, registry=registry, buckets=buckets)

    def register_samples(self, registry: CollectorRegistry, samples: Callable[[], Iterable[Sample]]) -> None:
        """Compute the samples of ``gauges`` and ``tallies`` at every scrape."""
        registry.register(_SampleCollector(self, samples))

    def described(self) -> Iterator[CatalogueRow]:
        """Yield a row for every metric."""
        yield from ((f"{name}_total", "counter", *about) for name, about in {**self.counters, **self.tallies}.items())
        yield from ((name, "gauge", *about) for name, about in self.gauges.items())
        yield from ((name, "histogram", about.labels, about.meaning) for name, about in self.times.items())


class _SampleCollector(Collector):
    def __init__(self, catalogue: MetricCatalogue, samples: Callable[[], Iterable[Sample]]) -> None:
        self._catalogue = catalogue
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            name: GaugeMetricFamily(name, about.meaning, labels=about.labels)
            for name, about in self._catalogue.gauges.items()
        }
        families |= {
            name: CounterMetricFamily(name, about.meaning, labels=about.labels)
            for name, about in self._catalogue.tallies.items()
        }
        for name, labels, value in self._samples():
            families[name].add_metric(labels, value)
        return iter(families.values())


def cached_samples(samples: Callable[[T], Iterable[Sample]]) -> Callable[[T], Sequence[Sample]]:
    """Return the function with a cache: it is called only if the value differs from that of the last scrape."""
    cached: tuple[T, Sequence[Sample]] | None = None

    def samples_of(value: T) -> Sequence[Sample]:
        nonlocal cached
        if cached is None or cached[0] is not value:
            cached = value, tuple(samples(value))
        return cached[1]

    return samples_of
