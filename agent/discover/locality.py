"""PCIe distances between GPUs and NICs, and the NUMA nodes of the machine. Pure."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from agent.discover.inventory import InventoryEntry
from agent.discover.parsed import ParsedSources
from agent.discover.precedence import SourcePrecedence
from gputopo.model import Nic, NumaNode, PcieDistance

if TYPE_CHECKING:
    from agent.sources.nccl import NcclTopology, PciLocation
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


def build_pcie_matrix(
    sources: ParsedSources, inventory: tuple[InventoryEntry, ...], precedence: SourcePrecedence
) -> Matrix:
    """Return the distance of every pair, in the order of ``inventory``; () where none is known.

    NVML and ``topo -m`` are the same measurement, so a difference is reported as a conflict. The kernel's PCI tree
    comes last, because the driver may simplify or refine it.
    """
    pairs = sources.nvml.pairs if sources.nvml else ()
    nvml = {(pair.a, pair.b): _ANCESTORS.get(pair.ancestor) for pair in pairs if pair.ancestor is not None}
    matrix: list[list[PcieDistance | None]] = [[None] * len(inventory) for _ in inventory]
    for i, j in combinations(range(len(inventory)), 2):
        a, b = inventory[i], inventory[j]
        found = precedence.resolve(
            f"pcie.{a.index}-{b.index}",
            nvml=nvml.get((a.index, b.index)),
            smi=_topo_cell(sources.topo, a.index, b.index),
        )
        matrix[i][j] = matrix[j][i] = found or _tree_distance(a, b)
    known = any(distance is not None for row in matrix for distance in row)
    return tuple(tuple(row) for row in matrix) if known else ()


def _topo_cell(topo: TopoMatrix | None, a: int, b: int) -> PcieDistance | None:
    """A cell of ``topo -m``; None where it shows NVLinks instead of a distance."""
    place = {gpu.index: number for number, gpu in enumerate(topo.gpus)} if topo else {}
    if topo is None or a not in place or b not in place:
        return None
    cell = topo.cells[place[a]][place[b]]
    return cell if isinstance(cell, PcieDistance) else None


def _tree_distance(a: InventoryEntry, b: InventoryEntry) -> PcieDistance | None:
    if a.pci is not None and b.pci is not None:
        return _kernel_distance(a.pci, b.pci)
    return _nccl_distance(a.nccl.location, b.nccl.location) if a.nccl is not None and b.nccl is not None else None


def _kernel_distance(a: PciDevice, b: PciDevice) -> PcieDistance | None:
    from agent.sources.pci import pcie_distance  # noqa: PLC0415  loaded already where this source exists

    return pcie_distance(a, b)


def _nccl_distance(a: PciLocation, b: PciLocation) -> PcieDistance | None:
    from agent.sources.nccl import nccl_distance  # noqa: PLC0415  loaded already where this source exists

    return nccl_distance(a, b)


def find_numa_nodes(sources: ParsedSources) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes of the machine, from the kernel or from NCCL's list of CPUs."""
    if sources.sysfs.numa_nodes:
        return sources.sysfs.numa_nodes
    cpus = {cpu.numa_node: cpu.cpus for cpu in sources.nccl.cpus if cpu.numa_node is not None} if sources.nccl else {}
    return tuple(NumaNode(node, cpus[node]) for node in sorted(cpus))


def find_nics(sources: ParsedSources, inventory: tuple[InventoryEntry, ...]) -> tuple[Nic, ...]:
    """Return the RDMA devices with their distance to each GPU: the kernel's, then those of other sources only."""
    topo = _topo_nics(sources.topo, inventory)
    found = {}
    for device in sources.sysfs.rdma:
        tree = tuple(
            None if device.pci is None or g.pci is None else _kernel_distance(device.pci, g.pci) for g in inventory
        )
        printed = topo[device.name].distances if device.name in topo else tree
        found[device.name] = Nic(
            name=device.name,
            bus_id=device.pci.bus_id if device.pci else None,
            numa_node=device.pci.numa_node if device.pci else None,
            rate_gbps=device.rate_gbps,
            distances=tuple(one or other for one, other in zip(printed, tree, strict=True)),
        )
    others = topo | _nccl_nics(sources.nccl, inventory)
    return tuple((found | {name: nic for name, nic in others.items() if name not in found}).values())


def _topo_nics(topo: TopoMatrix | None, inventory: tuple[InventoryEntry, ...]) -> dict[str, Nic]:
    if topo is None:
        return {}
    place = {gpu.index: number for number, gpu in enumerate(topo.gpus)}
    return {
        nic.name or nic.label: Nic(
            name=nic.name or nic.label,
            distances=tuple(nic.distances[place[g.index]] if g.index in place else None for g in inventory),
        )
        for nic in topo.nics
    }


def _nccl_nics(topology: NcclTopology | None, inventory: tuple[InventoryEntry, ...]) -> dict[str, Nic]:
    named = [(nic.name or nic.bus_id, nic) for nic in (topology.nics if topology else ())]
    return {
        name: Nic(
            name=name,
            bus_id=nic.bus_id,
            numa_node=nic.location.numa_node,
            rate_gbps=None if nic.speed_mbps is None else nic.speed_mbps // 1000,
            distances=tuple(_nccl_distance(nic.location, g.nccl.location) if g.nccl else None for g in inventory),
        )
        for name, nic in named
        if name is not None
    }
