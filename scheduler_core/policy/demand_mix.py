"""What pods usually ask for: by that, what is free counts as usable or as fragments. Pure.

Fragmentation is measured as in "Beware of Fragmentation" (USENIX ATC 2023), in GPUs: for each kind of request, all
that is free of a node which cannot serve it, and where it can be served, the free parts of GPUs that are too small for
it; averaged over the kinds by how often they come. Extended to islands: several GPUs are served by one island, so what
is free in an island with too few free GPUs is a fragment for them. Where even an idle island of the machine is too
small the node as a whole serves them, slower: half of it is a fragment in any case. Without NVLink it serves them well.
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
Units = tuple[tuple[int, ...], ...]  # islands: thousandths that are free of each of their GPUs; both ascending


class Demand(NamedTuple):
    """One kind of request."""

    gpus: int = 0  # whole GPUs
    share: int = 0  # thousandths of one GPU, where it shares one
    cpu_milli: int = 0  # CPU of the whole pod; 0 where it does not matter
    products: frozenset[str] | None = None  # GPUs that will do, as ``models.is_model`` knows them; None: all


class FreeCapacity(NamedTuple):
    """What is free on a node."""

    units: Units
    product: str | None = None
    cpu_milli: int | None = None  # None: unknown, or without limit


class _Kind(NamedTuple):
    """Wants that differ in CPU only."""

    gpus: int
    share: int
    products: frozenset[str] | None
    cpus: tuple[int, ...]  # ascending
    sums: tuple[float, ...]  # how often one comes with up to so much CPU; 0 first


class _Part(NamedTuple):
    """How a kind finds some free GPUs."""

    lost: float  # fragments where its CPU is there
    cpus: tuple[int, ...]
    sums: tuple[float, ...]


class DemandMix(msgspec.Struct, frozen=True, cache_hash=True):
    """Kinds of requests and how often they come, in any unit. Those that take no GPU fragment all nodes alike."""

    wants: tuple[tuple[Demand, float], ...]

    def fragmented_gpus(self, room: FreeCapacity) -> float:
        """Free GPUs that are fragments, on average over the kinds of requests: GPUs."""
        return _mix_tables(self).lost(room)


class _MixTables:
    """What has been worked out by one mix."""

    def __init__(self, mix: DemandMix) -> None:
        taking = [(want, weight) for want, weight in mix.wants if (want.gpus or want.share) and weight > 0]
        total = sum(weight for _, weight in taking)
        kinds: dict[tuple[int, int, frozenset[str] | None], dict[int, float]] = {}
        for want, weight in taking:
            cpus = kinds.setdefault((want.gpus, want.share, want.products), {})
            cpus[want.cpu_milli] = cpus.get(want.cpu_milli, 0.0) + weight / total
        self._kinds = tuple(_kind(*key, cpus) for key, cpus in kinds.items())
        self._parts = lru_cache(maxsize=1 << 14)(self._parts_of)
        self.lost = lru_cache(maxsize=1 << 16)(self._lost_of)

    def _lost_of(self, room: FreeCapacity) -> float:
        base, total, parts = self._parts(room.units, room.product)
        if room.cpu_milli is None:
            return base + sum(part.lost * part.sums[-1] for part in parts)
        for lost, cpus, sums in parts:
            served = sums[bisect_right(cpus, room.cpu_milli)]
            base += served * lost + (sums[-1] - served) * total
        return base

    def _parts_of(self, units: Units, product: str | None) -> tuple[float, float, tuple[_Part, ...]]:
        free = sorted(chain.from_iterable(units))
        below = list(accumulate(free, initial=0))  # what is free of the GPUs before each
        total = below[-1] / WHOLE_GPU
        base, parts = 0.0, []
        for kind in self._kinds:
            if _excludes_product(kind, product):
                lost = total
            elif kind.share or kind.gpus == 1:
                lost = below[bisect_left(free, kind.share or WHOLE_GPU)] / WHOLE_GPU
            else:
                lost = _lost(kind.gpus, units) / WHOLE_GPU
            if lost < total:
                parts.append(_Part(lost, kind.cpus, kind.sums))
            else:
                base += kind.sums[-1] * total
        return base, total, tuple(parts)


@lru_cache(maxsize=16)
def _mix_tables(mix: DemandMix) -> _MixTables:
    return _MixTables(mix)


def free_units(free: Iterable[int], islands: Iterable[int]) -> Units:
    """Free thousandths of each GPU by its place, and islands as sets of places -> what is free in which island."""
    left = tuple(free)
    return _grouped(left, tuple(islands))


@lru_cache(maxsize=1 << 16)
def _grouped(left: tuple[int, ...], islands: tuple[int, ...]) -> Units:
    return tuple(
        sorted(tuple(sorted(left[place] for place in range(len(left)) if island >> place & 1)) for island in islands)
    )


def _kind(gpus: int, share: int, products: frozenset[str] | None, cpus: Mapping[int, float]) -> _Kind:
    ascending = tuple(sorted(cpus))
    sums = [0.0]
    for cpu in ascending:
        sums.append(sums[-1] + cpus[cpu])
    return _Kind(gpus, share, products, ascending, tuple(sums))


def _excludes_product(kind: _Kind, product: str | None) -> bool:
    if kind.products is None:
        return False
    return product is None or not any(is_model(product, wanted) for wanted in kind.products)


def _lost(gpus: int, units: Units) -> float:
    """Thousandths that are fragments for so many GPUs, were there CPU enough."""
    if any(len(unit) >= gpus for unit in units):
        return sum(_too_small(unit, gpus) for unit in units)
    node = tuple(chain.from_iterable(units))
    lost = _too_small(node, gpus)
    return lost if all(len(unit) == 1 for unit in units) else (sum(node) + lost) / 2


def _too_small(unit: tuple[int, ...], gpus: int) -> int:
    """What is free of these GPUs and cannot serve so many whole ones."""
    return sum(unit) if unit.count(WHOLE_GPU) < gpus else sum(left for left in unit if left < WHOLE_GPU)


# What clusters are asked for where nobody has counted: public traces of training and of mixed clusters agree that most
# pods take one GPU, that sizes are powers of two, and that most GPUs go to few large pods.
DEFAULT_MIX = DemandMix(((Demand(1), 50.0), (Demand(2), 20.0), (Demand(4), 15.0), (Demand(8), 15.0)))
