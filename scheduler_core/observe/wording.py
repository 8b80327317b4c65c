"""A placement in one sentence that its owner understands, and in one line of a log. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from gputopo.paths import PathKind
from gputopo.render.wording import UNKNOWN, escape_invisible, format_number
from scheduler_core.observe.comparison import ComparisonResult, ObservedPlacement
from scheduler_core.observe.gpu_layout import GpuLayout, is_unknown

_COST = 12  # columns


def log_line(placement: ObservedPlacement) -> str:
    """``09:14:02Z   -276 GB/s  team-a/train-3 got 4 GPUs of gpu-7 ...``."""
    at = datetime.fromtimestamp(placement.at, UTC).strftime("%H:%M:%SZ")
    return f"{at} {cost_words(placement):>{_COST}}  {placement_sentence(placement)}"


def cost_words(placement: ObservedPlacement) -> str:
    """What it cost, in a word."""
    verdict, lost = placement.result, placement.lost_gbps
    if verdict is ComparisonResult.WORSE:
        return "worse" if lost is None else f"-{format_number(lost)} GB/s"
    return _COSTS.get(verdict, "")


_COSTS = {ComparisonResult.UNKNOWN: UNKNOWN, ComparisonResult.WAITS: "would wait", ComparisonResult.BROKE: "-1 island"}


def placement_sentence(placement: ObservedPlacement) -> str:
    """What it got, and what else there was."""
    return escape_invisible(f"{placement.namespace}/{placement.name} {_got(placement)}{_beside(placement)}")


def _got(placement: ObservedPlacement) -> str:
    size, got = placement.size, placement.layout
    gave = "holds" if placement.cluster_then else "got"
    if not size:
        return f"{gave} shares of GPUs or MIG devices of {placement.node}: not judged"
    here = f"{gave} {size} GPU{'s' if size > 1 else ''} of {placement.node}"
    if size == 1:
        return here
    if got is None:
        return f"{here}; how these are joined is not known"
    if got.known:
        return f"{here} {layout_words(got.worst)}"
    best = "at best nobody knows how" if is_unknown(got.best.ring) else f"at best {layout_words(got.best)}"
    return f"{here}, nobody says which: at worst {layout_words(got.worst)}, {best}"


def _beside(placement: ObservedPlacement) -> str:
    verdict, measure, options = placement.result, placement.best_alternative, placement.alternatives
    if verdict is ComparisonResult.WORSE and measure is not None:
        had = f"{placement.size} {'' if placement.cluster_then else 'free '}{layout_words(measure.layout)}"
        if placement.cluster_then:
            return f"; such a machine has {had} when nothing else runs there"
        return f"; {measure.node} had {had}"
    if verdict is ComparisonResult.WAITS:
        return "; we would have let it wait: no node suited what it asks"
    if verdict is ComparisonResult.BROKE:
        other = f"{options.sparing} had one in an island that was broken already"
        none = "no node surely had one to give in an island that was broken already"
        return f" and broke an island of {placement.broke} that was free; {none if options.sparing is None else other}"
    if verdict is ComparisonResult.UNKNOWN and placement.size == 1:
        return "; whether it broke an island is not known"
    got = placement.layout
    if verdict is ComparisonResult.UNKNOWN and got is not None and got.known and not is_unknown(got.worst.ring):
        return "; what else there was is not known"
    return ""


def layout_words(lay: GpuLayout) -> str:
    """``in one island (300 GB/s)``, ``over PCIe (SYS, at most 24 GB/s)``."""
    ring = lay.ring
    if ring is None or is_unknown(ring):
        return "joined nobody knows how"
    if ring.kind is PathKind.PCIE:
        # What lies between two cards is slower than their links: by how much nobody says.
        distance = [] if ring.distance is None else [ring.distance.value]
        rate = [] if ring.gbps is None else [f"at most {format_number(ring.gbps)} GB/s"]
        told = f" ({', '.join([*distance, *rate])})" if distance or rate else ""
        return f"{'in one island but ' if lay.one_island else ''}over PCIe{told}"
    return f"in one island ({format_number(ring.gbps or 0.0)} GB/s)"
