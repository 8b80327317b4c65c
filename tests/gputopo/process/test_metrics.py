"""A catalogue: what is counted, timed and told ends up in a scrape and in the documentation alike."""

from __future__ import annotations

import subprocess
import sys

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from gputopo.process.metrics import HistogramHelp, MetricCatalogue, MetricHelp, Sample, cached_samples

CATALOGUE = MetricCatalogue(
    counters={"looks": MetricHelp(("outcome",), "Looks at a thing.")},
    gauges={"size": MetricHelp(("side",), "Its size.")},
    tallies={"falls": MetricHelp((), "How often it fell.")},
    times={"look_seconds": HistogramHelp((), "Duration of a look.", (1.0, 2.0))},
)


def test_a_scrape_has_counters_and_computed_samples() -> None:
    registry, said = CollectorRegistry(), list[Sample]([("size", ("left",), 2.5), ("falls", (), 3)])
    looks, seconds = CATALOGUE.counter(registry, "looks"), CATALOGUE.histogram(registry, "look_seconds")
    CATALOGUE.register_samples(registry, lambda: said)
    looks.labels("good").inc()
    seconds.observe(1.5)

    lines = generate_latest(registry).decode().splitlines()
    assert [line for line in lines if not line.startswith("#") and "_created" not in line] == [
        'looks_total{outcome="good"} 1.0',
        'look_seconds_bucket{le="1.0"} 0.0',
        'look_seconds_bucket{le="2.0"} 1.0',
        'look_seconds_bucket{le="+Inf"} 1.0',
        "look_seconds_count 1.0",
        "look_seconds_sum 1.5",
        'size{side="left"} 2.5',
        "falls_total 3.0",
    ]


def test_removed_objects_leave_no_series() -> None:
    registry, said = CollectorRegistry(), list[Sample]([("size", ("left",), 2.5)])
    CATALOGUE.register_samples(registry, lambda: said)
    said.clear()

    assert registry.get_sample_value("size", {"side": "left"}) is None


def test_all_of_it_is_described_by_its_name_on_the_wire() -> None:
    assert list(CATALOGUE.described()) == [
        ("looks_total", "counter", ("outcome",), "Looks at a thing."),
        ("falls_total", "counter", (), "How often it fell."),
        ("size", "gauge", ("side",), "Its size."),
        ("look_seconds", "histogram", (), "Duration of a look."),
    ]


def test_samples_are_worked_out_once_for_each_value() -> None:
    asked = []

    def samples(value: list[int]) -> list[Sample]:
        asked.append(value)
        return [("size", (), each) for each in value]

    kept, one, equal = cached_samples(samples), [1], [1]
    assert [kept(one), kept(one), kept(equal), kept(one)] == [(("size", (), 1),)] * 4
    assert [id(each) for each in asked] == [id(one), id(equal), id(one)]


def test_nothing_of_the_process_is_touched() -> None:
    code = (
        "import gputopo.process.metrics; from prometheus_client import REGISTRY; print(len(list(REGISTRY.collect())))"
    )
    plain = code.partition("; ")[2]

    found = [
        subprocess.run([sys.executable, "-c", each], check=True, capture_output=True).stdout for each in (code, plain)
    ]
    assert found[0] == found[1]
