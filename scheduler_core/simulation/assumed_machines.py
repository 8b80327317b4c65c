"""Assumed link matrices of machines that are known by model name only, and synthetic machines for benchmarks. Pure.

The public "openb" trace has model names, but no links. These are the usual machines of each model; every figure that
depends on this assumption says so.

    G2       8 GPUs, two islands of 4, each GPU joined to the 3 others by NVLink (its true model is not published)
    G3       8 GPUs on NVSwitch (its true model is not published)
    V100M16  SXM2: 8 GPUs as DGX-1's hybrid cube mesh, 4 fully meshed, fewer by PCIe
    V100M32  the same
    others   PCIe only: P100, T4, A10, and all other models

The NUMA nodes of these machines are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from gputopo.model import Gpu, Link, NodeTopology, Nvlink, PcieDistance, Uplink

GPU_MEMORY = 1000  # MiB; nominal, so that a thousandth of a GPU is 1 MiB
# Lanes between the GPUs of a DGX-1 with V100: two quads, joined GPU by GPU.
_CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2,
    (5, 7): 1, (6, 7): 2, (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1,
}  # fmt: skip
_LANE_GBPS = 50.0  # both ways, from NVLink 2 to 4


def islands(product: str, sizes: Iterable[int], lanes: int = 4, *, numa: bool = True) -> NodeTopology:
    """Return a machine with islands of these sizes; ``lanes`` join each pair of GPUs in an island."""
    joined: dict[tuple[int, int], int] = {}
    first = 0
    for size in sizes:
        joined |= dict.fromkeys(combinations(range(first, first + size), 2), lanes)
        first += size
    return _machine(product, first, _direct(joined), numa=numa)


def nvswitch(product: str, gpus: int, *, numa: bool = True) -> NodeTopology:
    """Return a machine with all GPUs on one NVSwitch, by 18 lanes each."""
    uplinks = [Uplink(gpu=gpu, fabric=0, lanes=18, expected_lanes=18, gbps=18 * _LANE_GBPS) for gpu in range(gpus)]
    return _machine(product, gpus, Nvlink(uplinks=tuple(uplinks)), numa=numa)


def machine_of(model: str, gpus: int) -> NodeTopology:
    """Return the assumed machine of a node with this model and number of GPUs."""
    volta = model in ("V100M16", "V100M32")
    if model == "G2" and gpus == 8:
        return islands(model, (4, 4), numa=False)
    if model == "G3" and gpus == 8:
        return nvswitch(model, gpus, numa=False)
    if volta and gpus == 8:
        return _machine(model, gpus, _direct(_CUBE_MESH), numa=False)
    if volta and gpus == 4:
        return islands(model, (4,), 2, numa=False)
    return _machine(model, gpus, Nvlink(), numa=False)


def _direct(joined: Mapping[tuple[int, int], int]) -> Nvlink:
    links = (
        Link(a=a, b=b, lanes=lanes, expected_lanes=lanes, gbps=lanes * _LANE_GBPS)
        for (a, b), lanes in sorted(joined.items())
    )
    return Nvlink(links=tuple(links))


def _machine(product: str, gpus: int, nvlink: Nvlink, *, numa: bool) -> NodeTopology:
    """Return a machine with two sockets of half of the GPUs each, or unknown sockets. The best distance is NODE."""
    half = (gpus + 1) // 2
    socket = [place // half if numa else None for place in range(gpus)]
    near = [[PcieDistance.NODE if a == b else PcieDistance.SYS for b in socket] for a in socket]
    return NodeTopology(
        gpus=tuple(
            Gpu(index=place, uuid=f"GPU-{place}", product=product, memory_mib=GPU_MEMORY, numa_node=socket[place])
            for place in range(gpus)
        ),
        nvlink=nvlink,
        pcie=tuple(tuple(None if a == b else near[a][b] for b in range(gpus)) for a in range(gpus)),
    )
