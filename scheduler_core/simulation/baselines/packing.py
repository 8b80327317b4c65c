"""The packing policies that "Beware of Fragmentation" (USENIX ATC 2023) compares with: BestFit, DotProd, GpuPacking.

As there, scores are whole numbers from 0 to 100: nodes that round to the same number are equal.
"""

from __future__ import annotations

from scheduler_core.policy.demand_mix import WHOLE_GPU
from scheduler_core.simulation.baselines.ranked import RatedNode, tightest_gpu
from scheduler_core.simulation.hosts import SimulatedHost
from scheduler_core.simulation.workload import JobKind

_MOST_CPU, _MOST_GPU = 128_000, 8_000  # of the largest node, milli


def best_fit(kind: JobKind, host: SimulatedHost) -> RatedNode:
    """Score by the least CPU and GPUs left, with equal weights."""
    left = (host.cpu_milli - kind.cpu_milli) / _MOST_CPU + (host.free_milli - kind.demand) / _MOST_GPU
    return RatedNode(int((1 - left / 2) * 100), tightest_gpu(kind, host))


def dot_product(kind: JobKind, host: SimulatedHost) -> RatedNode:
    """Score by the dot product of free and requested capacity: the smaller, the better (Tetris, reversed)."""
    product = host.cpu_milli * kind.cpu_milli / _MOST_CPU**2 + host.free_milli * kind.demand / _MOST_GPU**2
    return RatedNode(int((1 - product / 2) * 100), tightest_gpu(kind, host))


def gpu_packing(kind: JobKind, host: SimulatedHost) -> RatedNode:
    """Score GPUs in use first, then free GPUs of nodes in use, then idle nodes."""
    share = tightest_gpu(kind, host)
    if not kind.demand:
        return RatedNode(0, share)
    idle = host.free_fractions.count(WHOLE_GPU)
    if idle == host.gpus:
        return RatedNode(max(33 - idle, idle), share)
    if kind.share and host.free_fractions[share.bit_length() - 1] < WHOLE_GPU:
        return RatedNode(max(100 - host.free_fractions[share.bit_length() - 1] // 100, 50), share)
    return RatedNode(max(50 - max(1, kind.gpus), 33), share)
