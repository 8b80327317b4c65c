"""The NVLinks of a topology as edges of a drawing, with captions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gputopo.render.wording import format_lanes, format_number

if TYPE_CHECKING:
    from gputopo.model import Link, NodeTopology, Uplink


class DrawnEdge(msgspec.Struct, frozen=True):
    """An edge between a GPU and another GPU or an NVSwitch fabric."""

    gpu: int  # index
    peer: int | None  # GPU index; None: the peer is a fabric
    fabric: int | None  # None: the peer is a GPU
    lanes: int
    caption: str  # "NV12", "NV11/12 550 GB/s"
    degraded: bool


def drawn_edges(topology: NodeTopology) -> tuple[DrawnEdge, ...]:
    """Return uplinks by GPU, then links by pair, also those that are down."""
    if topology.nvlink is None:
        return ()
    ups = [DrawnEdge(up.gpu, None, up.fabric, up.lanes, *_caption(up)) for up in topology.nvlink.uplinks]
    links = [DrawnEdge(link.a, link.b, None, link.lanes, *_caption(link)) for link in topology.nvlink.links]
    return (*ups, *links)


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
