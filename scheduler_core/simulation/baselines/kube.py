"""The scores of kube-scheduler's own plugins for a node, 0 to 100.

Sources: ``noderesources`` of Kubernetes 1.37: ``least_allocated.go``, ``most_allocated.go``,
``balanced_allocation.go``. For NodeResourcesFit a pod without CPU or memory requests counts as 100 milli and 200 MiB. A
resource of which the node has none does not count.
"""

from __future__ import annotations

from math import sqrt

from scheduler_core.policy.demand_mix import WHOLE_GPU
from scheduler_core.simulation.hosts import UNLIMITED, SimulatedHost
from scheduler_core.simulation.workload import JobKind

_LEAST_CPU, _LEAST_MEMORY = 100, 200


def requested(kind: JobKind, host: SimulatedHost, *, gpus: bool) -> list[float]:
    """Return the shares of CPU and memory (and GPUs, if requested) that would be in use, as far as they are limited."""
    spec, shares = host.spec, []
    if 0 < spec.cpu_milli < UNLIMITED:
        shares.append(1 - (host.cpu_milli - (kind.cpu_milli or _LEAST_CPU)) / spec.cpu_milli)
    if 0 < spec.memory_mib < UNLIMITED:
        shares.append(1 - (host.memory_mib - (kind.memory_mib or _LEAST_MEMORY)) / spec.memory_mib)
    if gpus and kind.demand:
        shares.append(1 - (host.free_milli - kind.demand) / (1000 * host.gpus))
    return shares


def least_allocated(kind: JobKind, host: SimulatedHost, *, gpus: bool = True) -> int:
    """Score the emptiest node highest: spread."""
    shares = requested(kind, host, gpus=gpus)
    return sum(int(100 - 100 * share) for share in shares) // len(shares) if shares else 0


def most_allocated(kind: JobKind, host: SimulatedHost) -> int:
    """Score the fullest node highest: pack."""
    shares = requested(kind, host, gpus=True)
    return sum(int(100 * share) for share in shares) // len(shares) if shares else 0


def balanced_allocation(kind: JobKind, host: SimulatedHost, *, gpus: bool = True) -> int:
    """Score how much more evenly CPU, memory and GPUs would be used: 50 to 100, 75 if nothing changes."""
    spec = host.spec
    limits = [
        (spec.cpu_milli, host.cpu_milli, kind.cpu_milli),
        (spec.memory_mib, host.memory_mib, kind.memory_mib),
        *([(WHOLE_GPU * host.gpus, host.free_milli, kind.demand)] if gpus and kind.demand else []),
    ]
    limited = [each for each in limits if 0 < each[0] < UNLIMITED]
    before = [(there - left) / there for there, left, _ in limited]
    after = [(there - left + wanted) / there for there, left, wanted in limited]
    return 50 + (50 + _balance(after) - _balance(before)) // 2


def default_mix(kind: JobKind, host: SimulatedHost) -> int:
    """Score as kube-scheduler does by default: both plugins, by CPU and memory."""
    return least_allocated(kind, host, gpus=False) + balanced_allocation(kind, host, gpus=False)


def _balance(shares: list[float]) -> int:
    """Return 100 minus the standard deviation."""
    if not shares:
        return 100
    mean = sum(shares) / len(shares)
    return int((1 - sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))) * 100)
