"""What hwloc's XML says, in the shapes of sources that say the same: a list of GPUs, NCCL's places and links. Pure."""

from __future__ import annotations

from agent.discover.products import lane_gbps
from agent.sources.lstopo import LstopoGpu, LstopoTopology
from agent.sources.nccl import NcclGpu, NcclNic, NcclNvlink, NcclTopology, Place
from agent.sources.smi.listing import ListedGpu, Listing


def listing(machine: LstopoTopology) -> Listing:
    """Products and UUIDs, by the index that NVML gave them or else by their order."""
    found = (ListedGpu(_index(gpu, place), gpu.product, gpu.uuid) for place, gpu in enumerate(machine.gpus))
    return Listing(tuple(found))


def devices(machine: LstopoTopology) -> NcclTopology:
    """Places and NVLinks. The PCIe tree is left out, because it depends on lstopo's filters what is shown of it."""
    gpus = tuple(
        NcclGpu(
            dev=_index(gpu, place),
            bus_id=gpu.bus_id,
            place=Place(gpu.numa_node, None),
            nvlinks=_nvlinks(gpu, machine),
        )
        for place, gpu in enumerate(machine.gpus)
    )
    nics = tuple(NcclNic(name=nic.name, bus_id=nic.bus_id, place=Place(nic.numa_node, None)) for nic in machine.nics)
    return NcclTopology(cpus=(), gpus=gpus, nics=nics)


def _index(gpu: LstopoGpu, place: int) -> int:
    return place if gpu.index is None else gpu.index


def _nvlinks(gpu: LstopoGpu, machine: LstopoTopology) -> tuple[NcclNvlink, ...] | None:
    """Bandwidths are what hwloc gives; lanes follow where it is known what a lane of the product carries."""
    rate = lane_gbps(gpu.product)
    if machine.nvlinks is None or rate is None:
        return None
    mine = (link for link in machine.nvlinks if link.gpu == gpu.bus_id)
    return tuple(NcclNvlink(link.end, max(1, round(link.mbps / 500 / rate)), link.to) for link in mine)
