"""Machines of 16 GPUs, from fully symmetric to not symmetric at all."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from gputopo.model import NodeTopology, Nvlink, PcieDistance
from tests.machines import CUBE_MESH, GEN4, MACHINES, Place, bonded, gpus, matrix, switched

SIZE = 16


def _machine(places: list[Place], nvlink: Nvlink, numa: list[int | None]) -> NodeTopology:
    return NodeTopology(
        gpus=gpus("NVIDIA A100-SXM4-40GB", 40960, numa, architecture="ampere", pcie=GEN4),
        nvlink=nvlink,
        pcie=matrix(places),
    )


def _sockets() -> list[int | None]:
    return [at // 8 for at in range(SIZE)]


def all_alike() -> NodeTopology:
    """All pairs over NVSwitch, and equally far on PCIe: a virtual machine."""
    return _machine([(0, 0, 0, at) for at in range(SIZE)], switched(range(SIZE), 6, 50.0), [0] * SIZE)


def two_baseboards() -> NodeTopology:
    """Two boards of eight, each with switches of its own."""
    joined = switched(range(SIZE), 12, 25.0)
    uplinks = tuple(msgspec.structs.replace(each, fabric=each.gpu // 8) for each in joined.uplinks)
    return _machine([(at // 8, 0, at // 2, 0) for at in range(SIZE)], Nvlink(uplinks=uplinks), _sockets())


def pcie_only() -> NodeTopology:
    """A tree of PCIe switches."""
    return _machine([(at // 8, at // 4, at // 2, 0) for at in range(SIZE)], Nvlink(), _sockets())


def bridged_pairs() -> NodeTopology:
    """Eight pairs with a bridge."""
    pairs = {(at, at + 1): 12 for at in range(0, SIZE, 2)}
    return _machine([(at // 8, at // 4, at // 2, at) for at in range(SIZE)], bonded(pairs, 25.0), _sockets())


def weak_uplink() -> NodeTopology:
    """A DGX-2 of which one GPU lost NVLinks."""
    healthy = MACHINES["dgx2"]()
    assert healthy.nvlink is not None
    uplinks = [
        msgspec.structs.replace(each, lanes=3, gbps=150.0) if each.gpu == 5 else each for each in healthy.nvlink.uplinks
    ]
    return msgspec.structs.replace(healthy, nvlink=Nvlink(uplinks=tuple(uplinks)))


def two_cube_meshes() -> NodeTopology:
    """Two cube meshes: GPUs can be exchanged only together, which is not searched for."""
    links = CUBE_MESH | {(one + 8, other + 8): lanes for (one, other), lanes in CUBE_MESH.items()}
    return _machine([(at // 8, at // 4, at // 2, at) for at in range(SIZE)], bonded(links, 50.0), _sockets())


def uneven() -> NodeTopology:
    """No two GPUs are alike."""
    random = Random(3)
    distance = {(one, other): random.choice(list(PcieDistance)) for other in range(SIZE) for one in range(other)}
    rows = tuple(
        tuple(None if one == other else distance[min(one, other), max(one, other)] for other in range(SIZE))
        for one in range(SIZE)
    )
    lanes = {(one, other): random.choice((1, 2)) for one, other in distance if random.random() < 0.3}
    made = _machine([(0, 0, 0, at) for at in range(SIZE)], bonded(lanes, 25.0), _sockets())
    return msgspec.structs.replace(made, pcie=rows)


SYMMETRIC: dict[str, Callable[[], NodeTopology]] = {
    "dgx2": MACHINES["dgx2"],
    **{each.__name__: each for each in (all_alike, two_baseboards, pcie_only, bridged_pairs)},
}
OTHERS: dict[str, Callable[[], NodeTopology]] = {each.__name__: each for each in (weak_uplink, two_cube_meshes, uneven)}
MACHINES16 = SYMMETRIC | OTHERS
