"""The metrics of whatever follows the cluster: how its watches do, and what is known of the nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gputopo.process.metrics import MetricHelp, Sample
from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.free_islands import free_islands
from scheduler_core.cache.node_table import Snapshot

CLUSTER_TALLIES = {
    "gputopo_watch_relists": MetricHelp(("kind",), "Lists after the first: the watch had fallen too far behind."),
    "gputopo_watch_failures": MetricHelp(("kind",), "Calls of the API server that failed, and watches that broke."),
}
CLUSTER_GAUGES = {
    "gputopo_watch_synced": MetricHelp(("kind",), "1 where a complete list was taken in: nodes, pods, nodegpus, ..."),
    "gputopo_watch_age_seconds": MetricHelp(
        ("kind",), "Since the API server was last heard of that kind, bookmarks included."
    ),
    "gputopo_watch_lag_seconds": MetricHelp(
        ("kind",), "How long the object created last took to get here; whole seconds."
    ),
    "gputopo_watch_unreadable": MetricHelp(
        ("kind",), "Objects that cannot be read. Each counts as it was when it was last read, or not at all."
    ),
    "gputopo_cache_age_seconds": MetricHelp((), "The greatest of these ages: as old may be what is decided on."),
    "gputopo_table_generation": MetricHelp((), "Generation of the node table; it grows with every change."),
    "gputopo_table_nodes": MetricHelp((), "Nodes in the table."),
    "gputopo_table_stale_nodes": MetricHelp((), "Nodes that carry a topology which no agent confirms now."),
    "gputopo_gpu_pods": MetricHelp((), "Pods that hold or want GPUs."),
    "gputopo_free_islands": MetricHelp(
        ("size", "product"),
        "NVLink islands by the number of GPUs that are free in them for certain, and product. None of 8 while there "
        "are many of 2 is fragmentation.",
    ),
}


def watch_samples(watches: Iterable[WatchStatus]) -> Iterator[Sample]:
    """The samples of watches, and how old by them the oldest news may be."""
    ages = []
    for each in watches:
        yield from _of_watch(each)
        ages.append(each.last_event_age_s)
    if ages and None not in ages:
        yield "gputopo_cache_age_seconds", (), max(age for age in ages if age is not None)


def _of_watch(watch: WatchStatus) -> Iterator[Sample]:
    kind = (watch.kind,)
    yield "gputopo_watch_synced", kind, watch.synced
    yield "gputopo_watch_relists", kind, watch.relists
    yield "gputopo_watch_failures", kind, watch.failures
    yield "gputopo_watch_unreadable", kind, watch.unreadable
    if watch.last_event_age_s is not None:
        yield "gputopo_watch_age_seconds", kind, watch.last_event_age_s
    if watch.lag_s is not None:
        yield "gputopo_watch_lag_seconds", kind, watch.lag_s


def table_samples(table: Snapshot) -> Iterator[Sample]:
    """The samples of a table; many nodes take long, so let ``once_each`` keep them."""
    yield "gputopo_table_generation", (), table.generation
    yield "gputopo_table_nodes", (), len(table.states)
    yield "gputopo_table_stale_nodes", (), sum(state.stale for state in table.states.values())
    for island, number in sorted(free_islands(table.states).items()):
        yield "gputopo_free_islands", (str(island.size), island.product), number
