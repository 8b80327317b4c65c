"""The facts of each GPU, believed in a stated order. Pure.

NVML before ``nvidia-smi`` before everything else, since the others print what NVML told them; but where a GPU hangs
(NUMA node, CPUs) the kernel is believed first, because NVML answers from the cpuset that it runs in.
"""

from __future__ import annotations

from agent.discover.fabric import gpu_fabric
from agent.discover.inventory import Sighting
from agent.discover.precedence import Witnesses
from agent.discover.products import family
from agent.snapshot import NvmlGpu, NvmlMigDevice
from agent.sources.kernel_list import numbers, single_number
from gputopo.model import Gpu, Health, MigDevice, NumaNode, Pcie, ProblemKind

_MIG_ENABLED = 1


def gpu(seen: Sighting, cpu_nodes: frozenset[int] | None, witnesses: Witnesses) -> Gpu:
    """One GPU. ``cpu_nodes`` are the NUMA nodes that have CPUs, where known."""
    nvml = seen.nvml or NvmlGpu(index=seen.index)
    capability = nvml.compute_capability or (seen.nccl.compute_capability if seen.nccl else None)
    mig_enabled = witnesses.believe(
        f"gpus.{seen.index}.mig",
        nvml=None if nvml.mig_mode is None else nvml.mig_mode == _MIG_ENABLED,
        smi=seen.query.mig_enabled if seen.query else None,
    )
    return Gpu(
        index=seen.index,
        uuid=witnesses.believe(
            f"gpus.{seen.index}.uuid",
            nvml=nvml.uuid,
            smi=(seen.query.uuid if seen.query else None) or (seen.listed.uuid if seen.listed else None),
        ),
        bus_id=seen.bus_id,
        minor=nvml.minor if nvml.minor is not None else seen.query.minor if seen.query else None,
        product=_product(seen, nvml, witnesses),
        architecture=family(capability, nvml.architecture) or (seen.query.architecture if seen.query else None),
        compute_capability=capability,
        memory_mib=_memory(seen, nvml),
        numa_node=_numa_node(seen, cpu_nodes, witnesses),
        numa_affinity=_numa_affinity(seen),
        memory_numa_node=_memory_numa_node(seen, nvml),
        cpu_affinity=_cpu_affinity(seen, witnesses),
        pcie=_pcie(seen, nvml),
        mig_enabled=mig_enabled,
        mig_devices=_mig_devices(seen, nvml) if mig_enabled else (),
        fabric=gpu_fabric(nvml.fabric) or (seen.query.fabric if seen.query else None),
        health=Health.LOST if seen.lost else Health.OK,
    )


def _product(seen: Sighting, nvml: NvmlGpu, witnesses: Witnesses) -> str | None:
    queried = seen.query.product if seen.query else None
    listed = seen.listed.product if seen.listed else None
    return witnesses.believe(f"gpus.{seen.index}.product", nvml=nvml.name, smi=queried or listed)


def _memory(seen: Sighting, nvml: NvmlGpu) -> int | None:
    """MiB, rounded down as GPU Feature Discovery does; a GPU that shares the host's memory has none of its own."""
    return (nvml.memory_bytes or 0) >> 20 or (seen.query.memory_mib if seen.query else None) or None


def _numa_node(seen: Sighting, cpu_nodes: frozenset[int] | None, witnesses: Witnesses) -> int | None:
    topo = seen.topo.numa_affinity if seen.topo else None
    nvml = seen.nvml.memory_affinity if seen.nvml else None
    return witnesses.believe(
        f"gpus.{seen.index}.numaNode",
        sysfs=_with_cpus(None if seen.pci is None else seen.pci.numa_node, cpu_nodes),
        smi=_only_cpu_node(topo, cpu_nodes),
        nvml=_only_cpu_node(nvml, cpu_nodes),
        nccl=None if seen.nccl is None else seen.nccl.place.numa_node,
    )


def _with_cpus(node: int | None, cpu_nodes: frozenset[int] | None) -> int | None:
    """The node, unless it is known to have no CPUs: on Grace the kernel names the GPU's own memory here."""
    return node if cpu_nodes is None or node in cpu_nodes else None


def _only_cpu_node(affinity: str | None, cpu_nodes: frozenset[int] | None) -> int | None:
    """The one NUMA node with CPUs that an affinity text names ("0,5-11" where 5 to 11 are GPUs' memory); else None."""
    if cpu_nodes is None:
        return single_number(affinity)
    named = numbers(affinity) & cpu_nodes
    return next(iter(named)) if len(named) == 1 else None


def _numa_affinity(seen: Sighting) -> str | None:
    said = (
        seen.topo.numa_affinity if seen.topo else None,
        seen.nvml.memory_affinity if seen.nvml else None,
        str(seen.pci.numa_node) if seen.pci and seen.pci.numa_node is not None else None,
    )
    return next((text for text in said if text is not None), None)


def _memory_numa_node(seen: Sighting, nvml: NvmlGpu) -> int | None:
    if nvml.numa_node_id is not None:
        return nvml.numa_node_id
    return single_number(seen.topo.gpu_numa_id) if seen.topo else None


def _cpu_affinity(seen: Sighting, witnesses: Witnesses) -> str | None:
    """The kernel's list. A shorter one of the driver is a cpuset's doing; one that is not part of it is a conflict."""
    sysfs = seen.pci.cpu_affinity if seen.pci else None
    driver = (seen.topo.cpu_affinity if seen.topo else None) or (seen.nvml.cpu_affinity if seen.nvml else None)
    if sysfs and driver and not numbers(driver) <= numbers(sysfs):
        why = f"sysfs says {sysfs} and is believed; the driver says {driver}"
        witnesses.note(f"gpus.{seen.index}.cpuAffinity", ProblemKind.CONFLICT, why)
    return sysfs or driver


def _pcie(seen: Sighting, nvml: NvmlGpu) -> Pcie:
    sysfs = seen.pci.pcie if seen.pci else Pcie()
    smi = seen.query.pcie if seen.query else Pcie()
    return Pcie(
        generation=nvml.pcie_generation or smi.generation or sysfs.generation,
        width=nvml.pcie_width or smi.width or sysfs.width,
        max_generation=nvml.pcie_max_generation or smi.max_generation or sysfs.max_generation,
        max_width=nvml.pcie_max_width or smi.max_width or sysfs.max_width,
    )


def _mig_devices(seen: Sighting, nvml: NvmlGpu) -> tuple[MigDevice, ...]:
    if nvml.mig_devices:
        return tuple(_mig_device(device) for device in nvml.mig_devices if device.name is not None)
    return tuple(MigDevice(device.profile, device.uuid) for device in (seen.listed.mig if seen.listed else ()))


def _mig_device(device: NvmlMigDevice) -> MigDevice:
    """NVML names a MIG device after its GPU: "NVIDIA A100-SXM4-40GB MIG 1g.5gb"."""
    profile = (device.name or "").rpartition("MIG ")[2]
    return MigDevice(profile, device.uuid, (device.memory_bytes or 0) >> 20 or None)


def cpu_nodes(nodes: tuple[NumaNode, ...]) -> frozenset[int] | None:
    """The NUMA nodes that have CPUs; None where no node is known."""
    return frozenset(node.id for node in nodes if node.cpus) if nodes else None
