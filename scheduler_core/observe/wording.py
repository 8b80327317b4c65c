"""An observed placement in a sentence, and in a line of the log. Pure."""

from __future__ import annotations

from gputopo.paths import PathKind
from gputopo.render.wording import UNKNOWN, counted_noun, escape_invisible, format_number
from gputopo.timestamps import format_timestamp
from scheduler_core.observe.comparison import Comparison, ObservedPlacement
from scheduler_core.observe.gpu_layout import GpuLayout, is_unknown

_COSTS = {Comparison.UNKNOWN: UNKNOWN, Comparison.WAITS: "would wait", Comparison.BROKE: "-1 island"}


def log_line(placement: ObservedPlacement) -> str:
    """``09:14:02Z   -276 GB/s  team-a/train-3 got 4 GPUs of gpu-7 ...``."""
    at = format_timestamp(placement.at).partition("T")[2]
    return f"{at} {cost_words(placement):>12}  {placement_sentence(placement)}"


def cost_words(placement: ObservedPlacement) -> str:
    """Return the cost of the placement, at most 12 characters."""
    if placement.result is Comparison.WORSE:
        return "worse" if placement.lost_gbps is None else f"-{format_number(placement.lost_gbps)} GB/s"
    return _COSTS.get(placement.result, "")


def placement_sentence(placement: ObservedPlacement) -> str:
    """Return which GPUs the pod got, and which alternative there was."""
    return escape_invisible(f"{placement.namespace}/{placement.name} {_gpus(placement)}{_alternative(placement)}")


def _gpus(placement: ObservedPlacement) -> str:
    size, layout, node = placement.size, placement.layout, placement.node
    got = "holds" if placement.ran_before else "got"
    if not size:
        return f"{got} shares of GPUs or MIG devices of {node}: not compared"
    gpus = f"{got} {counted_noun(size, 'GPU')} of {node}"
    if size == 1:
        return gpus
    if layout is None:
        return f"{gpus}; their interconnect is not known"
    if layout.known:
        return f"{gpus} {layout_words(layout.worst)}"
    return f"{gpus}, not reported which: at worst {layout_words(layout.worst)}, at best {layout_words(layout.best)}"


def _alternative(placement: ObservedPlacement) -> str:
    result, reference, layout = placement.result, placement.reference, placement.layout
    if result is Comparison.WORSE and reference is not None:
        words = layout_words(reference.layout)
        if placement.ran_before:
            return f"; when empty, this node has {placement.size} {words}"
        return f"; {reference.node} had {placement.size} free {words}"
    if result is Comparison.WAITS:
        return "; gputopo would have let it wait: no node fit the request"
    if result is Comparison.BROKE:
        sparing = placement.alternatives.sparing
        other = "no other node certainly had" if sparing is None else f"{sparing} had"
        return f" and broke a free island of {placement.broke}; {other} a free GPU in a partly used island"
    if result is Comparison.UNKNOWN and placement.size == 1:
        return "; whether it broke an island is not known"
    if result is Comparison.UNKNOWN and layout is not None and layout.known and not is_unknown(layout.worst.ring):
        return "; the alternatives are not known"
    return ""


def layout_words(layout: GpuLayout) -> str:
    """``in one island (300 GB/s)``, ``over PCIe (SYS, at most 24 GB/s)``."""
    ring = layout.ring
    if ring is None or is_unknown(ring):
        return "over an unknown interconnect"
    if ring.kind is not PathKind.PCIE:
        return f"in one island ({format_number(ring.gbps or 0.0)} GB/s)"
    # The path between two cards is slower than their links; how much is not known.
    facts = [] if ring.distance is None else [ring.distance.value]
    facts += [] if ring.gbps is None else [f"at most {format_number(ring.gbps)} GB/s"]
    words = f" ({', '.join(facts)})" if facts else ""
    return f"{'in one island but ' if layout.one_island else ''}over PCIe{words}"
