"""How two GPUs of a machine talk: over which wires, at what bandwidth at most, and why.

Rates are GB/s, both ways together, of the wire; what a program reaches is lower. Pure; knows nothing of how it is
printed (``gputopo.render.path``).

    ModelError      no such GPU, or twice the same one
"""

from __future__ import annotations

import itertools
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from gputopo.model import Gpu, ModelError, NodeTopology, Nvlink, PcieDistance

if TYPE_CHECKING:
    from collections.abc import Iterable

# GB/s per lane and direction, after the line encoding (8b/10b up to generation 2, 128b/130b up to 5, flits from 6).
PCIE_GBPS_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.5}


class PathKind(Enum):
    """What carries the traffic between two GPUs."""

    NVLINK = "nvlink"  # NVLinks that join the two directly
    NVSWITCH = "nvswitch"  # NVLinks into a fabric that both are attached to
    NVLINK_HOPS = "nvlink-hops"  # NVLink only by way of other GPUs: a plain copy takes PCIe
    PCIE = "pcie"
    NONE = "none"  # one of them is lost
    UNKNOWN = "unknown"  # nobody could tell what NVLinks there are


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """How two GPUs talk."""

    a: int  # GPU index
    b: int  # GPU index
    kind: PathKind
    lanes: int | None = None  # NVLinks that carry it, of the narrower side
    hops: tuple[int, ...] = ()  # NVLINK_HOPS: the GPUs in between, from a to b
    distance: PcieDistance | None = None  # of the PCIe way, also where NVLink is taken
    gbps: float | None = None  # at most, of a copy from one to the other, both ways together; None: unknown
    why: tuple[str, ...]  # sentences, the deciding one first


class PathEdge(msgspec.Struct, frozen=True):
    """Two GPUs that NVLink joins without another GPU in between."""

    kind: PathKind
    lanes: int
    expected_lanes: int | None
    gbps: float | None


def find_path(topology: NodeTopology, a: int, b: int) -> Path:
    """How GPU ``a`` and GPU ``b`` talk. Raises ``ModelError`` where one of them is not there, or they are the same."""
    if a == b:
        raise ModelError(f"GPU {a} and GPU {b} are the same: a path needs two")
    one, other = topology.get_gpu(a), topology.get_gpu(b)
    lost = [gpu.index for gpu in (one, other) if not gpu.usable]
    if lost:
        names = " and ".join(f"GPU{index}" for index in lost)
        return Path(a=a, b=b, kind=PathKind.NONE, why=(f"{names} cannot be talked to: lost",))
    partitioned = [gpu.index for gpu in (one, other) if gpu.mig_enabled is True]
    if partitioned:
        return _mig(topology, one, other, partitioned)
    if topology.nvlink is None:
        return _unknown(topology, one, other)
    joined = nvlink_edges(topology, topology.nvlink)
    if edge := joined.get(_pair(a, b)):
        return _direct(topology, one, other, edge)
    if hops := _hops(joined, a, b):
        return _relayed(topology, (one, other), hops, joined, _no_nvlink(topology.nvlink, a, b))
    return _over_pcie(topology, one, other, (_no_nvlink(topology.nvlink, a, b),))


def _pair(a: int, b: int) -> tuple[int, int]:
    return min(a, b), max(a, b)


def nvlink_edges(topology: NodeTopology, nvlink: Nvlink) -> dict[tuple[int, int], PathEdge]:
    """Every pair that active NVLink joins; where both ways exist, the direct one. MIG and lost GPUs have none."""
    joinable = topology.joinable
    joined: dict[tuple[int, int], PathEdge] = {}
    uplinks = [up for up in nvlink.uplinks if up.lanes and up.gpu in joinable]
    for up in uplinks:
        for far in uplinks:
            if up.gpu < far.gpu and up.fabric == far.fabric:
                weak = min((up, far), key=lambda end: end.lanes)
                rate = None if up.gbps is None or far.gbps is None else min(up.gbps, far.gbps)
                joined[up.gpu, far.gpu] = PathEdge(PathKind.NVSWITCH, weak.lanes, weak.expected_lanes, rate)
    for link in nvlink.links:
        if link.lanes and link.a in joinable and link.b in joinable:
            joined[link.a, link.b] = PathEdge(PathKind.NVLINK, link.lanes, link.expected_lanes, link.gbps)
    return joined


def _hops(joined: Iterable[tuple[int, int]], a: int, b: int) -> tuple[int, ...]:
    """The GPUs between ``a`` and ``b`` on a shortest way over NVLink; of equal ones the one of the lowest indices."""
    neighbours: dict[int, list[int]] = {}
    for one, other in sorted(joined):
        neighbours.setdefault(one, []).append(other)
        neighbours.setdefault(other, []).append(one)
    ways: list[tuple[int, ...]] = [(a,)]
    seen = {a}
    for way in ways:  # grows while it is walked: breadth first
        for far in sorted(set(neighbours.get(way[-1], ())) - seen):
            if far == b:
                return way[1:]
            seen.add(far)
            ways.append((*way, far))
    return ()


def _direct(topology: NodeTopology, one: Gpu, other: Gpu, edge: PathEdge) -> Path:
    if edge.kind is PathKind.NVSWITCH:
        why = [f"both are attached to one NVSwitch fabric, each by at least {_nvlinks(edge.lanes)}"]
    else:
        why = [f"joined directly by {_nvlinks(edge.lanes)}"]
    if edge.expected_lanes is not None and edge.lanes < edge.expected_lanes:
        why.append(f"degraded: {edge.lanes} of {_nvlinks(edge.expected_lanes)} active")
    if edge.gbps is None:
        why.append("how fast an NVLink is here is not known")
    return Path(
        a=one.index,
        b=other.index,
        kind=edge.kind,
        lanes=edge.lanes,
        distance=topology.distance(one.index, other.index),
        gbps=edge.gbps,
        why=tuple(why),
    )


