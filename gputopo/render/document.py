"""A topology as the public JSON document. ``gputopo.render.schema`` defines the keys."""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from gputopo.render import schema

if TYPE_CHECKING:
    from gputopo.model import Gpu, Link, Nic, NodeTopology, Nvlink, Uplink

Made = TypeVar("Made", bound=schema.Entry)


def topology_document(topology: NodeTopology, name: str | None = None) -> dict[str, Any]:
    """Return the document of kind ``NodeTopology``: dicts, lists and plain values in the order of printing."""
    nvlink, islands, fabric = topology.nvlink, topology.islands, topology.fabric
    filled = schema.Document(
        api_version=schema.API_VERSION,
        kind="NodeTopology",
        name=name,
        machine=topology.machine,
        driver_version=topology.driver_version,
        cuda_version=topology.cuda_version,
        boot_id=topology.boot_id,
        partial=topology.partial,
        gpus=tuple(_gpu(gpu) for gpu in topology.gpus),
        islands=None if islands is None else tuple(island.gpus for island in islands),
        island_details=None if islands is None else tuple(_same(schema.IslandEntry, each) for each in islands),
        links=None if nvlink is None else tuple(_links(topology, nvlink)),
        uplinks=None if nvlink is None else tuple(_same(schema.UplinkEntry, each) for each in nvlink.uplinks),
        unknown_links=() if nvlink is None else nvlink.unknown,
        pcie=tuple(_distance(topology, a, b) for a, b in combinations([gpu.index for gpu in topology.gpus], 2)),
        nics=tuple(_nic(topology, nic) for nic in topology.nics),
        numa_nodes=tuple(_same(schema.NumaNodeEntry, each) for each in topology.numa_nodes),
        fabric=None if fabric is None else _same(schema.FabricEntry, fabric),
        degraded=tuple(_same(schema.DegradedEntry, each) for each in topology.degraded),
        problems=tuple(_same(schema.ProblemEntry, each) for each in topology.problems),
    )
    # Encoded and decoded, so that the dict has the same types as the JSON text (lists, not tuples).
    built: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(filled))
    return built


def render_json(topology: NodeTopology, name: str | None = None) -> str:
    """Return the document as indented JSON in ASCII: control characters in hardware names are escaped."""
    text = msgspec.json.format(msgspec.json.encode(topology_document(topology, name)), indent=2).decode()
    return re.sub(r"[^\n -~]", _escape, text) + "\n"


def _escape(match: re.Match[str]) -> str:
    utf16 = match[0].encode("utf-16-be")
    return "".join(f"\\u{utf16[i]:02x}{utf16[i + 1]:02x}" for i in range(0, len(utf16), 2))


def _same(entry: type[Made], value: msgspec.Struct) -> Made:
    """Return the entry of a value with the same field names."""
    return entry(**{field: getattr(value, field) for field in entry.__struct_fields__})


def _gpu(gpu: Gpu) -> schema.GpuEntry:
    derived: dict[str, Any] = {
        "compute_capability": None if gpu.compute_capability is None else "{}.{}".format(*gpu.compute_capability),
        "pcie": _same(schema.PcieEntry, gpu.pcie),
        "mig": schema.MigEntry(
            enabled=gpu.mig_enabled, devices=tuple(_same(schema.MigDeviceEntry, each) for each in gpu.mig_devices)
        ),
        "fabric": None if gpu.fabric is None else _same(schema.GpuFabricEntry, gpu.fabric),
        "c2c": None if gpu.c2c is None else _same(schema.C2cEntry, gpu.c2c),
    }
    plain = {field: getattr(gpu, field) for field in schema.GpuEntry.__struct_fields__ if field not in derived}
    return schema.GpuEntry(**plain, **derived)


def _links(topology: NodeTopology, nvlink: Nvlink) -> list[schema.LinkEntry]:
    """Return every pair that NVLink connects; the islands are the connected components of this graph.

    Both GPUs must be able to use NVLink (``NodeTopology.joinable``).
    """
    direct = [_link("nvlink", link.a, link.b, (link,)) for link in nvlink.links if link.lanes]
    uplinks = [up for up in nvlink.uplinks if up.lanes]
    switched = [
        _link("nvswitch", one.gpu, other.gpu, (one, other))
        for one, other in combinations(uplinks, 2)
        if one.fabric == other.fabric
    ]
    pairs = [link for link in (*direct, *switched) if {link.a, link.b} <= topology.joinable]
    return sorted(pairs, key=lambda link: (link.a, link.b, link.kind))


def _link(kind: Literal["nvlink", "nvswitch"], a: int, b: int, edges: tuple[Link | Uplink, ...]) -> schema.LinkEntry:
    """Return the entry of a pair, with the narrowest edge between the two."""
    narrowest = min(edges, key=lambda edge: edge.lanes)
    return schema.LinkEntry(
        a=a,
        b=b,
        kind=kind,
        lanes=narrowest.lanes,
        expected_lanes=narrowest.expected_lanes,
        gbps=_least([edge.gbps for edge in edges]),
    )


def _least(values: list[float | None]) -> float | None:
    """Return the smallest value; None if any value is unknown."""
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) else None


def _distance(topology: NodeTopology, a: int, b: int) -> schema.DistanceEntry:
    return schema.DistanceEntry(a=a, b=b, distance=topology.distance(a, b))


def _nic(topology: NodeTopology, nic: Nic) -> schema.NicEntry:
    return schema.NicEntry(
        name=nic.name,
        bus_id=nic.bus_id,
        numa_node=nic.numa_node,
        rate_gbps=nic.rate_gbps,
        distances={str(gpu.index): distance for gpu, distance in zip(topology.gpus, nic.distances, strict=True)},
    )
