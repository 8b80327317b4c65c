"""NVLinks out of a pasted ``nvidia-smi topo -m``, which prints a number of lanes per pair and nothing else. Pure.

A direct link spends the lanes of its pair; an NVSwitch offers all lanes to every peer. So a GPU whose cells add up to
more lanes than any GPU has ports is on an NVSwitch, and its lanes are the largest of its cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from agent.discover.nvlink import PeerAccess
from agent.discover.ports import GpuPorts

MAX_DIRECT_LANES = 18  # ports of Hopper and Blackwell; a board that joins more than that directly has not been built

Lanes = Mapping[tuple[int, int], int | None]  # (a, b) with a < b -> active lanes, 0 for none, None where it is unknown


def matrix_ports(indices: tuple[int, ...], lanes: Lanes) -> tuple[dict[int, GpuPorts], PeerAccess]:
    """The ports of every GPU of the matrix, and which of those on an NVSwitch reach each other."""
    cells: dict[int, dict[int, int]] = {index: {} for index in indices}
    for (a, b), number in lanes.items():
        if number:
            cells[a][b] = cells[b][a] = number
    switched = _switched(cells)
    ports = {
        index: GpuPorts(switch=max(row.values())) if index in switched else GpuPorts(gpus=row)
        for index, row in cells.items()
    }
    pairs = [pair for pair in combinations(sorted(switched), 2) if lanes.get(pair) is not None]
    return ports, {pair: bool(lanes[pair]) for pair in pairs}


def _switched(cells: Mapping[int, Mapping[int, int]]) -> set[int]:
    """GPUs on an NVSwitch: those with too many lanes for direct links, and all that they are joined to.

    Whoever is joined to a GPU on a switch is on that switch too: its ports all go there.
    """
    found: set[int] = set()
    rest = [index for index, row in cells.items() if sum(row.values()) > MAX_DIRECT_LANES]
    while rest:
        index = rest.pop()
        if index not in found:
            found.add(index)
            rest.extend(cells[index])
    return found
