"""The lines in a GPU's box, and the height of the boxes (the same for all in a drawing)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gputopo.render.svg.geometry import GPU_W
from gputopo.render.svg.words import TIMES, short_product
from gputopo.render.wording import escape_invisible, format_gib

if TYPE_CHECKING:
    from gputopo.model import Gpu, NodeTopology
    from gputopo.render.svg.marks import Marks

PAD = 9.0
HEAD = 24.0  # baseline of the first line below the head is a LINE further
LINE = 15.0
STRIP = 22.0  # MIG slices, with the air above them
FOOT = 9.0
_SLICES = 7  # compute slices of a whole GPU


class Slice(NamedTuple):
    """A MIG device, as a part of the strip."""

    x: float  # from the strip's left end
    w: float
    label: str  # "3g"; "" where it would not fit
    profile: str


def box_lines(gpu: Gpu) -> tuple[str, ...]:
    """Return the lines below "GPU 0": product, memory, special facts."""
    lines = [short_product(gpu.product)] if gpu.product else []
    if gpu.memory_mib is not None:
        lines.append(format_gib(gpu.memory_mib))
    if gpu.memory_numa_node is not None:
        lines.append(f"mem NUMA {gpu.memory_numa_node}")
    return tuple(lines) + _mig_lines(gpu)


def slices(gpu: Gpu) -> tuple[Slice, ...]:
    """Return the strip of MIG devices; as wide as the box if all seven compute slices are in use."""
    parts = [int(found[1]) if (found := re.search(r"(\d+)g\.", each.profile or "")) else 1 for each in gpu.mig_devices]
    unit = (GPU_W - 2 * PAD) / max(_SLICES, sum(parts))
    return tuple(
        Slice(sum(parts[:place]) * unit, part * unit, f"{part}g" if part > 1 else "", each.profile or "?")
        for place, (part, each) in enumerate(zip(parts, gpu.mig_devices, strict=True))
    )


def box_height(topology: NodeTopology, marks: Marks) -> float:
    """Return the height for the GPU with the most lines; alerts are beside the second line."""
    alarm = any(gpu.index in marks.gpus or not gpu.usable for gpu in topology.gpus)
    lines = max((2 * alarm, *(len(box_lines(gpu)) for gpu in topology.gpus)), default=0)
    strip = STRIP if any(gpu.mig_devices for gpu in topology.gpus) else 0.0
    return HEAD + LINE * lines + strip + FOOT


def _mig_lines(gpu: Gpu) -> tuple[str, ...]:
    if not gpu.mig_enabled:
        return ()
    profiles = {each.profile or "?" for each in gpu.mig_devices}
    if len(profiles) == 1:
        return (f"{len(gpu.mig_devices)} {TIMES} {escape_invisible(profiles.pop())}",)
    return (f"{len(gpu.mig_devices)} MIG devices" if profiles else "MIG, no devices",)
