"""Machines to simulate: what the GPU servers in the field look like, drawn by hand from their public matrices."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from itertools import combinations

import msgspec

from gputopo.model import Gpu, Link, Nic, NodeTopology, NumaNode, Nvlink, Pcie, PcieDistance, Uplink

_NAMES = uuid.UUID("6f1f9c54-3c1b-4c4a-9f70-5d5f2a3d8a11")  # a namespace of our own: same node and GPU, same UUID
# The hybrid cube mesh of a DGX-1 with V100: links per pair. Every GPU has six; no pair across has both 2 and a switch.
_CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def nvswitch_8() -> NodeTopology:
    """8 GPUs on one NVSwitch fabric, 4 per NUMA node, as an HGX H100."""
    uplinks = tuple(Uplink(gpu=gpu, fabric=0, lanes=18, expected_lanes=18, gbps=900.0) for gpu in range(8))
    return _machine("NVIDIA H100 80GB HBM3", 81559, (9, 0), Nvlink(uplinks=uplinks))


def islands_4_4() -> NodeTopology:
    """8 GPUs in two islands of 4, each fully joined by links and on a NUMA node of its own."""
    links = _links({(base + a, base + b): 4 for base in (0, 4) for a, b in combinations(range(4), 2)}, 50.0)
    return _machine("NVIDIA A100-SXM4-40GB", 40960, (8, 0), Nvlink(links=links))


def bridged_pairs_8() -> NodeTopology:
    """8 PCIe cards in 4 pairs with an NVLink bridge each."""
    links = _links({(gpu, gpu + 1): 12 for gpu in range(0, 8, 2)}, 50.0)
    return _machine("NVIDIA A100 80GB PCIe", 81920, (8, 0), Nvlink(links=links))


def cube_mesh_8() -> NodeTopology:
    """The DGX-1: 8 GPUs in one island in which not every pair has a link."""
    return _machine("Tesla V100-SXM2-16GB", 16384, (7, 0), Nvlink(links=_links(_CUBE_MESH, 50.0)))


def pcie_8() -> NodeTopology:
    """8 cards without NVLink, two to a PCIe switch."""
    return _machine("NVIDIA L40S", 46068, (8, 9), Nvlink())


def with_nics(shape: NodeTopology, gbps: int | None) -> NodeTopology:
    """The machine with a NIC of this rate (Gbit/s) for each GPU, on its PCIe switch; None: the ports are down."""
    nics = tuple(
        Nic(
            name=f"mlx5_{gpu.index}",
            bus_id=f"0000:{0xA0 + gpu.index:02x}:00.0",
            numa_node=gpu.numa_node,
            rate_gbps=gbps,
            distances=tuple(_distance(gpu.index, other.index) or PcieDistance.PIX for other in shape.gpus),
        )
        for gpu in shape.gpus
    )
    return msgspec.structs.replace(shape, nics=nics)


SHAPES: Mapping[str, Callable[[], NodeTopology]] = {
    "nvswitch-8": nvswitch_8,
    "islands-4-4": islands_4_4,
    "bridged-pairs-8": bridged_pairs_8,
    "cube-mesh-8": cube_mesh_8,
    "pcie-8": pcie_8,
}


def on_node(shape: NodeTopology, node: str) -> NodeTopology:
    """The machine as that node: its GPUs have UUIDs and its boot an id, always the same ones for the same name."""
    gpus = tuple(msgspec.structs.replace(gpu, uuid=f"GPU-{_id(node, gpu.index)}") for gpu in shape.gpus)
    return msgspec.structs.replace(shape, gpus=gpus, boot_id=_id(node, "boot"))


def _id(node: str, what: object) -> str:
    return str(uuid.uuid5(_NAMES, f"{node}/{what}"))


def _links(lanes: Mapping[tuple[int, int], int], gbps_per_lane: float) -> tuple[Link, ...]:
    """Links by pair; GB/s per lane both ways together."""
    return tuple(
        Link(a=a, b=b, lanes=count, expected_lanes=count, gbps=count * gbps_per_lane)
        for (a, b), count in sorted(lanes.items())
    )


def _machine(product: str, memory_mib: int, capability: tuple[int, int], nvlink: Nvlink) -> NodeTopology:
    """Two sockets, each a NUMA node with two PCIe switches of two GPUs."""
    gpus = tuple(_gpu(index, product, memory_mib, capability) for index in range(8))
    return NodeTopology(
        gpus=gpus,
        nvlink=nvlink,
        pcie=tuple(tuple(_distance(a, b) for b in range(8)) for a in range(8)),
        numa_nodes=(NumaNode(0, "0-63", 524288), NumaNode(1, "64-127", 524288)),
        driver_version="580.82.07",
        cuda_version="13.0",
    )


def _gpu(index: int, product: str, memory_mib: int, capability: tuple[int, int]) -> Gpu:
    socket = index // 4
    return Gpu(
        index=index,
        bus_id=f"0000:{0x10 * (index + 1):02x}:00.0",
        minor=index,
        product=product,
        compute_capability=capability,
        memory_mib=memory_mib,
        numa_node=socket,
        numa_affinity=str(socket),
        cpu_affinity=("0-63", "64-127")[socket],
        pcie=Pcie(generation=4, width=16, max_generation=4, max_width=16),
        mig_enabled=False,
    )


def _distance(a: int, b: int) -> PcieDistance | None:
    if a == b:
        return None
    if a // 2 == b // 2:
        return PcieDistance.PIX
    return PcieDistance.NODE if a // 4 == b // 4 else PcieDistance.SYS
