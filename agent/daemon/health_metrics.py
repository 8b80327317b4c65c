"""Metrics of error counters, ECC and the place in the rack, from one reading of NVML. Pure.

A node with 8 GPUs has 144 NVLinks of several counters each, nearly all of them 0, and a cluster has thousands of nodes.
So the sum of each GPU is always exported, and single links only once they have errors: at most ``MAX_LINKS``, those
with the most recoveries first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import sha256

from agent.snapshot import Nvml, NvmlGpu, NvmlLink
from agent.sources.bus_id import sysfs_bus_id
from gputopo.process.metrics import MetricHelp, Sample

MAX_LINKS = 64  # per node
_KINDS = (
    "replay and crc (NVLink 4 and older), receive and effective (NVLink 5): transmission errors; recovery (4 and "
    "older), recovered, recovery_failed (5): the link was trained again"
)
HEALTH_TALLIES = {
    "gputopo_gpu_nvlink_errors": MetricHelp(
        ("gpu", "kind"), f"NVLink errors of all links of a GPU since the driver was loaded. {_KINDS}."
    ),
    "gputopo_nvlink_errors": MetricHelp(
        ("gpu", "link", "kind"),
        f"NVLink errors of one link, by kind as for its GPU. Only links with errors; at most {MAX_LINKS} of a node.",
    ),
    "gputopo_gpu_ecc_errors": MetricHelp(
        ("gpu", "type"), "Memory errors since the driver was loaded: corrected, uncorrected."
    ),
    "gputopo_gpu_remapped_rows": MetricHelp(
        ("gpu", "cause"), "Memory rows that were remapped, by the kind of error: correctable, uncorrectable."
    ),
}
HEALTH_GAUGES = {
    "gputopo_gpu_row_remap_pending": MetricHelp(
        ("gpu",), "1 where a remapped memory row takes effect at the next reset of the GPU."
    ),
    "gputopo_gpu_row_remap_failed": MetricHelp(
        ("gpu",), "1 where a memory row could not be remapped: replace the GPU."
    ),
    "gputopo_gpu_c2c_links": MetricHelp(("gpu", "state"), "C2C links of a Grace superchip: up, down."),
    "gputopo_gpu_platform_info": MetricHelp(
        ("gpu", "rack", "slot", "tray", "host", "module"),
        "Always 1; the place of the GPU in its rack. The rack is a hash of the serial number of the chassis.",
    ),
}


def health_samples(nvml: Nvml | None) -> Iterator[Sample]:
    """Yield the samples of all GPUs that answer; no series where a GPU does not have a counter."""
    gpus = [(_name(gpu), gpu) for gpu in (nvml.gpus if nvml else ()) if gpu.access_error is None]
    for name, gpu in gpus:
        sums: Counter[str] = Counter()
        for link in gpu.nvlinks:
            sums.update(link.counters)
        for kind, total in sums.items():
            yield "gputopo_gpu_nvlink_errors", (name, kind), total
        yield from _memory_samples(name, gpu)
        yield from _place_samples(name, gpu)
    yield from _link_samples([(name, link) for name, gpu in gpus for link in gpu.nvlinks])


def _name(gpu: NvmlGpu) -> str:
    """Return the name of a GPU in the other metrics (``agent.daemon.gpu_name``)."""
    return gpu.uuid or sysfs_bus_id(gpu.bus_id or "") or f"gpu{gpu.index}"


def _memory_samples(name: str, gpu: NvmlGpu) -> Iterator[Sample]:
    for kind, errors in (("corrected", gpu.ecc_corrected), ("uncorrected", gpu.ecc_uncorrected)):
        if errors is not None:
            yield "gputopo_gpu_ecc_errors", (name, kind), errors
    if gpu.remapped_rows is not None:
        correctable, uncorrectable, pending, failed = gpu.remapped_rows
        yield "gputopo_gpu_remapped_rows", (name, "correctable"), correctable
        yield "gputopo_gpu_remapped_rows", (name, "uncorrectable"), uncorrectable
        yield "gputopo_gpu_row_remap_pending", (name,), bool(pending)
        yield "gputopo_gpu_row_remap_failed", (name,), bool(failed)


def _place_samples(name: str, gpu: NvmlGpu) -> Iterator[Sample]:
    if gpu.c2c_links:
        up = sum(link.active is True for link in gpu.c2c_links)
        yield "gputopo_gpu_c2c_links", (name, "up"), up
        yield "gputopo_gpu_c2c_links", (name, "down"), sum(link.active is False for link in gpu.c2c_links)
    if gpu.platform is not None:
        place = gpu.platform
        numbers = (place.slot, place.tray, place.host, place.module)
        rack = "" if place.chassis is None else sha256(place.chassis.encode()).hexdigest()[:8]
        labels = (rack, *("" if number is None else str(number) for number in numbers))
        yield "gputopo_gpu_platform_info", (name, *labels), 1


def _link_samples(links: list[tuple[str, NvmlLink]]) -> Iterator[Sample]:
    faulty = [(name, link) for name, link in links if any(link.counters.values())]
    worst = sorted(faulty, key=lambda each: (-_recoveries(each[1]), -sum(each[1].counters.values())))
    for name, link in worst[:MAX_LINKS]:
        for kind, value in link.counters.items():
            yield "gputopo_nvlink_errors", (name, str(link.link), kind), value


def _recoveries(link: NvmlLink) -> int:
    return sum(value for kind, value in link.counters.items() if kind.startswith("recover"))
