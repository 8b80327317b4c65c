"""What differs between two topologies, as a list of sentences' worth of facts. Pure.

GPUs are matched by UUID, else by bus id, else by index: an index moves when a card is lost, and then everything that
is said of the others would look changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gputopo.model import Gpu, NodeTopology


class Change(msgspec.Struct, frozen=True):
    """One fact that differs. ``before`` or ``after`` is None where the fact is absent or unknown."""

    what: str  # "gpus.3.numa_node", "link 0-3", "islands"
    before: str | None
    after: str | None


def changes(before: NodeTopology, after: NodeTopology) -> tuple[Change, ...]:
    """Every difference, GPUs first. Current PCIe speeds are left out: they change while nothing does."""
    before, after = before.slow(), after.slow()
    one, other = _facts(before, _names(before, after)), _facts(after, _names(after, before))
    return tuple(
        Change(what, one.get(what), other.get(what))
        for what in dict.fromkeys((*one, *other))
        if one.get(what) != other.get(what)
    )


def _names(topology: NodeTopology, other: NodeTopology) -> dict[int, str]:
    """A name for each GPU that means the same card on both sides."""
    for identity in ("uuid", "bus_id"):
        mine = {getattr(gpu, identity) for gpu in topology.gpus}
        if mine & {getattr(gpu, identity) for gpu in other.gpus} - {None} and None not in mine:
            return {gpu.index: str(getattr(gpu, identity)) for gpu in topology.gpus}
    return {gpu.index: str(gpu.index) for gpu in topology.gpus}


def _facts(topology: NodeTopology, names: dict[int, str]) -> dict[str, str]:
    """Every known fact under a name of its own, as text."""
    facts: dict[str, str] = {}
    for gpu in topology.gpus:
        facts[f"gpu {names[gpu.index]}"] = "present"
        facts |= {f"gpu {names[gpu.index]} {name}": _text(value) for name, value in _known(gpu)}
    facts |= _edges(topology, names)
    for number, row in enumerate(topology.pcie):
        for place in range(number):
            if (distance := row[place]) is not None:
                pair = (names[topology.gpus[number].index], names[topology.gpus[place].index])
                facts["pcie " + " - ".join(sorted(pair))] = distance.value
    facts |= {f"nic {nic.name}": _text(msgspec.to_builtins(nic)) for nic in topology.nics}
    for name in ("machine", "driver_version", "cuda_version", "boot_id", "partial"):
        if (value := getattr(topology, name)) is not None:
            facts[name] = _text(value)
    facts |= {f"degraded {each.what}": each.why for each in topology.degraded}
    return facts


def _known(gpu: Gpu) -> Iterator[tuple[str, Any]]:
    for name, value in msgspec.to_builtins(gpu).items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        elif name not in ("uuid", "bus_id"):
            yield name, value


def _edges(topology: NodeTopology, names: dict[int, str]) -> dict[str, str]:
    if topology.nvlink is None:
        return {}
    facts = {
        f"nvlink {' - '.join(sorted((names[link.a], names[link.b])))}": _lanes(link.lanes, link.gbps)
        for link in topology.nvlink.links
    }
    facts |= {
        f"nvlink {names[up.gpu]} - nvswitch {up.fabric}": _lanes(up.lanes, up.gbps) for up in topology.nvlink.uplinks
    }
    islands = [sorted(names[index] for index in island.gpus) for island in topology.islands or ()]
    facts["islands"] = " | ".join(" ".join(island) for island in sorted(islands))
    return facts


def _lanes(lanes: int, gbps: float | None) -> str:
    return f"{lanes} lanes" if gbps is None else f"{lanes} lanes, {gbps:g} GB/s"


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
