"""The metrics of every program that calls filters and factors of other packages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from gputopo.process.metrics import MetricHelp, Sample

EXTENSION_TALLIES = {
    "gputopo_extension_failures": MetricHelp(
        ("group", "name", "outcome"),
        "Calls of a filter or factor of another package that failed: error (it raised, or answered something else "
        "than its interface says), slow (over 50 ms).",
    ),
}
EXTENSION_GAUGES = {
    "gputopo_extension_disabled": MetricHelp(
        ("group", "name"), "1 for a filter or factor of another package that is disabled after failures in a row."
    ),
}


def extension_samples(
    failures: Mapping[tuple[str, str, str], int], disabled: AbstractSet[tuple[str, str]]
) -> Iterator[Sample]:
    """Yield the samples. ``failures``: number by group, name and outcome; ``disabled``: group and name."""
    for labels, number in sorted(failures.items()):
        yield "gputopo_extension_failures", labels, number
    for key in sorted(disabled):
        yield "gputopo_extension_disabled", key, 1
