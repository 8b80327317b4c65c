"""What nobody told of the GPUs, once per fact and with what could tell it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from agent.discover.parsed import Heard
from gputopo.model import Gpu, Problem, ProblemKind

# Field of Gpu -> its name in the public JSON, and what would tell it to somebody who pasted too little.
_FACTS = {
    "product": ("product", "`nvidia-smi -L` tells it"),
    "memory_mib": ("memoryMiB", "`nvidia-smi -q` tells it"),
    "numa_node": ("numaNode", "/sys/bus/pci/devices/*/numa_node tells it, except in most virtual machines"),
}


def unknown(heard: Heard, gpus: tuple[Gpu, ...]) -> Iterator[Problem]:
    """A problem for each fact that is missing of some GPU."""
    said = ", ".join(_sources(heard))
    for field, (name, hint) in _FACTS.items():
        without = [str(gpu.index) for gpu in gpus if gpu.usable and getattr(gpu, field) is None]
        which = "" if len(without) == len(gpus) else f" for GPU {', '.join(without)}"
        if without:
            yield Problem(f"gpus.{name}", ProblemKind.UNKNOWN, f"not told by {said}{which}; {hint}")


def _sources(heard: Heard) -> Iterator[str]:
    if heard.nvml is not None:
        yield "NVML"
    for command in heard.snapshot.smi or {}:
        yield f"nvidia-smi {command}"
    if heard.snapshot.sysfs is not None:
        yield "sysfs"
    if heard.snapshot.nccl is not None:
        yield "the NCCL topology"
    if heard.snapshot.lstopo is not None:
        yield "hwloc"
