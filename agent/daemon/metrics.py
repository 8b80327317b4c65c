"""The agent's metrics. Gauges are computed from the status at scrape time.

To add a metric, add it to ``CATALOGUE``; docs/metrics.md is generated from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry

from agent.daemon.gpu_name import stable_name
from agent.daemon.health_metrics import HEALTH_GAUGES, HEALTH_TALLIES, health_samples
from agent.daemon.status import AgentStatus
from gputopo.model import Link, NodeTopology, Uplink
from gputopo.process.metrics import BUILD, HistogramHelp, MetricCatalogue, MetricHelp, Sample

_PASS_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # without persistence mode a pass takes seconds

COUNTERS = {
    "gputopo_passes": MetricHelp(("outcome",), "Discovery passes: ok, or failed because NVML did not answer."),
    "gputopo_wakeups": MetricHelp(("reason",), "Extra passes, by their cause."),
    "gputopo_source_failures": MetricHelp(("source",), "Passes in which a source failed."),
    "gputopo_writes": MetricHelp(("object",), "Successful writes: node, nodegpus, lease, event."),
    "gputopo_publish_failures": MetricHelp(("object",), "Failed writes: node, nodegpus, event."),
    "gputopo_restorations": MetricHelp(
        ("object",), "Writes that restored keys of the agent that another client had changed: node, nodegpus."
    ),
}
TIMES = {"gputopo_pass_duration_seconds": HistogramHelp((), "Duration of a discovery pass.", _PASS_SECONDS)}
# The label of a GPU is its UUID, else its bus id or index.
GAUGES = {
    "gputopo_build_info": MetricHelp(("version", "python"), "Always 1; version of the agent and of Python."),
    "gputopo_gpu_info": MetricHelp(("gpu", "index", "product", "bus_id", "numa_node"), "Always 1; facts of a GPU."),
    "gputopo_gpu_up": MetricHelp(("gpu",), "1 where the driver can reach the GPU, 0 where the GPU is lost."),
    "gputopo_gpu_memory_bytes": MetricHelp(("gpu",), "Memory of a GPU; no series where unknown."),
    "gputopo_gpu_memory_used_bytes": MetricHelp(
        ("gpu",), "Memory of a GPU in use, with what the driver reserves; no series where unknown."
    ),
    "gputopo_gpu_memory_claimed_ratio": MetricHelp(
        ("gpu",),
        "Part of a GPU's memory that containers hold by their devices, 0 to 1, whether they use it or not; no series "
        "where unknown.",
    ),
    "gputopo_gpu_busy_ratio": MetricHelp(
        ("gpu",),
        "Part of the time in which a kernel ran on a GPU, 0 to 1: the mean of samples in the last 10 minutes; no "
        "series where unknown, as in MIG mode.",
    ),
    "gputopo_gpu_holders": MetricHelp(
        ("gpu",), "Containers that hold the GPU or a part of it; no series where unknown."
    ),
    "gputopo_island_gpus": MetricHelp(
        ("island", "interconnect"), "GPUs in an NVLink island; an island is named by the index of its first GPU."
    ),
    "gputopo_island_bandwidth_gigabytes_per_second": MetricHelp(
        ("island", "interconnect"),
        "NVLink bandwidth per GPU in an island, both ways: the lowest of its GPUs.",
    ),
    "gputopo_link_lanes": MetricHelp(
        ("a", "b"), "Active NVLinks between two GPUs (by index), or from a GPU to an NVSwitch."
    ),
    "gputopo_link_expected_lanes": MetricHelp(("a", "b"), "Expected active NVLinks; no series where unknown."),
    "gputopo_link_bandwidth_gigabytes_per_second": MetricHelp(
        ("a", "b"), "Bandwidth of the active NVLinks, both ways."
    ),
    "gputopo_link_state": MetricHelp(("a", "b", "state"), "1 for the current state of a link: up, degraded or down."),
    "gputopo_degraded": MetricHelp(("what",), "1 for each degradation in the last pass."),
    "gputopo_published_degraded": MetricHelp(
        (), "1 where the published topology is degraded; recovery is published after the hold-down."
    ),
    "gputopo_observed_timestamp_seconds": MetricHelp(
        (), "The last pass in which NVML answered; renewTime in the Lease of the node."
    ),
    "gputopo_source_up": MetricHelp(
        ("source",), "1 where a source answered in the last pass; 0 where its last good facts are used."
    ),
    "gputopo_source_good_timestamp_seconds": MetricHelp(("source",), "When a source last answered."),
    "gputopo_nvml_call_failed": MetricHelp(
        ("call",), "1 for each NVML call that failed in the last pass; its last result is used where there is one."
    ),
    **HEALTH_GAUGES,
    "gputopo_podresources_up": MetricHelp((), "1 where the kubelet reports the allocated GPUs."),
    "gputopo_keys_kept_by_others": MetricHelp(
        (), "Labels that are not written because another field manager owns them."
    ),
    "gputopo_published": MetricHelp((), "1 where the current state is published, 0 while a change is pending."),
    "gputopo_ready": MetricHelp((), "1 where /readyz succeeds."),
}
CATALOGUE = MetricCatalogue(COUNTERS, GAUGES, HEALTH_TALLIES, times=TIMES)


class AgentMetrics:
    """The counters of the loop, and the gauges of its status."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(CATALOGUE.counter, self.registry)
        self.passes = counter("gputopo_passes")
        self.wakeups = counter("gputopo_wakeups")
        self.source_failures = counter("gputopo_source_failures")
        self.writes = counter("gputopo_writes")
        self.publish_failures = counter("gputopo_publish_failures")
        self.restorations = counter("gputopo_restorations")
        self.pass_seconds = CATALOGUE.histogram(self.registry, "gputopo_pass_duration_seconds")

    def register_status(self, status: Callable[[], AgentStatus]) -> None:
        """Register the gauges of the status, which is read at every scrape."""
        CATALOGUE.register_samples(self.registry, lambda: status_samples(status()))


