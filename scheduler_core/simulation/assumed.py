"""Link matrices of machines that are known by a model name only, and of machines made up for a measurement. Pure.

The public "openb" trace names models and says nothing of links. What is assumed here is what such machines usually are;
every figure that depends on it says so.

    G2       8 GPUs, two islands of 4, each GPU joined to the 3 others by NVLink (its true model is not published)
    G3       8 GPUs on NVSwitch (its true model is not published)
    V100M16  SXM2: 8 GPUs as DGX-1's hybrid cube mesh, 4 fully meshed, fewer by PCIe
    V100M32  the same
    others   PCIe only: P100, T4, A10, and whatever is not named here
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from gputopo.model import Gpu, Link, NodeTopology, Nvlink, PcieDistance, Uplink

GPU_MEMORY = 1000  # nominal, so that a share in thousandths is as many MiB
# Lanes between the GPUs of a DGX-1 with V100: two quads, joined GPU by GPU.
_CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2,
    (5, 7): 1, (6, 7): 2, (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1,
}  # fmt: skip
_NVLINK2, _NVLINK3 = 50.0, 50.0  # GB/s of a lane, both ways


def islands(product: str, sizes: Iterable[int], lanes: int = 4, gbps: float = _NVLINK3) -> NodeTopology:
    """A machine whose GPUs are islands of those sizes; in each all pairs are joined by that many lanes."""
    joined: dict[tuple[int, int], int] = {}
    first = 0
    for size in sizes:
        joined |= dict.fromkeys(combinations(range(first, first + size), 2), lanes)
        first += size
    return _direct(product, first, joined, gbps)


def nvswitch(product: str, gpus: int, lanes: int = 18, gbps: float = 50.0) -> NodeTopology:
    """A machine whose GPUs are all on one NVSwitch."""
    uplinks = tuple(
        Uplink(gpu=gpu, fabric=0, lanes=lanes, expected_lanes=lanes, gbps=lanes * gbps) for gpu in range(gpus)
    )
    return _machine(product, gpus, Nvlink(uplinks=uplinks))


def pcie(product: str, gpus: int) -> NodeTopology:
    """A machine without NVLink."""
    return _machine(product, gpus, Nvlink())


def machine_of(model: str, gpus: int) -> NodeTopology:
    """The machine that a node of that model with so many GPUs is taken to be."""
    if model == "G2" and gpus == 8:
        return islands(model, (4, 4))
    if model == "G3" and gpus == 8:
        return nvswitch(model, 8)
    if model in ("V100M16", "V100M32") and gpus == 8:
        return _direct(model, 8, _CUBE_MESH, _NVLINK2)
    if model in ("V100M16", "V100M32") and gpus == 4:
        return islands(model, (4,), 2, _NVLINK2)
    return pcie(model, gpus)


def _direct(product: str, gpus: int, joined: Mapping[tuple[int, int], int], gbps: float) -> NodeTopology:
    links = tuple(
        Link(a=a, b=b, lanes=lanes, expected_lanes=lanes, gbps=lanes * gbps) for (a, b), lanes in sorted(joined.items())
    )
    return _machine(product, gpus, Nvlink(links=links))


def _machine(product: str, gpus: int, nvlink: Nvlink) -> NodeTopology:
    """Two sockets with half of the GPUs each; what is on one is as far apart as two host bridges."""
    half = (gpus + 1) // 2
    socket = [place // half for place in range(gpus)]
    return NodeTopology(
        gpus=tuple(
            Gpu(index=place, uuid=f"GPU-{place}", product=product, memory_mib=GPU_MEMORY, numa_node=socket[place])
            for place in range(gpus)
        ),
        nvlink=nvlink,
        pcie=tuple(
            tuple(
                None if one == other else PcieDistance.NODE if socket[one] == socket[other] else PcieDistance.SYS
                for other in range(gpus)
            )
            for one in range(gpus)
        ),
    )
