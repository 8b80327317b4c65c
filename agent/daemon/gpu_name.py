"""The name of a GPU in Events, in metrics and in the damping history. Pure."""

from __future__ import annotations

from gputopo.model import Gpu


def stable_name(gpu: Gpu) -> str:
    """Return the UUID, else the bus id, else the index, which changes when another GPU is lost."""
    return gpu.uuid or gpu.bus_id or f"gpu{gpu.index}"
