"""The metrics of every program that watches the cluster: its watches and its snapshot of the nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gputopo.process.metrics import MetricHelp, Sample
from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.free_islands import free_islands
from scheduler_core.cache.node_table import ClusterSnapshot

CLUSTER_TALLIES = {
    "gputopo_watch_relists": MetricHelp(("kind",), "Lists after the first: the watch had fallen too far behind."),
    "gputopo_watch_failures": MetricHelp(("kind",), "Failed calls of the API server, and broken watches."),
}
CLUSTER_GAUGES = {
    "gputopo_watch_synced": MetricHelp(("kind",), "1 where a complete list was applied: nodes, pods, nodegpus, ..."),
    "gputopo_watch_age_seconds": MetricHelp(
        ("kind",), "Time since the API server last sent anything about the kind, bookmarks included."
    ),
    "gputopo_watch_lag_seconds": MetricHelp(
        ("kind",), "Time from creation to arrival of the object created last, in whole seconds."
    ),
    "gputopo_watch_unreadable": MetricHelp(
        ("kind",), "Objects that cannot be decoded. Each counts as last decoded, or not at all."
    ),
    "gputopo_cache_age_seconds": MetricHelp(
        (), "Age of the oldest data in use: the greatest `gputopo_watch_age_seconds`."
    ),
    "gputopo_table_generation": MetricHelp((), "Generation of the snapshot of nodes; it grows with every change."),
    "gputopo_table_nodes": MetricHelp((), "Nodes in the snapshot."),
    "gputopo_table_stale_nodes": MetricHelp((), "Nodes with a topology that no agent confirms now."),
    "gputopo_gpu_pods": MetricHelp((), "Pods that request or hold GPUs."),
    "gputopo_free_islands": MetricHelp(
        ("size", "product"),
        "NVLink islands by the number of GPUs that are certainly free in them, and by product. Many islands with 2 "
        "and none with 8 means fragmentation. Nodes that take no new pods count, too.",
    ),
}


def watch_samples(watches: Iterable[WatchStatus]) -> Iterator[Sample]:
    """Yield the samples of all watches, and the greatest age among them."""
    ages = []
    for each in watches:
        yield from _samples_of(each)
        ages.append(each.last_event_age_s)
    if ages and None not in ages:
        yield "gputopo_cache_age_seconds", (), max(age for age in ages if age is not None)


def _samples_of(watch: WatchStatus) -> Iterator[Sample]:
    kind = (watch.kind,)
    yield "gputopo_watch_synced", kind, watch.synced
    yield "gputopo_watch_relists", kind, watch.relists
    yield "gputopo_watch_failures", kind, watch.failures
    yield "gputopo_watch_unreadable", kind, watch.unreadable
    if watch.last_event_age_s is not None:
        yield "gputopo_watch_age_seconds", kind, watch.last_event_age_s
    if watch.lag_s is not None:
        yield "gputopo_watch_lag_seconds", kind, watch.lag_s


def snapshot_samples(snapshot: ClusterSnapshot, pause: Callable[[], None] = lambda: None) -> Iterator[Sample]:
    """Yield the samples of a snapshot. This takes up to 40 ms with 15,000 nodes, so the samples should be kept.

    ``pause``: is called before each different state of a node.
    """
    yield "gputopo_table_generation", (), snapshot.generation
    yield "gputopo_table_nodes", (), len(snapshot.states)
    yield "gputopo_table_stale_nodes", (), sum(state.stale for state in snapshot.states.values())
    for island, number in sorted(free_islands(snapshot.states, pause).items()):
        yield "gputopo_free_islands", (str(island.size), island.product), number
