"""A placement in one sentence that its owner understands, and in one line of a log. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from gputopo.paths import PathKind
from gputopo.render.wording import UNKNOWN, number, visible
from scheduler_core.observe.comparison import Placement, Verdict
from scheduler_core.observe.gpu_layout import Lay, vague

_COST = 12  # columns


def line(placement: Placement) -> str:
    """``09:14:02Z   -276 GB/s  team-a/train-3 got 4 GPUs of gpu-7 ...``."""
    at = datetime.fromtimestamp(placement.at, UTC).strftime("%H:%M:%SZ")
    return f"{at} {cost(placement):>{_COST}}  {sentence(placement)}"


def cost(placement: Placement) -> str:
    """What it cost, in a word."""
    verdict, lost = placement.verdict, placement.lost_gbps
    if verdict is Verdict.WORSE:
        return "worse" if lost is None else f"-{number(lost)} GB/s"
    return _COSTS.get(verdict, "")


_COSTS = {Verdict.UNKNOWN: UNKNOWN, Verdict.WAITS: "would wait", Verdict.BROKE: "-1 island"}


def sentence(placement: Placement) -> str:
    """What it got, and what else there was."""
    return visible(f"{placement.namespace}/{placement.name} {_got(placement)}{_beside(placement)}")


def _got(placement: Placement) -> str:
    size, got = placement.size, placement.got
    gave = "holds" if placement.found else "got"
    if not size:
        return f"{gave} shares of GPUs or MIG devices of {placement.node}: not judged"
    here = f"{gave} {size} GPU{'s' if size > 1 else ''} of {placement.node}"
    if size == 1:
        return here
    if got is None:
        return f"{here}; how these are joined is not known"
    if got.known:
        return f"{here} {joined(got.worst)}"
    best = "at best nobody knows how" if vague(got.best.ring) else f"at best {joined(got.best)}"
    return f"{here}, nobody says which: at worst {joined(got.worst)}, {best}"


def _beside(placement: Placement) -> str:
    verdict, measure, options = placement.verdict, placement.measure, placement.options
    if verdict is Verdict.WORSE and measure is not None:
        had = f"{placement.size} {'' if placement.found else 'free '}{joined(measure.lay)}"
        if placement.found:
            return f"; such a machine has {had} when nothing else runs there"
        return f"; {measure.node} had {had}"
    if verdict is Verdict.WAITS:
        return "; we would have let it wait: no node suited what it asks"
    if verdict is Verdict.BROKE:
        other = f"{options.sparing} had one in an island that was broken already"
        none = "no node surely had one to give in an island that was broken already"
        return f" and broke an island of {placement.broke} that was free; {none if options.sparing is None else other}"
    if verdict is Verdict.UNKNOWN and placement.size == 1:
        return "; whether it broke an island is not known"
    got = placement.got
    if verdict is Verdict.UNKNOWN and got is not None and got.known and not vague(got.worst.ring):
        return "; what else there was is not known"
    return ""


def joined(lay: Lay) -> str:
    """``in one island (300 GB/s)``, ``over PCIe (SYS, at most 24 GB/s)``."""
    ring = lay.ring
    if ring is None or vague(ring):
        return "joined nobody knows how"
    if ring.kind is PathKind.PCIE:
        # What lies between two cards is slower than their links: by how much nobody says.
        distance = [] if ring.distance is None else [ring.distance.value]
        rate = [] if ring.gbps is None else [f"at most {number(ring.gbps)} GB/s"]
        told = f" ({', '.join([*distance, *rate])})" if distance or rate else ""
        return f"{'in one island but ' if lay.one_island else ''}over PCIe{told}"
    return f"in one island ({number(ring.gbps or 0.0)} GB/s)"
