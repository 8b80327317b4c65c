"""Bandwidth between the nodes of a gang: multi-node NVLink, or the NICs near the GPUs. Pure.

A rate is known only if it is known for every node. NIC rates are those of ``/sys/class/infiniband``; switches between
the nodes are not known, so a rate is an upper limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputopo.labels.domains import CLIQUE_LABELS, first_domain
from gputopo.model import NodeTopology


class NetworkNode(NamedTuple):
    """A node of a gang."""

    name: str
    topology: NodeTopology | None
    labels: Mapping[str, str]
    gpu_gbps: tuple[float, ...] | None = None  # of each GPU over NICs, as ``network_gbps``


class NetworkRate(NamedTuple):
    """The bandwidth of the slowest node to the others."""

    gbps: float | None  # GB/s, in both directions together: over NVLink of a GPU, over NICs of a node; None: unknown
    source: str  # for people


def network_rate(nodes: Sequence[NetworkNode]) -> NetworkRate | None:
    """Return the bandwidth between these nodes; None for fewer than two."""
    if len(nodes) < 2:
        return None
    cliques = {first_domain(each.labels, CLIQUE_LABELS) for each in nodes}
    if len(cliques) == 1 and None not in cliques:
        slowest, rate = _slowest([(each.name, _island_rate(each.topology)) for each in nodes])
        unknown = f"NVLink of one clique; the rate of {slowest} is not published"
        return NetworkRate(rate, "NVLink of one clique, per GPU" if rate is not None else unknown)
    slowest, rate = _slowest([(each.name, None if each.gpu_gbps is None else sum(each.gpu_gbps)) for each in nodes])
    if rate is None:
        return NetworkRate(None, f"the NIC rates of {slowest} are not published")
    return NetworkRate(round(rate, 1), f"NICs near the GPUs of {slowest}, per node")


def _slowest(rates: Sequence[tuple[str, float | None]]) -> tuple[str, float | None]:
    """Return the node with the lowest rate; a node whose rate is unknown, if there is one."""
    return min(rates, key=lambda each: (each[1] is not None, each[1] or 0.0, each[0]))


def _island_rate(topology: NodeTopology | None) -> float | None:
    """Return the NVLink rate of a GPU, in the slowest island; by labels, only where one island has all NVLinks."""
    summary = None if topology is None or topology.islands is not None else topology.summary
    if summary is not None and summary.island_gbps is not None:
        islands = [size for size in summary.island_sizes or () if size > 1]
        return float(summary.island_gbps) if len(islands) == 1 else None
    rates = [] if topology is None else [each.gbps for each in topology.islands or () if each.size > 1]
    known = [rate for rate in rates if rate is not None]
    return min(known) if known and len(known) == len(rates) else None
