"""Machines with C2C links."""

from __future__ import annotations

import msgspec

from gputopo.gpu import C2c
from gputopo.model import NodeTopology
from tests.machines import gb200_tray

UP, DOWN, OFF, UNRATED = C2c(10, 10, 894.2), C2c(9, 10, 804.8), C2c(0, 10, 0.0), C2c(10, 10)


def tray(*links: C2c | None) -> NodeTopology:
    """A tray with two GPUs on each of two CPUs, and the link of each GPU."""
    topology = gb200_tray()
    gpus = tuple(msgspec.structs.replace(gpu, c2c=c2c) for gpu, c2c in zip(topology.gpus, links, strict=True))
    return msgspec.structs.replace(topology, gpus=gpus)
