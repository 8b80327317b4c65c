"""Converts hwloc's XML to the types of other sources: the list of GPUs, NCCL's locations and links. Pure."""

from __future__ import annotations

from agent.discover.products import product_lane_bandwidth
from agent.sources.lstopo import LstopoGpu, LstopoTopology
from agent.sources.nccl import NcclGpu, NcclNic, NcclNvlink, NcclTopology, PciLocation, trusted_nvlinks
from agent.sources.smi.listing import ListedGpu, Listing
from gputopo.model import FactGroup


def to_listing(machine: LstopoTopology) -> Listing:
    """Return products and UUIDs, by NVML index or else by position."""
    found = (ListedGpu(_index(gpu, place), gpu.product, gpu.uuid) for place, gpu in enumerate(machine.gpus))
    return Listing(tuple(found))


def to_nccl_topology(machine: LstopoTopology) -> NcclTopology:
    """Return locations and NVLinks. The PCIe tree is left out: lstopo's filters decide what the file has of it."""
    gpus = tuple(
        NcclGpu(
            dev=_index(gpu, place),
            bus_id=gpu.bus_id,
            location=PciLocation(gpu.numa_node, None),
            nvlinks=_nvlinks(gpu, machine),
        )
        for place, gpu in enumerate(machine.gpus)
    )
    nics = tuple(
        NcclNic(name=nic.name, bus_id=nic.bus_id, location=PciLocation(nic.numa_node, None)) for nic in machine.nics
    )
    uncertain = (FactGroup.NUMA,) if machine.problems else ()
    return trusted_nvlinks(NcclTopology(cpus=(), gpus=gpus, nics=nics, problems=machine.problems, uncertain=uncertain))


def _index(gpu: LstopoGpu, position: int) -> int:
    return position if gpu.index is None else gpu.index


def _nvlinks(gpu: LstopoGpu, machine: LstopoTopology) -> tuple[NcclNvlink, ...] | None:
    """NVLinks of a GPU. hwloc has bandwidths; lanes follow where the bandwidth of a lane of the product is known."""
    rate = product_lane_bandwidth(gpu.product)
    if machine.nvlinks is None or rate is None:
        return None
    links = (link for link in machine.nvlinks if link.gpu == gpu.bus_id)
    return tuple(NcclNvlink(link.end, max(1, round(link.mbps / 500 / rate)), link.to) for link in links)
