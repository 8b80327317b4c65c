"""The NVLinks of a topology as drawings need them: bodies joined by edges with a caption and a condition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gputopo.render.wording import format_lanes, format_number

if TYPE_CHECKING:
    from gputopo.model import Link, NodeTopology, Uplink


class DrawnEdge(msgspec.Struct, frozen=True):
    """An edge between a GPU and another GPU or an NVSwitch fabric."""

    gpu: int  # index
    peer: int | None  # index; None where it is a fabric
    fabric: int | None  # None where it is a GPU
    lanes: int
    caption: str  # "NV12", "NV11/12 550 GB/s"
    degraded: bool


def drawn_edges(topology: NodeTopology) -> tuple[DrawnEdge, ...]:
    """Uplinks by GPU, then links by pair; those that are down included, because they should not be."""
    if topology.nvlink is None:
        return ()
    ups = [DrawnEdge(up.gpu, None, up.fabric, up.lanes, *_caption(up)) for up in topology.nvlink.uplinks]
    links = [DrawnEdge(link.a, link.b, None, link.lanes, *_caption(link)) for link in topology.nvlink.links]
    return (*ups, *links)


def fabrics(topology: NodeTopology) -> dict[int, str]:
    """The NVSwitch fabrics by number, with what to call them."""
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
