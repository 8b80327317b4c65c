"""Parts of the hardware that work and will soon fail, by one reading of their counters. Pure.

Rules: a row of the GPU's memory could not be remapped (NVIDIA's criterion for replacing a GPU); the driver failed to
recover an NVLink; a C2C link is down beside links that are up, or of a Grace superchip. Rules about the growth of
counters need several readings: ``agent.daemon.link_errors``. Other counters are metrics only.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.discover.products import is_superchip
from agent.snapshot import Nvml, NvmlGpu
from gputopo.model import Degradation


def find_early_warnings(nvml: Nvml) -> Iterator[Degradation]:
    """Yield a degradation for each part that will fail. Lost GPUs have failed already."""
    for gpu in nvml.gpus:
        if gpu.access_error is None:
            yield from _warnings(gpu)


def _warnings(gpu: NvmlGpu) -> Iterator[Degradation]:
    if gpu.remapped_rows is not None and gpu.remapped_rows[3]:
        yield Degradation(f"gpu{gpu.index}.memory", "a row of the memory could not be remapped: replace the GPU")
    for link in gpu.nvlinks:
        if link.counters.get("recovery_failed"):
            yield Degradation(f"gpu{gpu.index}.nvlink{link.link}", "the driver failed to recover the link")
    down = sum(link.active is False for link in gpu.c2c_links)
    if down and (any(link.active for link in gpu.c2c_links) or is_superchip(gpu.name)):
        yield Degradation(
            f"gpu{gpu.index}.c2c", f"{len(gpu.c2c_links) - down} of {len(gpu.c2c_links)} C2C links active"
        )
