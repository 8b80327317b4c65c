"""Builds the graph of NVLinks from the ports of each GPU. Pure.

Both ends must agree: a link has the lanes of the end with fewer lanes, and is degraded where the ends differ. A link
that only one end has is one-sided. GPUs on
NVSwitches are grouped by working peer access, never by the ids of the switches: a DGX-2 has two boards of switches and
one fabric, and Fabric Manager can split one board in two.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from agent.discover.ports import GpuPorts
from gputopo.model import Link, Nvlink, Uplink

# (a, b) with a < b, by GPU index -> whether NVLink peer access works between them; unknown pairs are absent.
PeerAccess = Mapping[tuple[int, int], bool]


def build_nvlink_graph(
    ports: Mapping[int, GpuPorts], peers: PeerAccess, unknown: tuple[tuple[int, int], ...] = ()
) -> Nvlink:
    """Return the graph of the GPUs whose ports are known; ``unknown`` are the pairs that no source describes."""
    links = [link for a, b in combinations(sorted(ports), 2) if (link := _link(a, b, ports)) is not None]
    return Nvlink(tuple(links), _uplinks(ports, peers), unknown)


def lanes_between(nvlink: Nvlink) -> dict[tuple[int, int], int]:
    """Return the lanes of each connected pair ``a < b``: direct, or over a fabric (the narrower uplink)."""
    over = {
        (one.gpu, other.gpu): min(one.lanes, other.lanes)
        for one, other in combinations(nvlink.uplinks, 2)
        if one.fabric == other.fabric
    }
    return over | {(link.a, link.b): link.lanes for link in nvlink.links}


def _link(a: int, b: int, ports: Mapping[int, GpuPorts]) -> Link | None:
    there, back = ports[a].gpus.get(b, 0), ports[b].gpus.get(a, 0)
    most = max(there, back)
    if most == 0:
        return None
    lanes = min(there, back)
    rate = _lower_bandwidth(ports[a].gbps, ports[b].gbps)
    return Link(
        a=a,
        b=b,
        lanes=lanes,
        expected_lanes=most if lanes < most else None,
        gbps=None if rate is None else rate * lanes,
        one_sided=not lanes,
    )


def _lower_bandwidth(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)


def _uplinks(ports: Mapping[int, GpuPorts], peers: PeerAccess) -> tuple[Uplink, ...]:
    attached = [index for index in sorted(ports) if ports[index].switch]
    fabric = _fabric_numbers(attached, peers)
    unproven = {end for pair in combinations(attached, 2) if pair not in peers for end in pair}
    return tuple(
        Uplink(
            gpu=index,
            fabric=fabric[index],
            lanes=ports[index].switch,
            gbps=None if (rate := ports[index].gbps) is None else rate * ports[index].switch,
            assumed=ports[index].assumed or index in unproven,
        )
        for index in attached
    )


def _fabric_numbers(attached: list[int], peers: PeerAccess) -> dict[int, int]:
    """Number the groups of GPUs with NVLink peer access; unknown peer access counts as working."""
    group = {index: index for index in attached}
    for a, b in combinations(attached, 2):
        if peers.get((a, b), True) and group[a] != group[b]:
            joined = group[b]
            group = {index: group[a] if root == joined else root for index, root in group.items()}
    numbers = {root: number for number, root in enumerate(dict.fromkeys(group.values()))}
    return {index: numbers[group[index]] for index in attached}
