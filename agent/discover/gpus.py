"""The facts of each GPU, from the sources in a fixed order of precedence. Pure.

NVML first, then ``nvidia-smi``, then the others, because they print what NVML returned. Locality (NUMA node, CPUs)
comes from the kernel first, because NVML answers for the cpuset of its process.
"""

from __future__ import annotations

from agent.discover.fabric import gpu_fabric
from agent.discover.inventory import InventoryEntry
from agent.discover.precedence import SourcePrecedence
from agent.discover.products import architecture_family, is_superchip
from agent.snapshot import NvmlGpu, NvmlMigDevice
from agent.sources.kernel_list import parse_numbers, parse_single_number
from gputopo.model import C2c, Gpu, Health, MigDevice, NumaNode, Pcie, ProblemKind

_MIG_ENABLED = 1


def build_gpu(entry: InventoryEntry, cpu_nodes: frozenset[int] | None, precedence: SourcePrecedence) -> Gpu:
    """Return one GPU. ``cpu_nodes`` are the NUMA nodes that have CPUs, where known."""
    nvml = entry.nvml or NvmlGpu(index=entry.index)
    capability = nvml.compute_capability or (entry.nccl.compute_capability if entry.nccl else None)
    mig_enabled = precedence.resolve(
        f"gpus.{entry.index}.mig",
        nvml=None if nvml.mig_mode is None else nvml.mig_mode == _MIG_ENABLED,
        smi=_mig_enabled_by_smi(entry),
    )
    return Gpu(
        index=entry.index,
        uuid=precedence.resolve(
            f"gpus.{entry.index}.uuid",
            nvml=nvml.uuid,
            smi=(entry.query.uuid if entry.query else None) or (entry.listed.uuid if entry.listed else None),
        ),
        bus_id=entry.bus_id,
        minor=nvml.minor if nvml.minor is not None else entry.query.minor if entry.query else None,
        product=_product(entry, nvml, precedence),
        architecture=architecture_family(capability, nvml.architecture)
        or (entry.query.architecture if entry.query else None),
        compute_capability=capability,
        memory_mib=_memory(entry, nvml),
        numa_node=_numa_node(entry, cpu_nodes, precedence),
        numa_affinity=_numa_affinity(entry),
        memory_numa_node=_memory_numa_node(entry, nvml),
        cpu_affinity=_cpu_affinity(entry, precedence),
        pcie=_pcie(entry, nvml),
        mig_enabled=mig_enabled,
        mig_devices=_mig_devices(entry, nvml) if mig_enabled else (),
        fabric=gpu_fabric(nvml.fabric) or (entry.query.fabric if entry.query else None),
        c2c=_c2c(entry, nvml),
        health=Health.LOST if entry.lost else Health.OK,
    )


def _c2c(entry: InventoryEntry, nvml: NvmlGpu) -> C2c | None:
    """Return the C2C links. A link whose state is unknown counts as in use; rates are MB/s in one direction.

    A GPU that is no superchip may report links that its board does not use: all are down.
    """
    used = [link for link in nvml.c2c_links if link.active is not False]
    if used or (nvml.c2c_links and is_superchip(nvml.name)):
        rates = [link.speed_mbps for link in used]
        known = [rate for rate in rates if rate is not None]
        return C2c(len(used), len(nvml.c2c_links), _both_ways(sum(known)) if len(known) == len(rates) else None)
    if entry.nccl is None or entry.nccl.c2c_lanes is None:
        return None
    lanes, rate = entry.nccl.c2c_lanes, entry.nccl.c2c_mbps
    return C2c(lanes, lanes, None if rate is None else _both_ways(lanes * rate))


def _both_ways(mbps: int) -> float:
    return round(2 * mbps / 1000, 1)


def _mig_enabled_by_smi(entry: InventoryEntry) -> bool | None:
    """Return the MIG mode of ``-q -x``; a MIG device in ``-L`` proves that it is enabled."""
    queried = entry.query.mig_enabled if entry.query else None
    return True if queried is None and entry.listed is not None and entry.listed.mig else queried


def _product(entry: InventoryEntry, nvml: NvmlGpu, precedence: SourcePrecedence) -> str | None:
    queried = entry.query.product if entry.query else None
    listed = entry.listed.product if entry.listed else None
    return precedence.resolve(f"gpus.{entry.index}.product", nvml=nvml.name, smi=queried or listed)


def _memory(entry: InventoryEntry, nvml: NvmlGpu) -> int | None:
    """Memory in MiB, rounded down as GPU Feature Discovery does; None for a GPU that only shares the host's memory."""
    return (nvml.memory_bytes or 0) >> 20 or (entry.query.memory_mib if entry.query else None) or None


