"""The rates of the network cards (NICs) that GPUs of a machine use for traffic between nodes. Pure.

A NIC counts if it is the nearest NIC of at least one GPU: NCCL takes these. A storage NIC is farther from every GPU
than the NICs of the compute network, so it does not count. Where it is as near, a node label excludes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from gputopo.model import Nic, NodeTopology, PcieDistance
from scheduler_core.allocation.gpu_sets import union

_ORDER = {distance: place for place, distance in enumerate(PcieDistance)}  # nearest first
_GBIT_BOTH_WAYS = 2 / 8  # GB/s in both directions, for each Gbit/s of a NIC in each direction


def gpu_nics(topology: NodeTopology, storage: Collection[str] = ()) -> int:
    """Return the NICs that count, by place in ``topology.nics``. ``storage``: names of NICs that do not."""
    return _gpu_nics(topology.nics, len(topology.gpus), frozenset(storage))


def gpu_rates(topology: NodeTopology, rates: Mapping[str, int], free: int, pending: int = 0) -> tuple[float, ...]:
    """Return the GB/s of each GPU over the free NICs nearest to it, both directions together.

    GPUs with the same nearest NICs share them evenly. ``rates``: Gbit/s of the NICs whose port is up. ``free``: NICs
    that the pod may use, by place. ``pending``: how many of them other pods have or will get; the fastest count as
    such.
    """
    by_rate = sorted(
        (place for place in range(len(topology.nics)) if free >> place & 1),
        key=lambda place: (-rates.get(topology.nics[place].name, 0), place),
    )
    left = union(1 << place for place in by_rate[pending:])
    return _shares(topology.nics, len(topology.gpus), left, tuple(rates.get(nic.name, 0) for nic in topology.nics))


@lru_cache(maxsize=1 << 10)
def _gpu_nics(nics: tuple[Nic, ...], gpus: int, storage: frozenset[str]) -> int:
    allowed = union(1 << place for place, nic in enumerate(nics) if nic.name not in storage)
    return union(_nearest(nics, gpu, allowed) for gpu in range(gpus))


@lru_cache(maxsize=1 << 12)
def _shares(nics: tuple[Nic, ...], gpus: int, left: int, rates: Sequence[int]) -> tuple[float, ...]:
    nearest = [_nearest(nics, gpu, left) for gpu in range(gpus)]
    users = [sum(mask >> place & 1 for mask in nearest) for place in range(len(nics))]
    return tuple(
        round(sum(rates[place] / users[place] for place in range(len(nics)) if mask >> place & 1) * _GBIT_BOTH_WAYS, 3)
        for mask in nearest
    )


def _nearest(nics: Sequence[Nic], gpu: int, allowed: int) -> int:
    """Return the NICs nearest to the GPU, by place; none behind another socket or at an unknown distance."""
    steps = {
        place: _ORDER[distance]
        for place, nic in enumerate(nics)
        if allowed >> place & 1 and (distance := nic.distances[gpu]) not in (None, PcieDistance.SYS)
    }
    least = min(steps.values(), default=None)
    return union(1 << place for place, step in steps.items() if step == least)
