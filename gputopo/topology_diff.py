"""The differences between two topologies, as a list of changed facts. Pure.

GPUs are matched by UUID, else by bus id, else by index, because the indices of all other GPUs may change when a GPU is
lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import msgspec

from gputopo.model import Gpu, Nic, NodeTopology


class TopologyChange(msgspec.Struct, frozen=True):
    """A changed fact. ``before`` or ``after`` is None if the fact is absent or unknown."""

    what: str  # "gpus.3.numa_node", "link 0-3", "islands"
    before: str | None
    after: str | None


def topology_changes(before: NodeTopology, after: NodeTopology) -> tuple[TopologyChange, ...]:
    """Return every difference, GPUs first.

    Current PCIe speeds are left out, because they change all the time. The rates of NICs are compared: a port that lost
    its link is a difference. The boot id is compared only if both may be the same host.
    """
    before, after = (msgspec.structs.replace(each.stable_facts(), nics=each.nics) for each in (before, after))
    if not _may_be_same_host(before, after):
        before, after = (msgspec.structs.replace(each, boot_id=None) for each in (before, after))
    names = _names(before, after), _names(after, before)
    shared = frozenset(names[0].values()) & frozenset(names[1].values())
    one, other = _facts(before, names[0], shared), _facts(after, names[1], shared)
    return tuple(
        TopologyChange(what, one.get(what), other.get(what))
        for what in dict.fromkeys((*one, *other))
        if one.get(what) != other.get(what)
    )


def _may_be_same_host(before: NodeTopology, after: NodeTopology) -> bool:
    """Return whether both have a GPU of the same UUID, or one of them has no UUIDs."""
    known = [{gpu.uuid for gpu in each.gpus} - {None} for each in (before, after)]
    return not all(known) or bool(known[0] & known[1])


def _names(topology: NodeTopology, other: NodeTopology) -> dict[int, str]:
    """Return a name for each GPU that identifies the same GPU on both sides."""
    for identity in ("uuid", "bus_id"):
        mine = {getattr(gpu, identity) for gpu in topology.gpus}
        if mine & {getattr(gpu, identity) for gpu in other.gpus} - {None} and None not in mine:
            return {gpu.index: str(getattr(gpu, identity)) for gpu in topology.gpus}
    return {gpu.index: str(gpu.index) for gpu in topology.gpus}


def _facts(topology: NodeTopology, names: dict[int, str], shared: frozenset[str]) -> dict[str, str]:
    """Return every known fact as text, by name. A GPU of one side only has the fact "present" alone."""
    facts: dict[str, str] = {}
    for gpu in topology.gpus:
        name = names[gpu.index]
        facts[f"gpu {name}"] = "present"
        if name in shared:
            facts |= {f"gpu {name} {field}": _text(value) for field, value in _known(gpu)}
    facts |= _edges(topology, names, shared)
    facts |= _distances(topology, names, shared)
    facts |= {f"nic {nic.name}": _text(_placed(nic)) for nic in topology.nics}
    for field in ("machine", "driver_version", "cuda_version", "boot_id", "partial"):
        if (value := getattr(topology, field)) is not None:
            facts[field] = _text(value)
    facts |= {f"degraded {each.what}": each.why for each in topology.degraded}
    return facts


def _placed(nic: Nic) -> dict[str, Any]:
    """A NIC without its distances: they are per GPU, and follow from where both are."""
    return {name: value for name, value in msgspec.to_builtins(nic).items() if name not in ("name", "distances")}


def _distances(topology: NodeTopology, names: dict[int, str], shared: frozenset[str]) -> dict[str, str]:
    found = {}
    for (i, a), (j, b) in combinations(enumerate(topology.gpus), 2):
        pair = sorted((names[a.index], names[b.index]))
        if topology.pcie and shared.issuperset(pair) and (distance := topology.pcie[i][j]) is not None:
            found["pcie " + " - ".join(pair)] = distance.value
    return found


def _known(gpu: Gpu) -> Iterator[tuple[str, Any]]:
    for name, value in msgspec.to_builtins(gpu).items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        elif name not in ("uuid", "bus_id"):
            yield name, value


def _edges(topology: NodeTopology, names: dict[int, str], shared: frozenset[str]) -> dict[str, str]:
    if topology.nvlink is None:
        return {}
    facts = {
        f"nvlink {' - '.join(sorted((names[link.a], names[link.b])))}": _lanes(link.lanes, link.gbps)
        + (", at one end only" if link.one_sided else "")
        for link in topology.nvlink.links
        if shared.issuperset((names[link.a], names[link.b]))
    }
    facts |= {
        f"nvlink {names[up.gpu]} - nvswitch {up.fabric}": _lanes(up.lanes, up.gbps)
        for up in topology.nvlink.uplinks
        if names[up.gpu] in shared
    }
    islands = [sorted(names[index] for index in island.gpus) for island in topology.islands or ()]
    facts["islands"] = " | ".join(" ".join(island) for island in sorted(islands))
    return facts


def _lanes(lanes: int, gbps: float | None) -> str:
    return f"{lanes} lanes" if gbps is None else f"{lanes} lanes, {gbps:g} GB/s"


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
