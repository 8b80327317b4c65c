"""The usual requests of pods, by which free GPUs count as usable or as fragments. Pure.

Fragmentation is measured as in "Beware of Fragmentation" (USENIX ATC 2023), in GPUs. For each kind of request: all free
capacity of a node that cannot serve it; on a node that can serve it, the free parts of GPUs that are too small for it.
The result is the average over the kinds, weighted by frequency. This is extended to islands: one island serves a
request for several GPUs, so free GPUs in an island with too few free GPUs are fragments for it. If even an idle island
of the machine is too small, the node as a whole serves the request, slower: half of its free GPUs count as fragments in
any case. A machine without NVLink serves the request as a whole, at no loss.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

import msgspec

from scheduler_core.request.gpu_model import is_model

WHOLE_GPU = 1000  # thousandths
Units = tuple[tuple[int, ...], ...]  # for each island the free thousandths of its GPUs; both ascending


class Demand(NamedTuple):
    """A kind of request."""

    gpus: int = 0  # whole GPUs
    share: int = 0  # thousandths of a shared GPU
    cpu_milli: int = 0  # CPU of the whole pod; 0: not considered
    products: frozenset[str] | None = None  # accepted GPU models, as ``gpu_model.is_model`` matches them; None: all


class FreeCapacity(NamedTuple):
    """The free capacity of a node."""

    units: Units
    product: str | None = None
    cpu_milli: int | None = None  # None: unknown or unlimited


class _DemandKind(NamedTuple):
    """Demands that differ in CPU only."""

    gpus: int
    share: int
    products: frozenset[str] | None
    cpus: tuple[int, ...]  # ascending
    sums: tuple[float, ...]  # frequency of requests with up to this much CPU; 0 first


class _FragmentPart(NamedTuple):
    """The fragments of some free GPUs for a kind of request."""

    lost: float  # fragments if there is enough CPU
    cpus: tuple[int, ...]
    sums: tuple[float, ...]


class DemandMix(msgspec.Struct, frozen=True, cache_hash=True):
    """Kinds of requests with their frequencies, in any unit. Requests without GPUs do not count."""

    wants: tuple[tuple[Demand, float], ...]

    def fragmented_gpus(self, capacity: FreeCapacity) -> float:
        """Return the number of free GPUs that are fragments, on average over the kinds of requests."""
        return _mix_tables(self).lost(capacity)


class _MixTables:
    """The tables that are computed once for each mix."""

    def __init__(self, mix: DemandMix) -> None:
        with_gpus = [(demand, weight) for demand, weight in mix.wants if (demand.gpus or demand.share) and weight > 0]
        total = sum(weight for _, weight in with_gpus)
        kinds: dict[tuple[int, int, frozenset[str] | None], dict[int, float]] = {}
        for demand, weight in with_gpus:
            cpus = kinds.setdefault((demand.gpus, demand.share, demand.products), {})
            cpus[demand.cpu_milli] = cpus.get(demand.cpu_milli, 0.0) + weight / total
        self._kinds = tuple(_kind(*key, cpus) for key, cpus in kinds.items())
        self._parts = lru_cache(maxsize=1 << 14)(self._parts_of)
        self.lost = lru_cache(maxsize=1 << 16)(self._lost_of)

    def _lost_of(self, capacity: FreeCapacity) -> float:
        base, total, parts = self._parts(capacity.units, capacity.product)
        if capacity.cpu_milli is None:
            return base + sum(part.lost * part.sums[-1] for part in parts)
        for lost, cpus, sums in parts:
            served = sums[bisect_right(cpus, capacity.cpu_milli)]
            base += served * lost + (sums[-1] - served) * total
        return base

    def _parts_of(self, units: Units, product: str | None) -> tuple[float, float, tuple[_FragmentPart, ...]]:
        free = sorted(chain.from_iterable(units))
        below = list(accumulate(free, initial=0))  # free capacity of the GPUs before each GPU
        total = below[-1] / WHOLE_GPU
        base, parts = 0.0, []
        for kind in self._kinds:
            if _excludes_product(kind, product):
                lost = total
            elif kind.share or kind.gpus == 1:
                lost = below[bisect_left(free, kind.share or WHOLE_GPU)] / WHOLE_GPU
            else:
                lost = _lost_milli(kind.gpus, units) / WHOLE_GPU
            if lost < total:
                parts.append(_FragmentPart(lost, kind.cpus, kind.sums))
            else:
                base += kind.sums[-1] * total
        return base, total, tuple(parts)


@lru_cache(maxsize=16)
def _mix_tables(mix: DemandMix) -> _MixTables:
    return _MixTables(mix)


def free_units(free: Iterable[int], islands: Iterable[int]) -> Units:
    """Return the free thousandths of the GPUs of each island. ``free``: by place; ``islands``: as sets of places."""
    left = tuple(free)
    return _grouped(left, tuple(islands))


@lru_cache(maxsize=1 << 16)
def _grouped(left: tuple[int, ...], islands: tuple[int, ...]) -> Units:
    return tuple(
        sorted(tuple(sorted(left[place] for place in range(len(left)) if island >> place & 1)) for island in islands)
    )


def _kind(gpus: int, share: int, products: frozenset[str] | None, cpus: Mapping[int, float]) -> _DemandKind:
    ascending = tuple(sorted(cpus))
    sums = [0.0]
    for cpu in ascending:
        sums.append(sums[-1] + cpus[cpu])
    return _DemandKind(gpus, share, products, ascending, tuple(sums))


def _excludes_product(kind: _DemandKind, product: str | None) -> bool:
    if kind.products is None:
        return False
    return product is None or not any(is_model(product, model) for model in kind.products)


def _lost_milli(gpus: int, units: Units) -> float:
    """Return the thousandths that are fragments for a request of this many GPUs, if there is enough CPU."""
    if any(len(unit) >= gpus for unit in units):
        return sum(_too_small(unit, gpus) for unit in units)
    node = tuple(chain.from_iterable(units))
    lost = _too_small(node, gpus)
    return lost if all(len(unit) == 1 for unit in units) else (sum(node) + lost) / 2


def _too_small(unit: tuple[int, ...], gpus: int) -> int:
    """Return the free thousandths of these GPUs that cannot serve this many whole GPUs."""
    return sum(unit) if unit.count(WHOLE_GPU) < gpus else sum(left for left in unit if left < WHOLE_GPU)


# The default for clusters without measurements: public traces of training and mixed clusters agree that most pods take
# one GPU, that sizes are powers of two, and that few large pods take most GPUs.
DEFAULT_MIX = DemandMix(((Demand(1), 50.0), (Demand(2), 20.0), (Demand(4), 15.0), (Demand(8), 15.0)))
