"""How far GPUs and NICs are from each other over PCIe, and the NUMA nodes of the machine. Pure."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from agent.discover.inventory import Sighting
from agent.discover.parsed import Heard
from agent.discover.precedence import Witnesses
from gputopo.model import Nic, NumaNode, PcieDistance

if TYPE_CHECKING:
    from agent.sources.nccl import NcclTopology, Place
    from agent.sources.pci import PciDevice
    from agent.sources.smi.topo import TopoMatrix

# nvmlGpuTopologyLevel_t (nvml.h). INTERNAL is two GPUs on one board.
_ANCESTORS = {
    0: PcieDistance.PIX,
    10: PcieDistance.PIX,
    20: PcieDistance.PXB,
    30: PcieDistance.PHB,
    40: PcieDistance.NODE,
    50: PcieDistance.SYS,
}
Matrix = tuple[tuple[PcieDistance | None, ...], ...]


def pcie_matrix(heard: Heard, seen: tuple[Sighting, ...], witnesses: Witnesses) -> Matrix:
    """The distance of every pair, in the order of ``seen``; () where none is known.

    NVML and ``topo -m`` are the same measurement, so a difference between them is noted; the kernel's tree is the
    last resort, because the driver may flatten or refine it.
    """
    pairs = heard.nvml.pairs if heard.nvml else ()
    nvml = {(pair.a, pair.b): _ANCESTORS.get(pair.ancestor) for pair in pairs if pair.ancestor is not None}
    matrix: list[list[PcieDistance | None]] = [[None] * len(seen) for _ in seen]
    for i, j in combinations(range(len(seen)), 2):
        a, b = seen[i], seen[j]
        found = witnesses.believe(
            f"pcie.{a.index}-{b.index}",
            nvml=nvml.get((a.index, b.index)),
            smi=_cell(heard.topo, a.index, b.index),
        )
        matrix[i][j] = matrix[j][i] = found or _by_tree(a, b)
    known = any(distance is not None for row in matrix for distance in row)
    return tuple(tuple(row) for row in matrix) if known else ()


def _cell(topo: TopoMatrix | None, a: int, b: int) -> PcieDistance | None:
    """A cell of ``topo -m``; None where it shows NVLinks instead of the distance."""
    place = {gpu.index: number for number, gpu in enumerate(topo.gpus)} if topo else {}
    if topo is None or a not in place or b not in place:
        return None
    cell = topo.cells[place[a]][place[b]]
    return cell if isinstance(cell, PcieDistance) else None


def _by_tree(a: Sighting, b: Sighting) -> PcieDistance | None:
    if a.pci is not None and b.pci is not None:
        return _kernel_distance(a.pci, b.pci)
    return _nccl_distance(a.nccl.place, b.nccl.place) if a.nccl is not None and b.nccl is not None else None


def _kernel_distance(a: PciDevice, b: PciDevice) -> PcieDistance | None:
    from agent.sources.pci import distance  # noqa: PLC0415  loaded already where there is a /sys

    return distance(a, b)


def _nccl_distance(a: Place, b: Place) -> PcieDistance | None:
    from agent.sources.nccl import distance  # noqa: PLC0415  loaded already where there is such a file

    return distance(a, b)


def numa_nodes(heard: Heard) -> tuple[NumaNode, ...]:
    """The machine's NUMA nodes, from the kernel or from NCCL's list of CPUs."""
    if heard.bus.numa_nodes:
        return heard.bus.numa_nodes
    cpus = {cpu.numa_node: cpu.cpus for cpu in heard.nccl.cpus if cpu.numa_node is not None} if heard.nccl else {}
    return tuple(NumaNode(node, cpus[node]) for node in sorted(cpus))


def nics(heard: Heard, seen: tuple[Sighting, ...]) -> tuple[Nic, ...]:
    """RDMA devices with their distance to each GPU: the kernel's, then those that only another source shows."""
    topo = _topo_nics(heard.topo, seen)
    found = {}
    for device in heard.bus.rdma:
        tree = tuple(None if device.pci is None or g.pci is None else _kernel_distance(device.pci, g.pci) for g in seen)
        printed = topo[device.name].distances if device.name in topo else tree
        found[device.name] = Nic(
            name=device.name,
            bus_id=device.pci.bus_id if device.pci else None,
            numa_node=device.pci.numa_node if device.pci else None,
            rate_gbps=device.rate_gbps,
            distances=tuple(one or other for one, other in zip(printed, tree, strict=True)),
        )
    others = topo | _nccl_nics(heard.nccl, seen)
    return tuple((found | {name: nic for name, nic in others.items() if name not in found}).values())


def _topo_nics(topo: TopoMatrix | None, seen: tuple[Sighting, ...]) -> dict[str, Nic]:
    if topo is None:
        return {}
    place = {gpu.index: number for number, gpu in enumerate(topo.gpus)}
    return {
        nic.name or nic.label: Nic(
            name=nic.name or nic.label,
            distances=tuple(nic.distances[place[g.index]] if g.index in place else None for g in seen),
        )
        for nic in topo.nics
    }


def _nccl_nics(told: NcclTopology | None, seen: tuple[Sighting, ...]) -> dict[str, Nic]:
    named = [(nic.name or nic.bus_id, nic) for nic in (told.nics if told else ())]
    return {
        name: Nic(
            name=name,
            bus_id=nic.bus_id,
            numa_node=nic.place.numa_node,
            rate_gbps=None if nic.speed_mbps is None else nic.speed_mbps // 1000,
            distances=tuple(_nccl_distance(nic.place, g.nccl.place) if g.nccl else None for g in seen),
        )
        for name, nic in named
        if name is not None
    }