def status_samples(status: AgentStatus) -> Iterator[Sample]:
    """Yield every sample of a status. Pure."""
    yield "gputopo_build_info", BUILD, 1
    if status.observed is not None:
        yield from _topology_samples(status.observed)
        yield from _holder_samples(status, status.observed)
        yield from _usage_samples(status, status.observed)
    yield from health_samples(status.nvml)
    for call in status.failed_calls:
        yield "gputopo_nvml_call_failed", (call,), 1
    if status.published is not None:
        yield "gputopo_published_degraded", (), bool(status.published.degraded)
    if status.observed_at is not None:
        yield "gputopo_observed_timestamp_seconds", (), status.observed_at
    for source in sorted({*status.good_at, *status.failures}):
        yield "gputopo_source_up", (source,), source not in status.failures
    for source, at in status.good_at.items():
        yield "gputopo_source_good_timestamp_seconds", (source,), at
    yield "gputopo_podresources_up", (), status.podresources_error is None
    yield "gputopo_keys_kept_by_others", (), len(status.kept_by_others)
    yield "gputopo_published", (), not status.pending
    yield "gputopo_ready", (), status.unready_reason is None


def _topology_samples(topology: NodeTopology) -> Iterator[Sample]:
    for gpu in topology.gpus:
        facts = (str(gpu.index), gpu.product, gpu.bus_id, None if gpu.numa_node is None else str(gpu.numa_node))
        yield "gputopo_gpu_info", (stable_name(gpu), *(fact or "" for fact in facts)), 1
        yield "gputopo_gpu_up", (stable_name(gpu),), gpu.usable
        if gpu.memory_mib is not None:
            yield "gputopo_gpu_memory_bytes", (stable_name(gpu),), gpu.memory_mib * 2**20
    for island in topology.islands or ():
        labels = (str(island.gpus[0]), island.interconnect.value)
        yield "gputopo_island_gpus", labels, island.size
        if island.gbps is not None:
            yield "gputopo_island_bandwidth_gigabytes_per_second", labels, island.gbps
    yield from _link_samples(topology)
    for what in dict.fromkeys(each.what for each in topology.degraded):
        yield "gputopo_degraded", (what,), 1


def _link_samples(topology: NodeTopology) -> Iterator[Sample]:
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
            yield "gputopo_link_state", (*ends, state), state == _link_state(edge)


def _link_state(edge: Link | Uplink) -> str:
    if edge.lanes == 0:
        return "down"
    return "up" if edge.expected_lanes in (None, edge.lanes) else "degraded"


def _holder_samples(status: AgentStatus, topology: NodeTopology) -> Iterator[Sample]:
    if status.allocations is None:
        return
    for gpu in topology.gpus:
        holders = {each.pod for each in status.allocations if each.gpu == gpu.uuid}
        yield "gputopo_gpu_holders", (stable_name(gpu),), len(holders)


def _usage_samples(status: AgentStatus, topology: NodeTopology) -> Iterator[Sample]:
    used = {gpu.uuid: gpu.memory_used_bytes for gpu in (status.nvml.gpus if status.nvml else ())}
    for gpu in topology.gpus:
        if gpu.uuid is None:
            continue
        load, bytes_used, claimed = status.load.get(gpu.uuid), used.get(gpu.uuid), status.claims.get(gpu.uuid)
        if bytes_used is not None:
            yield "gputopo_gpu_memory_used_bytes", (stable_name(gpu),), bytes_used
        if claimed is not None:
            yield "gputopo_gpu_memory_claimed_ratio", (stable_name(gpu),), claimed / 100
        if load is not None and load.busy_percent is not None:
            yield "gputopo_gpu_busy_ratio", (stable_name(gpu),), load.busy_percent / 100
