"""The NVLinks of a topology, and the NVLink-C2C links of superchips, as edges of a graph, with captions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gputopo.render.places import numa_places
from gputopo.render.wording import c2c_label_text, format_lanes, format_number

if TYPE_CHECKING:
    from gputopo.model import Link, NodeTopology, Uplink


class DrawnEdge(msgspec.Struct, frozen=True):
    """An edge between a GPU and another GPU, an NVSwitch fabric or the CPU of its superchip."""

    gpu: int  # index
    peer: int | None  # GPU index; None: the peer is a fabric or a CPU
    fabric: int | None  # None: the peer is a GPU or a CPU
    lanes: int
    caption: str  # "NV12", "NV11/12 550 GB/s", "NVLink-C2C 900 GB/s"
    degraded: bool
    cpu: int | None = None  # the place of its NUMA node in ``numa_places``; None: no C2C link

    @property
    def far(self) -> str:
        """Return the name of the peer in a graph: ``gpu3``, ``nvswitch0``, ``cpu1``."""
        if self.cpu is not None:
            return f"cpu{self.cpu}"
        return f"nvswitch{self.fabric}" if self.peer is None else f"gpu{self.peer}"


def drawn_edges(topology: NodeTopology) -> tuple[DrawnEdge, ...]:
    """Return uplinks by GPU, then links by pair, also those that are down."""
    if topology.nvlink is None:
        return ()
    ups = [DrawnEdge(up.gpu, None, up.fabric, up.lanes, *_caption(up)) for up in topology.nvlink.uplinks]
    links = [DrawnEdge(link.a, link.b, None, link.lanes, *_caption(link)) for link in topology.nvlink.links]
    return (*ups, *links)


def c2c_edges(topology: NodeTopology) -> tuple[DrawnEdge, ...]:
    """Return the NVLink-C2C links between GPUs and CPUs, by NUMA node, also those that are down."""
    return tuple(
        DrawnEdge(gpu.index, None, None, c2c.lanes, f"NVLink-C2C {c2c_label_text(c2c)}", c2c.short, cpu)
        for cpu, place in enumerate(numa_places(topology))
        for gpu in place.gpus
        if (c2c := gpu.c2c) is not None
    )


def fabrics(topology: NodeTopology) -> dict[int, str]:
    """Return the names of the NVSwitch fabrics by number."""
    found: dict[int, bool] = {}
    for up in () if topology.nvlink is None else topology.nvlink.uplinks:
        found[up.fabric] = found.get(up.fabric, True) and up.assumed
    names = {fabric: "NVSwitch" if len(found) == 1 else f"NVSwitch {fabric}" for fabric in sorted(found)}
    return {fabric: f"{name} (assumed)" if found[fabric] else name for fabric, name in names.items()}


def _caption(edge: Link | Uplink) -> tuple[str, bool]:
    lanes = format_lanes(edge)
    if edge.gbps is None or not edge.lanes:
        return lanes, edge.short
    return f"{lanes} {format_number(edge.gbps)} GB/s", edge.short
