"""NVLinks from the lanes per pair of ``nvidia-smi topo -m``, which prints nothing else. Pure.

A direct link uses the lanes of its pair only; an NVSwitch offers all lanes of a GPU to every peer. So a GPU whose cells
add up to more lanes than any GPU has ports is on an NVSwitch, and its lanes are the largest of its cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from agent.discover.nvlink import PeerAccess
from agent.discover.ports import GpuPorts

MAX_DIRECT_LANES = 18  # ports of Hopper and Blackwell; no board has more direct links

Lanes = Mapping[tuple[int, int], int | None]  # (a, b) with a < b -> active lanes, 0 for none, None where it is unknown


def ports_from_lanes(indices: tuple[int, ...], lanes: Lanes) -> tuple[dict[int, GpuPorts], PeerAccess]:
    """Return the ports of every GPU of the matrix, and which GPUs on an NVSwitch reach each other."""
    cells: dict[int, dict[int, int]] = {index: {} for index in indices}
    for (a, b), number in lanes.items():
        if number:
            cells[a][b] = cells[b][a] = number
    switched = _gpus_on_switch(cells)
    ports = {
        index: GpuPorts(switch=max(row.values())) if index in switched else GpuPorts(gpus=row)
        for index, row in cells.items()
    }
    pairs = [pair for pair in combinations(sorted(switched), 2) if lanes.get(pair) is not None]
    return ports, {pair: bool(lanes[pair]) for pair in pairs}


def _gpus_on_switch(cells: Mapping[int, Mapping[int, int]]) -> set[int]:
    """GPUs on an NVSwitch: those with too many lanes for direct links, and all GPUs connected to them.

    A GPU that is connected to a GPU on a switch is on that switch too, because all ports of the latter lead to the
    switch.
    """
    found: set[int] = set()
    pending = [index for index, row in cells.items() if sum(row.values()) > MAX_DIRECT_LANES]
    while pending:
        index = pending.pop()
        if index not in found:
            found.add(index)
            pending.extend(cells[index])
    return found
