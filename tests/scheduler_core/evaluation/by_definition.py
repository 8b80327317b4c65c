"""Check the hard constraints of a pod by their definition, without the code under test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from gputopo.model import NodeTopology, PcieDistance


def holds(topology: NodeTopology, chosen: frozenset[int], wishes: dict[str, str]) -> bool:
    """Compute the result by definition, without the tables of the code under test."""
    if len(chosen) < 2:
        return True
    rates = {(link.a, link.b): link.gbps or 0.0 for link in topology.nvlink.links} if topology.nvlink else {}
    ring = max(min(rates.get((min(hop), max(hop)), 0.0) for hop in _hops(way)) for way in permutations(chosen))
    numa = {topology.get_gpu(index).numa_node for index in chosen}
    islands = topology.islands or ()
    order: list[PcieDistance | None] = [*PcieDistance]
    checks = {
        "island": any(chosen <= set(island.gpus) for island in islands),
        "numa": len(numa) == 1,
        "max_pcie_distance": all(
            order.index(topology.distance(a, b)) <= order.index(PcieDistance(wishes.get("max_pcie_distance", "SYS")))
            for a, b in permutations(chosen, 2)
        ),
        "interconnect": ring > 0,
        "min_bandwidth": ring >= float(wishes.get("min_bandwidth", 0)),
    }
    return all(checks[wish] for wish in wishes)


def _hops(way: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return zip(way, (*way[1:], way[0]), strict=True)
