"""The use of GPUs as ``NodeGpus`` reports it: memory in use, memory that containers claim, busy share. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from gputopo.model import NodeTopology
from gputopo.render.report import NONE
from gputopo.render.wording import UNKNOWN


class GpuUse(msgspec.Struct, frozen=True, rename="camel"):
    """The use of one GPU, in percent; measured values are in steps of 10. None: unknown."""

    gpu: int  # index
    used_memory_percent: int | None = None
    claimed_memory_percent: int | None = None
    busy_percent: int | None = None


def gpu_uses(topology: NodeTopology, state: NodeGpus | None) -> tuple[GpuUse, ...] | None:
    """Return the use of each GPU of the topology that is reported, by index; None: nothing is reported."""
    if state is None or state.usage is None:
        return None
    reported = {each.gpu: each for each in state.usage}
    known = [(gpu.index, reported[gpu.uuid]) for gpu in topology.gpus if gpu.uuid in reported]
    return tuple(
        GpuUse(index, each.used_memory_percent, each.claimed_memory_percent, each.busy_percent)
        for index, each in sorted(known, key=lambda pair: pair[0])
    )


def percent_range(percents: Iterable[int | None]) -> str:
    """Return ``40 %``, or ``0-90 %`` where GPUs differ; unknown if none is known."""
    known = [percent for percent in percents if percent is not None]
    if not known:
        return UNKNOWN
    low, high = min(known), max(known)
    return f"{low} %" if low == high else f"{low}-{high} %"


def use_cells(uses: Iterable[GpuUse] | None) -> tuple[str, str, str]:
    """Return the texts of memory used, memory claimed and busy share."""
    found = tuple(uses or ())
    if uses is not None and not found:
        return (NONE, NONE, NONE)
    return (
        percent_range(each.used_memory_percent for each in found),
        percent_range(each.claimed_memory_percent for each in found),
        percent_range(each.busy_percent for each in found),
    )
