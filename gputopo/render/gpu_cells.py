"""The cells of a GPU's line: product, memory, NVLinks, bandwidth, special facts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gputopo.render.wording import degraded_gpus, format_c2c, format_gib, format_lanes, format_number, gpu_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from gputopo.model import Gpu, Link, NodeTopology, Uplink
    from gputopo.render.glyphs import Glyphs
    from gputopo.render.wording import Cell


_NOTHING = ("text", "")


def gpu_cells(topology: NodeTopology, gpu: Gpu, glyphs: Glyphs) -> tuple[Cell, ...]:
    """Return six cells: product, memory, NVLinks, their GB/s (both directions), a mark if degraded, special facts."""
    name = glyphs.shown(gpu.product or "").removeprefix("NVIDIA ")
    if not gpu.usable:
        return ("dim", name), _NOTHING, ("bad", "LOST"), _NOTHING, _NOTHING, _NOTHING
    # A column of question marks says no more than the note below the tree: where no GPU has a value, it is left out.
    memory = (
        ("text", format_gib(gpu.memory_mib)) if gpu.memory_mib is not None else _unknown("? GiB", topology, _memory)
    )
    degraded = gpu.index in degraded_gpus(topology)
    return (
        ("text", name) if name else _unknown("?", topology, _product),
        memory,
        _nvlinks(topology, gpu, glyphs),
        _rate(topology, gpu),
        ("bad", "! degraded" if degraded else ""),
        ("dim", _special(gpu, glyphs)),
    )


def _unknown(sign: str, topology: NodeTopology, value: Callable[[Gpu], object]) -> Cell:
    """Return the sign of an unknown value; nothing where the value of every GPU is unknown."""
    return _NOTHING if all(value(gpu) is None for gpu in topology.usable) else ("unknown", sign)


def _product(gpu: Gpu) -> str | None:
    return gpu.product


def _memory(gpu: Gpu) -> int | None:
    return gpu.memory_mib


def _edges(topology: NodeTopology, gpu: Gpu) -> tuple[list[Link], list[Uplink]]:
    """Return the NVLinks of a GPU, also those that are down."""
    if topology.nvlink is None:
        return [], []
    links = [link for link in topology.nvlink.links if gpu.index in (link.a, link.b)]
    return links, [up for up in topology.nvlink.uplinks if up.gpu == gpu.index]


def _nvlinks(topology: NodeTopology, gpu: Gpu, glyphs: Glyphs) -> Cell:
    """Return ``NV12 → NVSwitch``; in a mesh the peers by lanes: ``NV2 → GPU3,4  NV1 → GPU1,2``."""
    if gpu.mig_enabled is True:
        return "text", _mig(gpu, glyphs)
    if topology.nvlink is None:
        return "unknown", "NVLink ?"
    links, uplinks = _edges(topology, gpu)
    fabrics = {up.fabric for up in topology.nvlink.uplinks}
    parts = [f"{format_lanes(up)} {glyphs.arrow} {_fabric(up, numbered=len(fabrics) > 1)}" for up in uplinks]
    peers: dict[str, list[int]] = {}
    for link in sorted(links, key=lambda link: -link.lanes):
        peers.setdefault(format_lanes(link), []).append(link.a + link.b - gpu.index)
    parts += [f"{lanes} {glyphs.arrow} {gpu_names(ends)}" for lanes, ends in peers.items()]
    if any(gpu.index in pair for pair in topology.nvlink.unknown) and gpu.index in topology.uncertain_gpus:
        return "unknown", "  ".join([*parts, "NVLink ?"])
    if not parts:
        return "dim", "no NVLink"
    edges: list[Link | Uplink] = [*links, *uplinks]
    return "bad" if any(edge.short for edge in edges) else "text", "  ".join(parts)


def _fabric(uplink: Uplink, *, numbered: bool) -> str:
    name = f"NVSwitch {uplink.fabric}" if numbered else "NVSwitch"
    return f"{name} (assumed)" if uplink.assumed else name


def _mig(gpu: Gpu, glyphs: Glyphs) -> str:
    """Return ``MIG 7 x 1g.5gb``."""
    counts = Counter(glyphs.shown(device.profile or "?") for device in gpu.mig_devices)
    parts = [profile if count == 1 else f"{count} {glyphs.times} {profile}" for profile, count in counts.items()]
    return "MIG " + ", ".join(parts) if parts else "MIG without instances"


def _rate(topology: NodeTopology, gpu: Gpu) -> Cell:
    links, uplinks = _edges(topology, gpu)
    edges: list[Link | Uplink] = [*links, *uplinks]
    active = [edge.gbps for edge in edges if edge.lanes]
    if gpu.mig_enabled is True or not active:
        return "text", ""
    known = [rate for rate in active if rate is not None]
    if len(known) == len(active):
        return "text", f"{format_number(sum(known))} GB/s"
    nvlink = topology.nvlink
    edges = [*nvlink.links, *nvlink.uplinks] if nvlink is not None else []
    return _NOTHING if all(edge.gbps is None for edge in edges) else ("unknown", "? GB/s")


def _special(gpu: Gpu, glyphs: Glyphs) -> str:
    facts = [] if gpu.c2c is None else [format_c2c(gpu.c2c)]
    if gpu.memory_numa_node is not None:
        facts.append(f"its memory is NUMA {gpu.memory_numa_node}")
    if gpu.fabric is not None and gpu.fabric.unhealthy:
        facts.append("fabric: " + ", ".join(glyphs.shown(name) for name in gpu.fabric.unhealthy))
    return glyphs.joined(facts)
