"""NVLinks between the GPUs of one machine, and the islands that they form. Pure.

GPUs are named by their index. Rates are in GB/s, both directions together.
"""

from __future__ import annotations

import msgspec

from gputopo.invariants import require
from gputopo.summary import Interconnect


class _Bond(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """NVLinks with the same two ends."""

    lanes: int  # active on both sides
    expected_lanes: int | None = None  # of a healthy edge; None: unknown
    gbps: float | None = None  # GB/s, both directions together, of the active lanes

    @property
    def short(self) -> bool:
        """Return whether lanes are missing."""
        return self.expected_lanes is not None and self.lanes < self.expected_lanes


class Link(_Bond, frozen=True, kw_only=True, omit_defaults=True):
    """The active NVLinks that join two GPUs directly, bonded into one edge, ``a < b``."""

    a: int  # GPU index
    b: int  # GPU index
    one_sided: bool = False  # one end reports it as active, the other reports no link at all: NVIDIA's plugin crashes

    def __post_init__(self) -> None:
        require(self.a < self.b, f"link {self.a}-{self.b}: ends must differ, smaller first")
        _require_lanes(self, f"link {self.a}-{self.b}")
        require(not (self.one_sided and self.lanes), f"link {self.a}-{self.b}: one-sided, but {self.lanes} lanes")


class Uplink(_Bond, frozen=True, kw_only=True, omit_defaults=True):
    """The active NVLinks from a GPU into an NVSwitch fabric, bonded into one edge."""

    gpu: int  # GPU index
    fabric: int  # 0, 1, ...: GPUs of one fabric reach each other at full bandwidth
    assumed: bool = False  # the far end has an unknown type (virtual machines, NVLink 5): assumed to be an NVSwitch

    def __post_init__(self) -> None:
        _require_lanes(self, f"uplink of GPU {self.gpu}")


class Nvlink(msgspec.Struct, frozen=True, omit_defaults=True):
    """The graph of active NVLinks. An edge with 0 lanes is a link that is down, but should be up."""

    links: tuple[Link, ...] = ()
    uplinks: tuple[Uplink, ...] = ()
    unknown: tuple[tuple[int, int], ...] = ()  # pairs a < b for which no source reports whether NVLinks connect them

    def require_gpus(self, indices: set[int]) -> None:
        """Check that the edges are sorted and distinct, and join only existing GPUs. Raises ``ModelError``."""
        pairs = [(link.a, link.b) for link in self.links]
        require(pairs == sorted(set(pairs)), "links are not ascending and distinct")
        ups = [up.gpu for up in self.uplinks]
        require(
            ups == sorted(set(ups)), "uplinks are not ascending and distinct: a GPU has one per fabric, and one fabric"
        )
        require(list(self.unknown) == sorted(set(self.unknown)), "unknown pairs are not ascending and distinct")
        require(all(a < b for a, b in self.unknown), "an unknown pair has its smaller GPU first")
        missing = ({end for pair in (*pairs, *self.unknown) for end in pair} | set(ups)) - indices
        require(not missing, f"NVLinks name GPUs that do not exist: {sorted(missing)}")


class Island(msgspec.Struct, frozen=True, omit_defaults=True):
    """A connected component of the graph of active NVLinks, or a GPU that has none."""

    gpus: tuple[int, ...]  # GPU indices, ascending
    interconnect: Interconnect
    gbps: float | None  # NVLink GB/s per GPU, both directions, of its slowest GPU; None: unknown or no NVLink

    @property
    def size(self) -> int:
        """Return the number of GPUs."""
        return len(self.gpus)


def find_islands(usable: tuple[int, ...], nvlink: Nvlink, joinable: frozenset[int]) -> tuple[Island, ...]:
    """Return the islands of the usable GPUs, by first GPU: union-find over active edges.

    ``joinable`` are the GPUs that can use NVLink. Any other GPU is an island of its own.
    """
    root = {index: index for index in usable}

    def root_of(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    uplinks = [up for up in nvlink.uplinks if up.lanes and up.gpu in joinable]
    first: dict[int, int] = {}
    for up in uplinks:
        root[root_of(up.gpu)] = root_of(first.setdefault(up.fabric, up.gpu))
    links = [link for link in nvlink.links if link.lanes and link.a in joinable and link.b in joinable]
    for link in links:
        root[root_of(link.b)] = root_of(link.a)

    members: dict[int, list[int]] = {}
    for index in sorted(root):
        members.setdefault(root_of(index), []).append(index)
    return tuple(_island(tuple(gpus), links, uplinks) for gpus in sorted(members.values()))


def _island(gpus: tuple[int, ...], links: list[Link], uplinks: list[Uplink]) -> Island:
    if len(gpus) == 1:
        return Island(gpus, Interconnect.NONE, None)
    edges: dict[int, list[float | None]] = {index: [] for index in gpus}
    for link in links:
        for end in (link.a, link.b):
            if end in edges:
                edges[end].append(link.gbps)
    fabrics = {up.gpu: up.fabric for up in uplinks if up.gpu in edges}
    for up in uplinks:
        if up.gpu in edges:
            edges[up.gpu].append(up.gbps)
    direct = any(link.a in edges for link in links)
    # Where direct links take part, not every pair of GPUs has a path through an NVSwitch, nor the rate of its sum.
    switched = len(fabrics) == len(gpus) and len(set(fabrics.values())) == 1 and not direct
    rates = [None if None in each else sum(rate for rate in each if rate is not None) for each in edges.values()]
    slowest = None if None in rates else min(rate for rate in rates if rate is not None)
    return Island(gpus, Interconnect.NVSWITCH if switched else Interconnect.NVLINK, slowest)


def _require_lanes(edge: Link | Uplink, name: str) -> None:
    require(edge.lanes >= 0, f"{name}: {edge.lanes} lanes")
    require(edge.expected_lanes is None or edge.expected_lanes >= edge.lanes, f"{name}: more lanes than expected")
    require(edge.lanes > 0 or edge.expected_lanes is not None, f"{name}: no lanes and none expected is no link")
    require(edge.gbps is None or edge.gbps >= 0, f"{name}: {edge.gbps} GB/s")
