"""Totals of observed placements, by scheduler, size and namespace. Pure."""

from __future__ import annotations

from collections import defaultdict
from heapq import nlargest

import msgspec

from scheduler_core.observe.comparison import Comparison, ObservedPlacement

NO_SCHEDULER = "(none)"
OTHER = "(other)"  # values beyond a limit
_COSTLIEST = 10
_MOST_VALUES = 1_000
_LARGEST = 16  # GPUs of one machine, with few exceptions


class PlacementTotals(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Totals over placements."""

    placed: int = 0
    compared: int = 0  # with several whole GPUs and known rings, here and on gputopo's choice
    one_island: int = 0  # of the compared
    could_be_one_island: int = 0  # some node may have offered one island
    by_us_in_one_island: int = 0  # gputopo's choice certainly offers one island
    worse: int = 0
    lost_gbps: float = 0.0  # where the difference is known
    worse_by_unknown: int = 0  # worse by an unknown difference
    would_wait: int = 0
    unknown: int = 0
    single: int = 0
    broke_islands: int = 0  # single GPUs that broke an island that was wholly free
    broke_needlessly: int = 0  # although a node had a GPU that breaks none
    shared: int = 0
    with_unchecked_rules: int = 0  # of the compared

    def add(self, other: PlacementTotals) -> PlacementTotals:
        """Return the sum of both."""
        return PlacementTotals(
            **{field: getattr(self, field) + getattr(other, field) for field in self.__struct_fields__}
        )


class TotalsByDimension:
    """Totals of all placements and by dimension; at most ``_MOST_VALUES`` of each: tenants choose most of them."""

    def __init__(self) -> None:
        self.total = PlacementTotals()
        self.by: dict[str, defaultdict[str, PlacementTotals]] = {
            each: defaultdict(PlacementTotals) for each in ("scheduler", "size", "namespace")
        }
        self.costliest: list[ObservedPlacement] = []

    def add_placement(self, placement: ObservedPlacement) -> None:
        """Count a placement."""
        added = totals_of(placement)
        self.total = self.total.add(added)
        for dimension, value in dimensions_of(placement).items():
            by = self.by[dimension]
            key = value if value in by or len(by) < _MOST_VALUES else OTHER
            by[key] = by[key].add(added)
        if placement.result is Comparison.WORSE:
            self.costliest = nlargest(
                _COSTLIEST, [*self.costliest, placement], key=lambda each: (each.lost_gbps or 0.0, each.at)
            )


def dimensions_of(placement: ObservedPlacement) -> dict[str, str]:
    """Return the value of a placement in each dimension."""
    size = "shared" if not placement.size else str(placement.size) if placement.size <= _LARGEST else f">{_LARGEST}"
    return {"scheduler": placement.scheduler or NO_SCHEDULER, "size": size, "namespace": placement.namespace}


def totals_of(placement: ObservedPlacement) -> PlacementTotals:
    """Return the totals of a single placement."""
    result, lost = placement.result, placement.lost_gbps
    compared, reference = placement.compared, placement.reference
    broke = result is Comparison.BROKE
    return PlacementTotals(
        placed=1,
        compared=compared,
        one_island=compared and placement.one_island is True,
        could_be_one_island=compared and placement.could_be_one_island,
        by_us_in_one_island=compared and reference is not None and reference.layout.one_island is True,
        worse=result is Comparison.WORSE,
        lost_gbps=lost or 0.0,
        worse_by_unknown=result is Comparison.WORSE and lost is None,
        would_wait=result is Comparison.WAITS,
        unknown=result is Comparison.UNKNOWN,
        single=placement.size == 1,
        broke_islands=broke,
        broke_needlessly=broke and placement.alternatives.sparing is not None,
        shared=result is Comparison.SHARED,
        with_unchecked_rules=compared and bool(placement.unchecked),
    )
