"""Lines of ``nvidia-smi`` about GPUs that it cannot reach; newer drivers continue with the other GPUs.

The messages are not an API; these are those of drivers 340 to 610.
"""

from __future__ import annotations

import re

import msgspec

from agent.sources.bus_id import sysfs_bus_id
from agent.sources.smi.lines import OutputLine


class UnreachableGpu(msgspec.Struct, frozen=True):
    """A GPU that nvidia-smi cannot reach."""

    index: int | None  # NVML index, where it was printed
    bus_id: str | None  # sysfs spelling
    why: str  # "Unknown Error", "GPU is lost"


def parse_unreachable(line: OutputLine) -> UnreachableGpu | None:
    """Return the GPU of a line like "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error"."""
    match = re.match(_UNREACHABLE, line.text, re.IGNORECASE)
    if match is None:
        return None
    index, bus_id, why = match.groups()
    return UnreachableGpu(int(index) if index else None, sysfs_bus_id(bus_id or ""), why.strip())


# "GPU0000:CB:00.0: ..." (until 5xx), "GPU 0000:66:00.0: ...", "GPU1: 0000:34:00.0: ...", "GPU1: ..."
_UNREACHABLE = (
    r"Unable to determine the device handle for gpu\s{0,8}(?:(\d{1,3}):\s)?\s{0,8}"
    r"(?:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]):\s)?(.*)"
)
