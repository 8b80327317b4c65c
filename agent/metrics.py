"""The agent's metrics, on a registry of their own: nothing of the process is touched by importing or making them.

What the machine is comes from the status at the moment of a scrape, so that a GPU that is gone leaves no series behind
and a scrape never sees half an update. ``described`` goes into docs/metrics.md.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.status import Status
from gputopo import __version__
from gputopo.model import Gpu, Link, NodeTopology, Uplink

_PASS_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # without persistence mode a pass takes seconds

# name -> (labels, meaning); on the wire each ends in _total.
COUNTERS: dict[str, tuple[tuple[str, ...], str]] = {
    "gputopo_passes": (("outcome",), "Looks at the machine: ok, or failed where NVML did not answer."),
    "gputopo_wakeups": (("reason",), "Extra looks, by what caused them."),
    "gputopo_source_failures": (("source",), "Looks in which a source failed."),
    "gputopo_writes": (("object",), "Writes that were accepted: node, nodegpus, event."),
    "gputopo_publish_failures": (("object",), "Attempts to publish that failed: node, nodegpus, event."),
}
DURATION = ("gputopo_pass_duration_seconds", "Duration of a look at the machine.")
# name -> (labels, meaning). A GPU is labelled by UUID, or by bus id or index where it told none.
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "gputopo_build_info": (("version", "python"), "Always 1; what this agent is."),
    "gputopo_gpu_info": (("gpu", "index", "product", "bus_id", "numa_node"), "Always 1; what a GPU is."),
    "gputopo_gpu_up": (("gpu",), "1 where the driver can talk to the GPU, 0 where it is lost."),
    "gputopo_gpu_memory_bytes": (("gpu",), "Memory of a GPU; no series where unknown."),
    "gputopo_gpu_holders": (("gpu",), "Containers that hold the GPU or a part of it; no series where not known."),
    "gputopo_island_gpus": (("island", "interconnect"), "GPUs in an NVLink island, named by its first GPU's index."),
    "gputopo_island_bandwidth_gigabytes_per_second": (
        ("island", "interconnect"),
        "NVLink bandwidth per GPU in an island, both ways, of its weakest member.",
    ),
    "gputopo_link_lanes": (("a", "b"), "Active NVLinks between two GPUs (by index), or from one into an NVSwitch."),
    "gputopo_link_expected_lanes": (("a", "b"), "NVLinks that should be active there, where that is known."),
    "gputopo_link_bandwidth_gigabytes_per_second": (("a", "b"), "Bandwidth of the active NVLinks there, both ways."),
    "gputopo_link_state": (("a", "b", "state"), "1 for the state that a link is in: up, degraded or down."),
    "gputopo_degraded": (("what",), "1 for everything that is worse than it should be, as it was seen last."),
    "gputopo_published_degraded": ((), "1 where the published topology says degraded; recovery is published late."),
    "gputopo_observed_timestamp_seconds": ((), "When NVML last answered a whole look; what NodeGpus calls observedAt."),
    "gputopo_source_up": (("source",), "1 where a source answered the last look; 0 where its earlier facts are kept."),
    "gputopo_source_good_timestamp_seconds": (("source",), "When a source last answered."),
    "gputopo_podresources_up": ((), "1 where the kubelet tells which pod holds which GPU."),
    "gputopo_keys_kept_by_others": ((), "Labels that we would write and that somebody else owns."),
    "gputopo_published": ((), "1 where everything is published as it is, 0 while something waits."),
    "gputopo_ready": ((), "1 where /readyz says so."),
}


class Metrics:
    """Counters that the loop bumps, and the gauges of its status."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str) -> Counter:
            labels, meaning = COUNTERS[name]
            return Counter(name, meaning, labels, registry=self.registry)

        self.passes = counter("gputopo_passes")
        self.wakeups = counter("gputopo_wakeups")
        self.source_failures = counter("gputopo_source_failures")
        self.writes = counter("gputopo_writes")
        self.publish_failures = counter("gputopo_publish_failures")
        self.pass_seconds = Histogram(*DURATION, registry=self.registry, buckets=_PASS_SECONDS)

    def expose(self, status: Callable[[], Status]) -> None:
        """Add the gauges of a status that is asked for at every scrape."""
        self.registry.register(_Gauges(status))


