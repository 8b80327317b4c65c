"""The extender's metrics, on a registry of their own: nothing of the process is touched by importing or making them.

What is known comes from a ``Standing`` at the moment of a scrape. ``described`` goes into docs/metrics.md.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gputopo import __version__
from gputopo.labels.reasons import Reason
from scheduler_core.extender import Record
from scheduler_core.free_islands import free_islands
from scheduler_core.nodes import NodeTable
from scheduler_core.settling import Settled

UNSPECIFIED = "unspecified"
_REASONS = {reason.value: reason for reason in Reason}
# A call takes a fraction of a millisecond; from 50 ms on it is slow, at 5 s kube-scheduler gives up.
_CALL_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class About(NamedTuple):
    """What a metric says."""

    labels: tuple[str, ...]
    meaning: str


# On the wire each ends in _total.
COUNTERS: dict[str, About] = {
    "ai_scheduler_attempts": About(
        ("workload_type", "result"),
        "Filter calls by what the pod says it is (training, inference, batch, unspecified) and what came of it: "
        "passed, refused by every node, malformed.",
    ),
    "gputopo_extender_calls": About(("verb", "status"), "Calls by verb and HTTP status."),
    "gputopo_extender_slow_calls": About(("verb",), "Calls that took more than 50 ms; the log has their phases."),
    "gputopo_extender_surprises": About(("verb",), "Calls that failed by an error of the extender's own."),
    "gputopo_rejections": About(
        ("reason",),
        "Filter calls that no node passed, by each reason that one of the nodes was refused for.",
    ),
    "gputopo_predictions": About(
        ("outcome",),
        "Pods whose GPUs the kubelet has named since, by whether these were what was predicted: hit, miss, ambiguous "
        "(one of several that were predicted), unpredicted (nothing could be said).",
    ),
    "gputopo_promises_broken": About(("reason",), "Pods whose required shape the GPUs they got do not have."),
    "gputopo_events_written": About(("outcome",), "Events for such pods: written, failed, dropped (too many at once)."),
    "gputopo_decisions_written": About(("outcome",), "Decisions for the file: written, failed, dropped (too many)."),
}
CALL_SECONDS = ("gputopo_extender_call_seconds", ("verb",), "Duration of a call, from its head to its answer.")
# Counted by others, told at a scrape; on the wire these end in _total too.
TOLD: dict[str, About] = {
    "gputopo_extender_connections_ended": About(
        ("why",),
        "Connections ended by the extender: capacity (too many; the idlest goes), slow (a request that does not "
        "come), head (too large), stuck (an answer that is not taken).",
    ),
    "gputopo_watch_relists": About(("kind",), "Lists after the first: the watch had fallen too far behind."),
    "gputopo_watch_failures": About(("kind",), "Calls of the API server that failed, and watches that broke."),
}
GAUGES: dict[str, About] = {
    "gputopo_extender_info": About(("version", "python"), "Always 1; what this extender is."),
    "gputopo_extender_ready": About((), "1 where calls are answered, 0 where they get 503."),
    "gputopo_watch_synced": About(("kind",), "1 where a complete list was taken in: nodes, pods, nodegpus."),
    "gputopo_watch_age_seconds": About(
        ("kind",), "Since the API server was last heard of that kind, bookmarks included."
    ),
    "gputopo_watch_lag_seconds": About(("kind",), "How long the object created last took to get here; whole seconds."),
    "gputopo_cache_age_seconds": About((), "The greatest of these ages: as old may be what is decided on."),
    "gputopo_table_generation": About((), "Generation of the node table; it grows with every change."),
    "gputopo_table_nodes": About((), "Nodes in the table."),
    "gputopo_table_stale_nodes": About((), "Nodes whose agent has not been heard of for too long."),
    "gputopo_gpu_pods": About((), "Pods that hold or want GPUs."),
    "gputopo_assumptions": About((), "Pods that are taken to be on the one node that they were answered."),
    "gputopo_policy_bad": About((), "1 where the policy file was changed to what cannot be read: the old one holds."),
    "gputopo_doubts": About((), "Pods that may be on the way to any of several nodes."),
    "gputopo_free_islands": About(
        ("size", "product"),
        "NVLink islands by the number of GPUs that are free in them for certain, and product. None of 8 while there "
        "are many of 2 is fragmentation.",
    ),
}


class WatchState(NamedTuple):
    """How the watch of one kind is doing."""

    kind: str
    synced: bool
    age_s: float | None  # None: nothing was heard yet
    relists: int
    failures: int
    lag_s: float | None = None


class Standing(NamedTuple):
    """What the extender knows at one moment."""

    table: NodeTable
    ready: bool
    watches: tuple[WatchState, ...] = ()
    pods: int = 0
    assumptions: int = 0
    doubts: int = 0
    connections_ended: Mapping[str, int] = {}  # read only
    policy_bad: bool = False


class Metrics:
    """Counters that are bumped where things happen, and what a standing says."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str) -> Counter:
            labels, meaning = COUNTERS[name]
            return Counter(name, meaning, labels, registry=self.registry)

        self.attempts = counter("ai_scheduler_attempts")
        self.calls = counter("gputopo_extender_calls")
        self.slow_calls = counter("gputopo_extender_slow_calls")
        self.surprises = counter("gputopo_extender_surprises")
        self.rejections = counter("gputopo_rejections")
        self.predictions = counter("gputopo_predictions")
        self.promises_broken = counter("gputopo_promises_broken")
        self.events = counter("gputopo_events_written")
        self.decisions = counter("gputopo_decisions_written")
        name, labels, meaning = CALL_SECONDS
        self.call_seconds = Histogram(name, meaning, labels, registry=self.registry, buckets=_CALL_SECONDS)

    def note_refused(self, failed: Mapping[str, str]) -> None:
        """No node passed; ``failed`` says why not."""
        for text in set(failed.values()):
            reason = _REASONS.get(text, Reason.MALFORMED)  # the only one whose text varies
            self.rejections.labels(reason.name.lower()).inc()
            if reason is Reason.MALFORMED:
                self.attempts.labels(UNSPECIFIED, "malformed").inc()

    def note_decision(self, record: Record) -> None:
        """A pod whose request could be understood was decided about."""
        workload = record.request.profile.wishes.workload
        kind = UNSPECIFIED if workload is None else workload.value
        self.attempts.labels(kind, "passed" if record.answer.nodes else "refused").inc()

    def note_settled(self, found: Settled) -> None:
        """The kubelet has named a pod's GPUs."""
        self.predictions.labels("unpredicted" if found.check is None else found.check.value).inc()
        if found.broken is not None:
            self.promises_broken.labels(found.broken.name.lower()).inc()

    def expose(self, standing: Callable[[], Standing]) -> None:
        """Add what a standing says, which is asked for at every scrape."""
        self.registry.register(_Told(standing))


