"""Fragmentation gradient descent, as published (Weng et al., "Beware of Fragmentation", USENIX ATC 2023).

It takes the node, and for a share the GPU, on which the expected fragments grow least. It uses the kinds of pods in
the workload and the free CPU, but not the links. The score is the gradient through a sigmoid, as a whole number from 0
to 100.
"""

from __future__ import annotations

from math import exp

from scheduler_core.policy.demand_mix import WHOLE_GPU, DemandMix, FreeCapacity
from scheduler_core.simulation.baselines.ranked import Rate, RatedNode
from scheduler_core.simulation.hosts import SimulatedHost
from scheduler_core.simulation.workload import JobKind


def fgd_rank(mix: DemandMix, cpu_only: float) -> Rate:
    """Return the ranking. ``mix``: the typical pods with GPUs; ``cpu_only``: share of typical pods without GPUs."""

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
        assert best is not None  # the pod fits on the node
        return best

    return rate


def _ways(kind: JobKind, host: SimulatedHost) -> list[tuple[int, list[int]]]:
    """Return the sets of GPUs that the pod may use, each with the capacity that stays free.

    Whole GPUs are equal, so for them there is one entry, without the set.
    """
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