def _numa_node(entry: InventoryEntry, cpu_nodes: frozenset[int] | None, precedence: SourcePrecedence) -> int | None:
    topo = entry.topo.numa_affinity if entry.topo else None
    nvml = entry.nvml.memory_affinity if entry.nvml else None
    return precedence.resolve(
        f"gpus.{entry.index}.numaNode",
        sysfs=_only_with_cpus(None if entry.pci is None else entry.pci.numa_node, cpu_nodes),
        smi=_only_cpu_node(topo, cpu_nodes),
        nvml=_only_cpu_node(nvml, cpu_nodes),
        nccl=None if entry.nccl is None else entry.nccl.location.numa_node,
    )


def _only_with_cpus(node: int | None, cpu_nodes: frozenset[int] | None) -> int | None:
    """Return the node, unless it has no CPUs: on Grace the kernel reports the NUMA node of the GPU's own memory."""
    return node if cpu_nodes is None or node in cpu_nodes else None


def _only_cpu_node(affinity: str | None, cpu_nodes: frozenset[int] | None) -> int | None:
    """Return the only node with CPUs in an affinity list ("0,5-11", where 5 to 11 are GPU memory); else None."""
    if cpu_nodes is None:
        return parse_single_number(affinity)
    node_ids = parse_numbers(affinity) & cpu_nodes
    return next(iter(node_ids)) if len(node_ids) == 1 else None


def _numa_affinity(entry: InventoryEntry) -> str | None:
    candidates = (
        entry.topo.numa_affinity if entry.topo else None,
        entry.nvml.memory_affinity if entry.nvml else None,
        str(entry.pci.numa_node) if entry.pci and entry.pci.numa_node is not None else None,
    )
    return next((text for text in candidates if text is not None), None)


def _memory_numa_node(entry: InventoryEntry, nvml: NvmlGpu) -> int | None:
    if nvml.numa_node_id is not None:
        return nvml.numa_node_id
    return parse_single_number(entry.topo.gpu_numa_id) if entry.topo else None


def _cpu_affinity(entry: InventoryEntry, precedence: SourcePrecedence) -> str | None:
    """Return the kernel's list. A shorter list from the driver comes from a cpuset; any other list is a conflict."""
    sysfs = entry.pci.cpu_affinity if entry.pci else None
    driver = (entry.topo.cpu_affinity if entry.topo else None) or (entry.nvml.cpu_affinity if entry.nvml else None)
    if sysfs and driver and not parse_numbers(driver) <= parse_numbers(sysfs):
        why = f"sysfs says {sysfs} and is used; the driver says {driver}"
        precedence.add_problem(f"gpus.{entry.index}.cpuAffinity", ProblemKind.CONFLICT, why)
    return sysfs or driver


def _pcie(entry: InventoryEntry, nvml: NvmlGpu) -> Pcie:
    sysfs = entry.pci.pcie if entry.pci else Pcie()
    smi = entry.query.pcie if entry.query else Pcie()
    return Pcie(
        generation=nvml.pcie_generation or smi.generation or sysfs.generation,
        width=nvml.pcie_width or smi.width or sysfs.width,
        max_generation=nvml.pcie_max_generation or smi.max_generation or sysfs.max_generation,
        max_width=nvml.pcie_max_width
        or smi.max_width
        or sysfs.max_width
        or (entry.nccl.pcie_width if entry.nccl else None),
    )


def _mig_devices(entry: InventoryEntry, nvml: NvmlGpu) -> tuple[MigDevice, ...]:
    if nvml.mig_devices:
        return tuple(_mig_device(device) for device in nvml.mig_devices if device.name is not None)
    listed = {device.index: device for device in (entry.listed.mig if entry.listed else ())}
    queried = {device.index: device for device in (entry.query.mig_devices if entry.query else ())}
    return tuple(
        MigDevice(
            profile=listed[index].profile if index in listed else None,
            uuid=listed[index].uuid if index in listed else None,
            memory_mib=queried[index].memory_mib if index in queried else None,
        )
        for index in sorted(listed.keys() | queried.keys())
    )


def _mig_device(device: NvmlMigDevice) -> MigDevice:
    """Return a MIG device. NVML names it after its GPU: "NVIDIA A100-SXM4-40GB MIG 1g.5gb"."""
    profile = (device.name or "").rpartition("MIG ")[2]
    return MigDevice(profile, device.uuid, (device.memory_bytes or 0) >> 20 or None)


def nodes_with_cpus(nodes: tuple[NumaNode, ...]) -> frozenset[int] | None:
    """Return the NUMA nodes that have CPUs; None where no node is known."""
    return frozenset(node.id for node in nodes if node.cpus) if nodes else None
