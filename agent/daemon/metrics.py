"""The agent's metrics. What the machine is comes from the status at the moment of a scrape.

``CATALOGUE`` goes into docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry

from agent.daemon.status import Status
from gputopo.model import Gpu, Link, NodeTopology, Uplink
from gputopo.process.metrics import BUILD, About, Catalogue, Sample, Times

_PASS_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # without persistence mode a pass takes seconds

COUNTERS = {
    "gputopo_passes": About(("outcome",), "Looks at the machine: ok, or failed where NVML did not answer."),
    "gputopo_wakeups": About(("reason",), "Extra looks, by what caused them."),
    "gputopo_source_failures": About(("source",), "Looks in which a source failed."),
    "gputopo_writes": About(("object",), "Writes that were accepted: node, nodegpus, event."),
    "gputopo_publish_failures": About(("object",), "Attempts to publish that failed: node, nodegpus, event."),
}
TIMES = {"gputopo_pass_duration_seconds": Times((), "Duration of a look at the machine.", _PASS_SECONDS)}
# A GPU is labelled by UUID, or by bus id or index where it told none.
GAUGES = {
    "gputopo_build_info": About(("version", "python"), "Always 1; what this agent is."),
    "gputopo_gpu_info": About(("gpu", "index", "product", "bus_id", "numa_node"), "Always 1; what a GPU is."),
    "gputopo_gpu_up": About(("gpu",), "1 where the driver can talk to the GPU, 0 where it is lost."),
    "gputopo_gpu_memory_bytes": About(("gpu",), "Memory of a GPU; no series where unknown."),
    "gputopo_gpu_holders": About(("gpu",), "Containers that hold the GPU or a part of it; no series where not known."),
    "gputopo_island_gpus": About(
        ("island", "interconnect"), "GPUs in an NVLink island, named by its first GPU's index."
    ),
    "gputopo_island_bandwidth_gigabytes_per_second": About(
        ("island", "interconnect"),
        "NVLink bandwidth per GPU in an island, both ways, of its weakest member.",
    ),
    "gputopo_link_lanes": About(
        ("a", "b"), "Active NVLinks between two GPUs (by index), or from one into an NVSwitch."
    ),
    "gputopo_link_expected_lanes": About(("a", "b"), "NVLinks that should be active there, where that is known."),
    "gputopo_link_bandwidth_gigabytes_per_second": About(
        ("a", "b"), "Bandwidth of the active NVLinks there, both ways."
    ),
    "gputopo_link_state": About(("a", "b", "state"), "1 for the state that a link is in: up, degraded or down."),
    "gputopo_degraded": About(("what",), "1 for everything that is worse than it should be, as it was seen last."),
    "gputopo_published_degraded": About(
        (), "1 where the published topology says degraded; recovery is published late."
    ),
    "gputopo_observed_timestamp_seconds": About(
        (), "When NVML last answered a whole look; what NodeGpus calls observedAt."
    ),
    "gputopo_source_up": About(
        ("source",), "1 where a source answered the last look; 0 where its earlier facts are kept."
    ),
    "gputopo_source_good_timestamp_seconds": About(("source",), "When a source last answered."),
    "gputopo_podresources_up": About((), "1 where the kubelet tells which pod holds which GPU."),
    "gputopo_keys_kept_by_others": About((), "Labels that we would write and that somebody else owns."),
    "gputopo_published": About((), "1 where everything is published as it is, 0 while something waits."),
    "gputopo_ready": About((), "1 where /readyz says so."),
}
CATALOGUE = Catalogue(COUNTERS, GAUGES, times=TIMES)


class Metrics:
    """Counters that the loop bumps, and the gauges of its status."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(CATALOGUE.counter, self.registry)
        self.passes = counter("gputopo_passes")
        self.wakeups = counter("gputopo_wakeups")
        self.source_failures = counter("gputopo_source_failures")
        self.writes = counter("gputopo_writes")
        self.publish_failures = counter("gputopo_publish_failures")
        self.pass_seconds = CATALOGUE.histogram(self.registry, "gputopo_pass_duration_seconds")

    def expose(self, status: Callable[[], Status]) -> None:
        """Add the gauges of a status that is asked for at every scrape."""
        CATALOGUE.tell(self.registry, lambda: samples(status()))


def samples(status: Status) -> Iterator[Sample]:
    """Every sample of a status. Pure."""
    yield "gputopo_build_info", BUILD, 1
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
