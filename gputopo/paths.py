"""The path between two GPUs of a machine: the links, the maximum bandwidth, and the reasons. Pure.

Rates are GB/s of the link, both directions together; a program reaches less. ``gputopo.render.path`` prints paths.

    ModelError      no such GPU, or the same GPU twice
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
    """The kind of link between two GPUs."""

    NVLINK = "nvlink"  # NVLinks that connect the two directly
    NVSWITCH = "nvswitch"  # NVLinks of both into one NVSwitch fabric
    NVLINK_HOPS = "nvlink-hops"  # NVLink only through other GPUs: a copy takes PCIe
    PCIE = "pcie"
    NONE = "none"  # a GPU is lost
    UNKNOWN = "unknown"  # the NVLinks are unknown


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """The path between two GPUs."""

    a: int  # GPU index
    b: int  # GPU index
    kind: PathKind
    lanes: int | None = None  # number of NVLinks, of the side with fewer
    hops: tuple[int, ...] = ()  # NVLINK_HOPS: the GPUs in between, from a to b
    distance: PcieDistance | None = None  # PCIe distance, also if NVLink is used
    gbps: float | None = None  # maximum, both directions together; None: unknown
    why: tuple[str, ...]  # reasons, the deciding reason first


class PathEdge(msgspec.Struct, frozen=True):
    """Two GPUs that NVLink connects without another GPU between them."""

    kind: PathKind
    lanes: int
    expected_lanes: int | None
    gbps: float | None


def find_path(topology: NodeTopology, a: int, b: int) -> Path:
    """Return the path between GPUs ``a`` and ``b``. Raises ``ModelError`` if a GPU does not exist, or if a == b."""
    if a == b:
        raise ModelError(f"GPU {a} and GPU {b} are the same: specify two GPUs")
    one, other = topology.get_gpu(a), topology.get_gpu(b)
    lost = [gpu.index for gpu in (one, other) if not gpu.usable]
    if lost:
        names = " and ".join(f"GPU{index}" for index in lost)
        return Path(a=a, b=b, kind=PathKind.NONE, why=(f"{names} lost",))
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
    """Return every pair that active NVLinks connect; a direct link is preferred. MIG and lost GPUs have none."""
    joinable = topology.joinable
    joined: dict[tuple[int, int], PathEdge] = {}
    uplinks = [up for up in nvlink.uplinks if up.lanes and up.gpu in joinable]
    for up in uplinks:
        for far in uplinks:
            if up.gpu < far.gpu and up.fabric == far.fabric:
                narrow = min((up, far), key=lambda end: end.lanes)
                rate = None if up.gbps is None or far.gbps is None else min(up.gbps, far.gbps)
                joined[up.gpu, far.gpu] = PathEdge(PathKind.NVSWITCH, narrow.lanes, narrow.expected_lanes, rate)
    for link in nvlink.links:
        if link.lanes and link.a in joinable and link.b in joinable:
            joined[link.a, link.b] = PathEdge(PathKind.NVLINK, link.lanes, link.expected_lanes, link.gbps)
    return joined


def _hops(joined: Iterable[tuple[int, int]], a: int, b: int) -> tuple[int, ...]:
    """Return the GPUs between ``a`` and ``b`` on a shortest NVLink path; on a tie the path of the lowest indices."""
    neighbours: dict[int, list[int]] = {}
    for one, other in sorted(joined):
        neighbours.setdefault(one, []).append(other)
        neighbours.setdefault(other, []).append(one)
    queue: list[tuple[int, ...]] = [(a,)]
    seen = {a}
    for gpus in queue:  # grows during the iteration: breadth-first search
        for far in sorted(set(neighbours.get(gpus[-1], ())) - seen):
            if far == b:
                return gpus[1:]
            seen.add(far)
            queue.append((*gpus, far))
    return ()


def _direct(topology: NodeTopology, one: Gpu, other: Gpu, edge: PathEdge) -> Path:
    if edge.kind is PathKind.NVSWITCH:
        why = [f"connected through an NVSwitch fabric, each by at least {_nvlinks(edge.lanes)}"]
    else:
        why = [f"connected directly by {_nvlinks(edge.lanes)}"]
    if edge.expected_lanes is not None and edge.lanes < edge.expected_lanes:
        why.append(f"degraded: {edge.lanes} of {_nvlinks(edge.expected_lanes)} active")
    if edge.gbps is None:
        why.append("the NVLink bandwidth is unknown")
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
    """Return the path of GPUs with NVLink only through other GPUs: CUDA copies over PCIe, NCCL may relay."""
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
    carried = _over_pcie(topology, one, other, ("the NVLinks are unknown; without NVLink:",))
    return msgspec.structs.replace(carried, kind=PathKind.UNKNOWN, gbps=None)


def _nvlinks(lanes: int) -> str:
    return "1 NVLink" if lanes == 1 else f"{lanes} NVLinks"


def _no_nvlink(nvlink: Nvlink, a: int, b: int) -> str:
    """Return why no NVLink is active between the two: none exists, or it is down."""
    for link in nvlink.links:
        if (link.a, link.b) == _pair(a, b) and not link.lanes:
            why = f"degraded: no NVLink between them is active, of {link.expected_lanes} expected"
            return f"{why}: only one of the two reports it" if link.one_sided else why
    for up in nvlink.uplinks:
        if up.gpu in (a, b) and not up.lanes:
            return f"degraded: no NVLink of GPU{up.gpu} into its fabric is active, of {up.expected_lanes} expected"
    return "no NVLink connects them"


_PCIE_PATHS = {
    PcieDistance.PIX: "PIX: through one PCIe bridge at most, without the CPU",
    PcieDistance.PXB: "PXB: through several PCIe bridges, without the CPU",
    PcieDistance.PHB: "PHB: through a PCIe host bridge, that is the CPU",
    PcieDistance.NODE: "NODE: through several PCIe host bridges of one NUMA node",
    PcieDistance.SYS: "SYS: through the link between NUMA nodes, whose bandwidth is unknown: expect less than PCIe's",
}


def _over_pcie(topology: NodeTopology, one: Gpu, other: Gpu, why: tuple[str, ...]) -> Path:
    distance = topology.distance(one.index, other.index)
    way = "the PCIe distance is unknown" if distance is None else _PCIE_PATHS[distance]
    rates = [(pcie_gbps(gpu), gpu.index) for gpu in (one, other)]
    known = [(rate, index) for rate, index in rates if rate is not None]
    if len(known) < len(rates):
        unknown = " and ".join(f"GPU{index}" for rate, index in rates if rate is None)
        return _pcie_path(one, other, distance, None, (*why, way, f"the PCIe link of {unknown} is unknown"))
    rate, index = min(known)
    link = topology.get_gpu(index).pcie
    bound = f"PCIe generation {link.max_generation} x{link.max_width} of GPU{index}: at most {rate:g} GB/s both ways"
    return _pcie_path(one, other, distance, rate, (*why, way, bound))


def _pcie_path(one: Gpu, other: Gpu, distance: PcieDistance | None, gbps: float | None, why: tuple[str, ...]) -> Path:
    return Path(a=one.index, b=other.index, kind=PathKind.PCIE, distance=distance, gbps=gbps, why=why)


def pcie_gbps(gpu: Gpu) -> float | None:
    """Return the maximum GB/s, both directions, of a GPU's PCIe link; None if it or its generation's rate is unknown.

    The maximum, because generation and width drop while a GPU is idle.
    """
    link = gpu.pcie
    if link.max_generation is None or link.max_width is None:
        return None
    per_lane = PCIE_GBPS_PER_LANE.get(link.max_generation)
    return None if per_lane is None else round(2 * per_lane * link.max_width, 1)