class _Told(Collector):
    def __init__(self, standing: Callable[[], Standing]) -> None:
        self._standing = standing
        self._islands: tuple[NodeTable | None, list[Sample]] = (None, [])

    def collect(self) -> Iterator[Metric]:
        standing = self._standing()
        if self._islands[0] is not standing.table:
            self._islands = standing.table, list(of_table(standing.table))
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            name: GaugeMetricFamily(name, meaning, labels=labels) for name, (labels, meaning) in GAUGES.items()
        }
        families |= {
            name: CounterMetricFamily(name, meaning, labels=labels) for name, (labels, meaning) in TOLD.items()
        }
        for name, labels, value in (*samples(standing), *self._islands[1]):
            families[name].add_metric(labels, value)
        return iter(families.values())


Sample = tuple[str, tuple[str, ...], float]


def samples(standing: Standing) -> Iterator[Sample]:
    """Every sample of a standing but those of its table: name, label values, value. Pure."""
    yield "gputopo_extender_info", (__version__, platform.python_version()), 1
    yield "gputopo_extender_ready", (), standing.ready
    for each in standing.watches:
        yield from _of_watch(each)
    ages = [each.age_s for each in standing.watches]
    if ages and None not in ages:
        yield "gputopo_cache_age_seconds", (), max(age for age in ages if age is not None)
    yield "gputopo_gpu_pods", (), standing.pods
    yield "gputopo_assumptions", (), standing.assumptions
    yield "gputopo_doubts", (), standing.doubts
    yield "gputopo_policy_bad", (), standing.policy_bad
    for why, times in sorted(standing.connections_ended.items()):
        yield "gputopo_extender_connections_ended", (why,), times


def _of_watch(watch: WatchState) -> Iterator[Sample]:
    kind = (watch.kind,)
    yield "gputopo_watch_synced", kind, watch.synced
    yield "gputopo_watch_relists", kind, watch.relists
    yield "gputopo_watch_failures", kind, watch.failures
    if watch.age_s is not None:
        yield "gputopo_watch_age_seconds", kind, watch.age_s
    if watch.lag_s is not None:
        yield "gputopo_watch_lag_seconds", kind, watch.lag_s


def of_table(table: NodeTable) -> Iterator[Sample]:
    """The samples of a table, which are worked out once for each. Pure."""
    yield "gputopo_table_generation", (), table.generation
    yield "gputopo_table_nodes", (), len(table.states)
    yield "gputopo_table_stale_nodes", (), sum(state.stale for state in table.states.values())
    for island, number in sorted(free_islands(table.states).items()):
        yield "gputopo_free_islands", (str(island.size), island.product), number


def described() -> Iterable[tuple[str, str, tuple[str, ...], str]]:
    """Every metric: name on the wire, type, labels, meaning."""
    yield from ((f"{name}_total", "counter", *about) for name, about in (COUNTERS | TOLD).items())
    yield from ((name, "gauge", *about) for name, about in GAUGES.items())
    name, labels, meaning = CALL_SECONDS
    yield name, "histogram", labels, meaning
