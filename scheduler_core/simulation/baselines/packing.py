"""The packing policies that "Beware of Fragmentation" (USENIX ATC 2023) compares with: BestFit, DotProd, GpuPacking.

Scores are whole numbers from 0 to 100 there, and so they are here: what that rounds together are equals.
"""

from __future__ import annotations

from scheduler_core.policy.demand_mix import WHOLE_GPU
from scheduler_core.simulation.baselines.ranked import Rated, tightest
from scheduler_core.simulation.hosts import Host
from scheduler_core.simulation.workload import Kind

_MOST_CPU, _MOST_GPU = 128_000, 8_000  # of the largest node, milli


def best_fit(kind: Kind, host: Host) -> Rated:
    """Least CPU and GPU left, each weighing half."""
    left = (host.cpu_milli - kind.cpu_milli) / _MOST_CPU + (host.free_milli - kind.demand) / _MOST_GPU
    return Rated(int((1 - left / 2) * 100), tightest(kind, host))


def dot_product(kind: Kind, host: Host) -> Rated:
    """Of what is free and what is asked for, as vectors: the smaller their product, the better (Tetris, reversed)."""
    product = host.cpu_milli * kind.cpu_milli / _MOST_CPU**2 + host.free_milli * kind.demand / _MOST_GPU**2
    return Rated(int((1 - product / 2) * 100), tightest(kind, host))


def gpu_packing(kind: Kind, host: Host) -> Rated:
    """GPUs in use first, then free ones of nodes in use, then idle nodes."""
    share = tightest(kind, host)
    if not kind.demand:
        return Rated(0, share)
    idle = host.left.count(WHOLE_GPU)
    if idle == host.gpus:
        return Rated(max(33 - idle, idle), share)
    if kind.share and host.left[share.bit_length() - 1] < WHOLE_GPU:
        return Rated(max(100 - host.left[share.bit_length() - 1] // 100, 50), share)
    return Rated(max(50 - max(1, kind.gpus), 33), share)
