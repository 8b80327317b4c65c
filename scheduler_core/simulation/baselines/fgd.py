"""Fragmentation gradient descent, as published (Weng et al., "Beware of Fragmentation", USENIX ATC 2023).

The node, and of a shared GPU's node the GPU, where the expected fragments grow least. Knows the workload's kinds, the
CPU that is left, and nothing of links. The score is the gradient through a sigmoid, as a whole number from 0 to 100.
"""

from __future__ import annotations

from math import exp

from scheduler_core.policy.demand_mix import WHOLE_GPU, DemandMix, FreeCapacity
from scheduler_core.simulation.baselines.ranked import Rank, RatedNode
from scheduler_core.simulation.hosts import SimulatedHost
from scheduler_core.simulation.workload import JobKind


def fgd_rank(mix: DemandMix, cpu_only: float) -> Rank:
    """``mix``: the typical pods that take GPUs; ``cpu_only``: how many of all typical pods take none."""

    def lost(free: list[int], host: SimulatedHost, cpu_milli: int) -> float:
        ascending = tuple(sorted(free))
        by_kinds = mix.fragmented_gpus(FreeCapacity((ascending,), host.product, cpu_milli))
        return (1 - cpu_only) * by_kinds + cpu_only * sum(free) / WHOLE_GPU

    def rate(kind: JobKind, host: SimulatedHost) -> RatedNode:
        before = lost(host.free_fractions, host, host.cpu_milli)
        best: RatedNode | None = None
        for share, after in _ways(kind, host):
            gradient = before - lost(after, host, host.cpu_milli - kind.cpu_milli)
            score = int(100 / (1 + exp(-gradient)))
            if best is None or score > best.score:
                best = RatedNode(score, share)
        assert best is not None  # the node has room
        return best

    return rate


def _ways(kind: JobKind, host: SimulatedHost) -> list[tuple[int, list[int]]]:
    """The GPUs that a share may go on, as sets, with what is left then. Of whole GPUs one way: all are alike."""
    if not kind.share:
        taken, left = kind.gpus, []
        for each in host.free_fractions:
            whole = each == WHOLE_GPU and taken > 0
            taken -= whole
            left.append(0 if whole else each)
        return [(0, left)]
    ways: dict[int, tuple[int, list[int]]] = {}
    for place, each in enumerate(host.free_fractions):
        if each >= kind.share and each not in ways:
            ways[each] = (
                1 << place,
                [*host.free_fractions[:place], each - kind.share, *host.free_fractions[place + 1 :]],
            )
    return list(ways.values())
