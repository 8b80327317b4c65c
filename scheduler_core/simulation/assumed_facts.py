"""Facts that a simulation assumes where the description of a machine lacks them. Pure.

``nvidia-smi topo -m`` shows neither UUIDs nor the NVLink bandwidth, and of a pair with NVLinks not the PCIe distance.
The scheduler must not guess these facts of a real node. A simulation may, because a likely value is nearer to the
machine than none:

    UUIDs            any: they only identify the GPUs
    PCIe distances   the largest that NUMA nodes and the distances to other GPUs and NICs allow. Distances in a tree of
                     PCIe bridges obey d(a, b) <= max(d(a, c), d(b, c)), with equality if d(a, c) and d(b, c) differ
    bandwidth        that of the other NVLinks of the machine, else 50 GB/s for each NVLink (NVLink 2 to 4)

Unknown NVLinks are not assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import combinations
from typing import NamedTuple, TypeVar

import msgspec

from gputopo.model import FactGroup, Gpu, Link, NodeTopology, Nvlink, PcieDistance, Uplink

LANE_GBPS = 50.0  # of an NVLink, both directions together
_LEVELS = tuple(PcieDistance)  # nearest first
_FARTHEST = _LEVELS.index(PcieDistance.SYS)
_ON_ONE_NUMA_NODE = _LEVELS.index(PcieDistance.NODE)
_Bond = TypeVar("_Bond", Link, Uplink)
_Levels = Mapping[tuple[int, int], int]  # places of two GPUs -> their distance, as a place in ``_LEVELS``


class MissingFact(Enum):
    """A fact about a machine that changes the figures of a simulation, and that is unknown."""

    NVLINKS = "NVLinks"
    BANDWIDTH = "NVLink bandwidth"
    PCIE = "PCIe distances of GPUs with NVLinks"


class CompletedMachine(NamedTuple):
    """A machine with assumed facts where they were unknown."""

    topology: NodeTopology
    missing: frozenset[MissingFact] = frozenset()


def complete_machine(topology: NodeTopology) -> CompletedMachine:
    """Return the machine with the facts that a simulation can assume, and name the facts that were missing."""
    missing = set()
    if len(topology.usable) > 1 and _lacks_nvlinks(topology):
        missing.add(MissingFact.NVLINKS)
    completed = msgspec.structs.replace(topology, gpus=tuple(_with_uuid(gpu) for gpu in topology.gpus))
    if topology.nvlink is not None:
        nvlink = _with_bandwidth(topology.nvlink)
        if nvlink != topology.nvlink:
            missing.add(MissingFact.BANDWIDTH)
        pcie, is_certain = _with_distances(topology)
        if not is_certain:
            missing.add(MissingFact.PCIE)
        completed = msgspec.structs.replace(completed, nvlink=nvlink, pcie=pcie)
    return CompletedMachine(topology if completed == topology else completed, frozenset(missing))


def _lacks_nvlinks(topology: NodeTopology) -> bool:
    is_certain = FactGroup.NVLINK not in topology.uncertain
    return topology.nvlink is None or bool(topology.nvlink.unknown) or not is_certain


def _with_uuid(gpu: Gpu) -> Gpu:
    return msgspec.structs.replace(gpu, uuid=f"GPU-{gpu.index}") if gpu.uuid is None else gpu


def _with_bandwidth(nvlink: Nvlink) -> Nvlink:
    bonds = (*nvlink.links, *nvlink.uplinks)
    known = [bond.gbps / bond.lanes for bond in bonds if bond.lanes and bond.gbps is not None]
    rate = min(known, default=LANE_GBPS)

    def rated(bond: _Bond) -> _Bond:
        is_known = bond.gbps is not None or not bond.lanes
        return bond if is_known else msgspec.structs.replace(bond, gbps=rate * bond.lanes)

    return msgspec.structs.replace(
        nvlink, links=tuple(map(rated, nvlink.links)), uplinks=tuple(map(rated, nvlink.uplinks))
    )


def _with_distances(topology: NodeTopology) -> tuple[tuple[tuple[PcieDistance | None, ...], ...], bool]:
    """Return the matrix without gaps, and whether no other distances are possible."""
    size = len(topology.gpus)
    rows: list[list[PcieDistance | None]] = [list(row) for row in topology.pcie] or [[None] * size for _ in range(size)]
    gaps = [(a, b) for a, b in combinations(range(size), 2) if rows[a][b] is None]
    if not gaps:
        return topology.pcie, True
    reached = _reached_devices(topology, rows)
    bounds = _upper_bounds(topology, reached)
    for a, b in gaps:
        rows[a][b] = rows[b][a] = _LEVELS[bounds[a, b]]
    return tuple(map(tuple, rows)), all(_is_proven(topology, reached, pair, bounds[pair]) for pair in gaps)


def _reached_devices(topology: NodeTopology, rows: Sequence[Sequence[PcieDistance | None]]) -> list[dict[int, int]]:
    """Return the known distances of each GPU: to other GPUs by place, then to NICs."""
    size = len(topology.gpus)
    return [
        {
            device: _LEVELS.index(distance)
            for device, distance in enumerate((*rows[place], *(nic.distances[place] for nic in topology.nics)))
            if distance is not None
        }
        for place in range(size)
    ]


def _upper_bounds(topology: NodeTopology, reached: Sequence[Mapping[int, int]]) -> _Levels:
    """Return the largest possible distance of each pair of GPUs: the best path of known distances bounds it."""
    size = len(reached)
    bounds: dict[tuple[int, int], int] = {}
    for a, b in combinations(range(size), 2):
        one, other = topology.gpus[a].numa_node, topology.gpus[b].numa_node
        near = _ON_ONE_NUMA_NODE if one is not None and one == other else _FARTHEST
        shared = (max(reached[a][device], reached[b][device]) for device in reached[a].keys() & reached[b].keys())
        bounds[a, b] = bounds[b, a] = reached[a].get(b, min(near, *shared, _FARTHEST))
    for through in range(size):
        for a, b in combinations([place for place in range(size) if place != through], 2):
            bounds[a, b] = bounds[b, a] = min(bounds[a, b], max(bounds[a, through], bounds[through, b]))
    return bounds


def _is_proven(topology: NodeTopology, reached: Sequence[Mapping[int, int]], pair: tuple[int, int], bound: int) -> bool:
    """Return whether the bound of the pair is its distance."""
    a, b = pair
    one, other = topology.gpus[a].numa_node, topology.gpus[b].numa_node
    is_apart = None not in (one, other) and one != other
    common = reached[a].keys() & reached[b].keys()
    return bound == 0 or is_apart or any(reached[a][device] != reached[b][device] for device in common)
