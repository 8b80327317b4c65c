"""A machine on which the device plugin may crash."""

from __future__ import annotations

import msgspec

from gputopo.model import Link, NodeTopology, Nvlink
from tests.scheduler_core.explain.fleets import H100

CRASHING = NodeTopology(
    gpus=tuple(msgspec.structs.replace(gpu, numa_node=0) for gpu in H100.gpus[:5]),
    nvlink=Nvlink(
        links=(
            Link(a=0, b=1, lanes=12, gbps=600.0),
            *(Link(a=a, b=b, lanes=1, gbps=50.0) for a in range(5) for b in range(a + 1, 5) if (a, b) != (0, 1)),
        )
    ),
    pcie=tuple(tuple(None if a == b else H100.pcie[0][1] for b in range(5)) for a in range(5)),
)  # three of five may crash the device plugin: see test_filters