def _relayed(
    topology: NodeTopology,
    ends: tuple[Gpu, Gpu],
    hops: tuple[int, ...],
    joined: dict[tuple[int, int], PathEdge],
    no_nvlink: str,
) -> Path:
    """NVLink does not route over a GPU: CUDA copies between the two over PCIe, while NCCL may relay."""
    one, other = ends
    way = (one.index, *hops, other.index)
    names = ", ".join(f"GPU{index}" for index in hops)
    rates = [joined[_pair(*step)].gbps for step in itertools.pairwise(way)]
    slowest = None if None in rates else min(rate for rate in rates if rate is not None)
    at_most = "" if slowest is None else f", at most {slowest:g} GB/s both ways"
    # NCCL's path type NVB takes one intermediate GPU, never two (src/graph/paths.cc).
    relay = (
        f"relay through {names} over NVLink" if len(hops) == 1 else "use NVLink here only by a ring through these GPUs"
    )
    carried = _over_pcie(
        topology,
        one,
        other,
        (
            no_nvlink,
            (
                f"NVLink reaches from one to the other through {names}, but does not route over a GPU:"
                " a CUDA peer-to-peer copy takes PCIe"
            ),
            f"NCCL can {relay}{at_most}",
        ),
    )
    lanes = min(joined[_pair(*step)].lanes for step in itertools.pairwise(way))
    return msgspec.structs.replace(carried, kind=PathKind.NVLINK_HOPS, hops=hops, lanes=lanes)


def _mig(topology: NodeTopology, one: Gpu, other: Gpu, partitioned: list[int]) -> Path:
    names = " and ".join(f"GPU{index}" for index in partitioned)
    verb = "is" if len(partitioned) == 1 else "are"
    why = f"{names} {verb} in MIG mode, which forbids peer-to-peer over NVLink and PCIe: copies go through host memory"
    return _over_pcie(topology, one, other, (why,))


def _unknown(topology: NodeTopology, one: Gpu, other: Gpu) -> Path:
    carried = _over_pcie(topology, one, other, ("nobody could tell what NVLinks there are; without one:",))
    return msgspec.structs.replace(carried, kind=PathKind.UNKNOWN, gbps=None)


def _nvlinks(lanes: int) -> str:
    return "1 NVLink" if lanes == 1 else f"{lanes} NVLinks"


def _no_nvlink(nvlink: Nvlink, a: int, b: int) -> str:
    """Why there is no NVLink between the two: none was ever there, or it is down."""
    for link in nvlink.links:
        if (link.a, link.b) == _pair(a, b) and not link.lanes:
            return f"degraded: no NVLink between them is active, of {link.expected_lanes} expected"
    for up in nvlink.uplinks:
        if up.gpu in (a, b) and not up.lanes:
            return f"degraded: no NVLink of GPU{up.gpu} into its fabric is active, of {up.expected_lanes} expected"
    return "no NVLink joins them"


_WAYS = {
    PcieDistance.PIX: "PIX: through one PCIe bridge at most, without the CPU",
    PcieDistance.PXB: "PXB: through several PCIe bridges, without the CPU",
    PcieDistance.PHB: "PHB: through a PCIe host bridge, that is the CPU",
    PcieDistance.NODE: "NODE: through several PCIe host bridges of one NUMA node",
    PcieDistance.SYS: "SYS: through the link between NUMA nodes, whose bandwidth is not known: expect less than PCIe's",
}


def _over_pcie(topology: NodeTopology, one: Gpu, other: Gpu, why: tuple[str, ...]) -> Path:
    distance = topology.distance(one.index, other.index)
    way = "how far apart they are on PCIe is not known" if distance is None else _WAYS[distance]
    rates = [(pcie_gbps(gpu), gpu.index) for gpu in (one, other)]
    known = [(rate, index) for rate, index in rates if rate is not None]
    if len(known) < len(rates):
        unknown = " and ".join(f"GPU{index}" for rate, index in rates if rate is None)
        return _pcie_path(one, other, distance, None, (*why, way, f"the PCIe link of {unknown} is not known"))
    rate, index = min(known)
    link = topology.get_gpu(index).pcie
    bound = f"PCIe generation {link.max_generation} x{link.max_width} of GPU{index}: at most {rate:g} GB/s both ways"
    return _pcie_path(one, other, distance, rate, (*why, way, bound))


def _pcie_path(one: Gpu, other: Gpu, distance: PcieDistance | None, gbps: float | None, why: tuple[str, ...]) -> Path:
    return Path(a=one.index, b=other.index, kind=PathKind.PCIE, distance=distance, gbps=gbps, why=why)


def pcie_gbps(gpu: Gpu) -> float | None:
    """GB/s, both ways, of a GPU's PCIe link at its maximum; None where that or its generation's rate is unknown.

    The maximum, because generation and width drop while a GPU is idle.
    """
    link = gpu.pcie
    if link.max_generation is None or link.max_width is None:
        return None
    per_lane = PCIE_GBPS_PER_LANE.get(link.max_generation)
    return None if per_lane is None else round(2 * per_lane * link.max_width, 1)
