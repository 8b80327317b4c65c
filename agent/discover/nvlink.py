"""From what each GPU says of its ports to the graph of NVLinks. Pure.

Two ends must agree: a link counts with the lanes of its weaker side, and a side that says less than the other makes the
edge degraded. GPUs on NVSwitches are grouped by whether NVLink peer access works between them, never by the ids of the
switches: a DGX-2 has two boards of switches and one fabric, and Fabric Manager can make two of one board.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from agent.discover.ports import GpuPorts
from gputopo.model import Link, Nvlink, Uplink

# (a, b) with a < b, by GPU index -> whether NVLink peer access works between them; a pair nobody told of is not in it.
PeerAccess = Mapping[tuple[int, int], bool]


def graph(ports: Mapping[int, GpuPorts], peers: PeerAccess, unknown: tuple[tuple[int, int], ...] = ()) -> Nvlink:
    """The graph over the GPUs whose ports are known, by index; ``unknown`` are pairs of which nobody told."""
    links = [link for a, b in combinations(sorted(ports), 2) if (link := _link(a, b, ports)) is not None]
    return Nvlink(tuple(links), _uplinks(ports, peers), unknown)


def lanes_between(nvlink: Nvlink) -> dict[tuple[int, int], int]:
    """The lanes of each pair ``a < b`` that NVLinks join, directly or over a fabric (the narrower of the uplinks)."""
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
    rate = _weaker(ports[a].gbps, ports[b].gbps)
    return Link(
        a=a,
        b=b,
        lanes=lanes,
        expected_lanes=most if lanes < most else None,
        gbps=None if rate is None else rate * lanes,
    )


def _weaker(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)


def _uplinks(ports: Mapping[int, GpuPorts], peers: PeerAccess) -> tuple[Uplink, ...]:
    attached = [index for index in sorted(ports) if ports[index].switch]
    fabric = _fabrics(attached, peers)
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


def _fabrics(attached: list[int], peers: PeerAccess) -> dict[int, int]:
    """Number the groups of GPUs between which NVLink peer access works, or is not known not to."""
    group = {index: index for index in attached}
    for a, b in combinations(attached, 2):
        if peers.get((a, b), True) and group[a] != group[b]:
            joined = group[b]
            group = {index: group[a] if root == joined else root for index, root in group.items()}
    numbers = {root: number for number, root in enumerate(dict.fromkeys(group.values()))}
    return {index: numbers[group[index]] for index in attached}
