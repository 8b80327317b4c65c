"""Placements in sums, by scheduler, size and namespace. Pure."""

from __future__ import annotations

from collections import defaultdict
from heapq import nlargest
from typing import NamedTuple

from scheduler_core.observe.comparison import ComparisonResult, ObservedPlacement

NO_SCHEDULER = "(none)"
_COSTLIEST = 10


class PlacementTotals(NamedTuple):
    """Sums over placements."""

    placed: int = 0
    compared: int = 0  # with several whole GPUs, whose rings are known, next to a node that we would have chosen
    one_island: int = 0  # of the compared
    could_be_one_island: int = 0  # some node may have given one
    ours_in_one_island: int = 0  # ours would surely have
    worse: int = 0
    lost_gbps: float = 0.0  # the sum over those of which it can be said
    uncounted: int = 0  # that are worse by nobody knows how much
    waits: int = 0
    unknown: int = 0
    single: int = 0
    broke: int = 0  # single GPUs that broke an island that was free as a whole
    needlessly: int = 0  # although a node had a GPU that would have broken none
    shared: int = 0
    unchecked: int = 0  # of the compared, those with rules that nobody looked at

    def add(self, other: PlacementTotals) -> PlacementTotals:
        """Both together."""
        return PlacementTotals._make(one + another for one, another in zip(self, other, strict=True))


class TotalsByDimension:
    """What has come together. Bounded by how many namespaces, sizes and schedulers there are."""

    def __init__(self) -> None:
        self.all = PlacementTotals()
        self.by: dict[str, defaultdict[str, PlacementTotals]] = {
            each: defaultdict(PlacementTotals) for each in ("scheduler", "size", "namespace")
        }
        self.costliest: list[ObservedPlacement] = []

    def add_placement(self, placement: ObservedPlacement) -> None:
        """One more."""
        one = totals_of(placement)
        self.all = self.all.add(one)
        for dimension, value in dimensions_of(placement).items():
            self.by[dimension][value] = self.by[dimension][value].add(one)
        if placement.result is ComparisonResult.WORSE:
            self.costliest = nlargest(_COSTLIEST, [*self.costliest, placement], key=_cost)


def dimensions_of(placement: ObservedPlacement) -> dict[str, str]:
    """By what a placement is summed."""
    size = str(placement.size) if placement.size else "shared"
    return {"scheduler": placement.scheduler or NO_SCHEDULER, "size": size, "namespace": placement.namespace}


def totals_of(placement: ObservedPlacement) -> PlacementTotals:
    """One placement."""
    verdict, lost = placement.result, placement.lost_gbps
    compared, measure = placement.compared, placement.best_alternative
    broke, single = verdict is ComparisonResult.BROKE, placement.size == 1
    return PlacementTotals(
        placed=1,
        compared=compared,
        one_island=compared and placement.one_island is True,
        could_be_one_island=compared and placement.could_be_one_island,
        ours_in_one_island=compared and measure is not None and measure.layout.one_island is True,
        worse=verdict is ComparisonResult.WORSE,
        lost_gbps=lost or 0.0,
        uncounted=verdict is ComparisonResult.WORSE and lost is None,
        waits=verdict is ComparisonResult.WAITS,
        unknown=verdict is ComparisonResult.UNKNOWN,
        single=single,
        broke=broke,
        needlessly=broke and placement.alternatives.sparing is not None,
        shared=verdict is ComparisonResult.SHARED,
        unchecked=compared and bool(placement.unchecked),
    )


def _cost(placement: ObservedPlacement) -> tuple[float, float]:
    return placement.lost_gbps or 0.0, placement.at