class _Gauges(Collector):
    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        families = {name: GaugeMetricFamily(name, meaning, labels=labels) for name, (labels, meaning) in GAUGES.items()}
        for name, labels, value in samples(self._status()):
            families[name].add_metric(labels, value)
        return iter(families.values())


Sample = tuple[str, tuple[str, ...], float]


def samples(status: Status) -> Iterator[Sample]:
    """Every sample of a status: name, label values, value. Pure."""
    yield "gputopo_build_info", (__version__, platform.python_version()), 1
    if status.observed is not None:
        yield from _of_topology(status.observed)
        yield from _of_holders(status, status.observed)
    if status.published is not None:
        yield "gputopo_published_degraded", (), bool(status.published.degraded)
    if status.observed_at is not None:
        yield "gputopo_observed_timestamp_seconds", (), status.observed_at
    for source in sorted({*status.good_at, *status.failures}):
        yield "gputopo_source_up", (source,), source not in status.failures
    for source, at in status.good_at.items():
        yield "gputopo_source_good_timestamp_seconds", (source,), at
    yield "gputopo_podresources_up", (), status.podresources is None
    yield "gputopo_keys_kept_by_others", (), len(status.kept_by_others)
    yield "gputopo_published", (), not status.behind
    yield "gputopo_ready", (), status.unready is None


def _of_topology(topology: NodeTopology) -> Iterator[Sample]:
    for gpu in topology.gpus:
        facts = (str(gpu.index), gpu.product, gpu.bus_id, None if gpu.numa_node is None else str(gpu.numa_node))
        yield "gputopo_gpu_info", (_name(gpu), *(fact or "" for fact in facts)), 1
        yield "gputopo_gpu_up", (_name(gpu),), gpu.usable
        if gpu.memory_mib is not None:
            yield "gputopo_gpu_memory_bytes", (_name(gpu),), gpu.memory_mib * 2**20
    for island in topology.islands or ():
        labels = (str(island.gpus[0]), island.interconnect.value)
        yield "gputopo_island_gpus", labels, island.size
        if island.gbps is not None:
            yield "gputopo_island_bandwidth_gigabytes_per_second", labels, island.gbps
    yield from _of_links(topology)
    for what in dict.fromkeys(each.what for each in topology.degraded):
        yield "gputopo_degraded", (what,), 1


def _of_links(topology: NodeTopology) -> Iterator[Sample]:
    if topology.nvlink is None:
        return
    edges: list[tuple[tuple[str, str], Link | Uplink]] = []
    edges += [((str(link.a), str(link.b)), link) for link in topology.nvlink.links]
    edges += [((str(up.gpu), f"nvswitch{up.fabric}"), up) for up in topology.nvlink.uplinks]
    for ends, edge in edges:
        yield "gputopo_link_lanes", ends, edge.lanes
        if edge.expected_lanes is not None:
            yield "gputopo_link_expected_lanes", ends, edge.expected_lanes
        if edge.gbps is not None:
            yield "gputopo_link_bandwidth_gigabytes_per_second", ends, edge.gbps
        for state in ("up", "degraded", "down"):
            yield "gputopo_link_state", (*ends, state), state == _state(edge)


def _state(edge: Link | Uplink) -> str:
    if edge.lanes == 0:
        return "down"
    return "up" if edge.expected_lanes in (None, edge.lanes) else "degraded"


def _of_holders(status: Status, topology: NodeTopology) -> Iterator[Sample]:
    if status.allocations is None:
        return
    for gpu in topology.gpus:
        holders = {each.pod for each in status.allocations if each.gpu == gpu.uuid}
        yield "gputopo_gpu_holders", (_name(gpu),), len(holders)


def _name(gpu: Gpu) -> str:
    return gpu.uuid or gpu.bus_id or f"gpu{gpu.index}"


def described() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Every metric: name on the wire, type, labels, meaning."""
    yield from ((f"{name}_total", "counter", *about) for name, about in COUNTERS.items())
    yield from ((name, "gauge", *about) for name, about in GAUGES.items())
    yield DURATION[0], "histogram", (), DURATION[1]
