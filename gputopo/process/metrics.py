"""What a program tells Prometheus: a ``Catalogue`` says once what there is; a registry, scrapes and docs come from it.

Every program has a registry of its own: nothing of the process is touched by importing this or making a registry. What
is known, other than what happens, is told at the moment of a scrape, so that what is gone leaves no series behind and a
scrape never sees half an update.
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
CatalogueRow = tuple[str, str, tuple[str, ...], str]  # name on the wire, type, labels, meaning
BUILD = (__version__, platform.python_version())  # the labels of a program's ``_info``


class MetricHelp(NamedTuple):
    """What a metric says."""

    labels: tuple[str, ...]
    meaning: str


class HistogramHelp(NamedTuple):
    """What a histogram of durations says."""

    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...]  # seconds


class MetricCatalogue(NamedTuple):
    """All metrics of a program, by name; counters without the ``_total`` that they end in on the wire."""

    counters: Mapping[str, MetricHelp]  # bumped where things happen
    gauges: Mapping[str, MetricHelp]  # told at a scrape
    tallies: Mapping[str, MetricHelp] = {}  # counters that others keep: told at a scrape
    times: Mapping[str, HistogramHelp] = {}

    def counter(self, registry: CollectorRegistry, name: str) -> Counter:
        """One of ``counters``, to be bumped."""
        labels, meaning = self.counters[name]
        return Counter(name, meaning, labels, registry=registry)

    def histogram(self, registry: CollectorRegistry, name: str) -> Histogram:
        """One of ``times``, to be observed."""
        labels, meaning, buckets = self.times[name]
        return Histogram(name, meaning, labels, registry=registry, buckets=buckets)

    def register_samples(self, registry: CollectorRegistry, samples: Callable[[], Iterable[Sample]]) -> None:
        """Ask for the samples of ``gauges`` and ``tallies`` at every scrape."""
        registry.register(_SampleCollector(self, samples))

    def described(self) -> Iterator[CatalogueRow]:
        """Every metric."""
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
    """The same, worked out only where the value is another than at the last scrape."""
    held: tuple[T, Sequence[Sample]] | None = None

    def kept(value: T) -> Sequence[Sample]:
        nonlocal held
        if held is None or held[0] is not value:
            held = value, tuple(samples(value))
        return held[1]

    return kept
