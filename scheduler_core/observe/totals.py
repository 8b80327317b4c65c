"""Placements in sums, by scheduler, size and namespace. Pure."""

from __future__ import annotations

from collections import defaultdict
from heapq import nlargest
from typing import NamedTuple

from scheduler_core.observe.comparison import Placement, Verdict

NO_SCHEDULER = "(none)"
_COSTLIEST = 10


class Tally(NamedTuple):
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

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally._make(one + another for one, another in zip(self, other, strict=True))


class Sums:
    """What has come together. Bounded by how many namespaces, sizes and schedulers there are."""

    def __init__(self) -> None:
        self.all = Tally()
        self.by: dict[str, defaultdict[str, Tally]] = {
            each: defaultdict(Tally) for each in ("scheduler", "size", "namespace")
        }
        self.costliest: list[Placement] = []

    def add(self, placement: Placement) -> None:
        """One more."""
        one = tally(placement)
        self.all = self.all.plus(one)
        for dimension, value in keys(placement).items():
            self.by[dimension][value] = self.by[dimension][value].plus(one)
        if placement.verdict is Verdict.WORSE:
            self.costliest = nlargest(_COSTLIEST, [*self.costliest, placement], key=_cost)


def keys(placement: Placement) -> dict[str, str]:
    """By what a placement is summed."""
    size = str(placement.size) if placement.size else "shared"
    return {"scheduler": placement.scheduler or NO_SCHEDULER, "size": size, "namespace": placement.namespace}


def tally(placement: Placement) -> Tally:
    """One placement."""
    verdict, lost = placement.verdict, placement.lost_gbps
    compared, measure = placement.compared, placement.measure
    broke, single = verdict is Verdict.BROKE, placement.size == 1
    return Tally(
        placed=1,
        compared=compared,
        one_island=compared and placement.one_island is True,
        could_be_one_island=compared and placement.could_be_one_island,
        ours_in_one_island=compared and measure is not None and measure.lay.one_island is True,
        worse=verdict is Verdict.WORSE,
        lost_gbps=lost or 0.0,
        uncounted=verdict is Verdict.WORSE and lost is None,
        waits=verdict is Verdict.WAITS,
        unknown=verdict is Verdict.UNKNOWN,
        single=single,
        broke=broke,
        needlessly=broke and placement.options.sparing is not None,
        shared=verdict is Verdict.SHARED,
        unchecked=compared and bool(placement.unchecked),
    )


def _cost(placement: Placement) -> tuple[float, float]:
    return placement.lost_gbps or 0.0, placement.at
