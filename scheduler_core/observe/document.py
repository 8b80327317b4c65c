"""Observed placements and reports as documents: what ``-o jsonl`` prints and ``/report`` serves. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from gputopo.render.report import document
from gputopo.timestamps import format_timestamp
from scheduler_core.observe.alternatives import Alternative
from scheduler_core.observe.comparison import Comparison, ObservedPlacement
from scheduler_core.observe.observer import ObserverReport
from scheduler_core.observe.summary import NOT_CHECKED
from scheduler_core.observe.totals import PlacementTotals, TotalsByDimension
from scheduler_core.observe.wording import placement_sentence


def placement_document(placement: ObservedPlacement) -> dict[str, Any]:
    """Return the placement as a document of kind ``ObservedPlacement``."""
    alternatives = placement.alternatives
    return document(
        "ObservedPlacement",
        {
            "at": format_timestamp(placement.at),
            "ranBefore": placement.ran_before,
            "namespace": placement.namespace,
            "pod": placement.name,
            "scheduler": placement.scheduler,
            "node": placement.node,
            "gpus": placement.size,
            "indices": placement.gpus,
            "verdict": placement.result,
            "lostGbps": placement.lost_gbps,
            "got": placement.layout,
            "byUs": _alternative(alternatives.by_gputopo),
            "best": _alternative(alternatives.best),
            "brokeIslandOf": placement.broke if placement.result is Comparison.BROKE else None,
            "sparingNode": alternatives.sparing,
            "unchecked": placement.unchecked,
            "text": placement_sentence(placement),
        },
    )


def report_document(report: ObserverReport) -> dict[str, Any]:
    """Return the report as a document of kind ``PlacementReport``."""
    return document(
        "PlacementReport",
        {
            "since": format_timestamp(report.since),
            "until": format_timestamp(report.until),
            "now": report.now,
            "ranBefore": _totals_by_dimension(report.ran),
            "placed": _totals_by_dimension(report.placed),
            "pending": report.pending,
            "notLookedAt": NOT_CHECKED,
        },
    )


def _totals_by_dimension(totals: TotalsByDimension) -> dict[str, Any]:
    by = {
        f"by{dimension.capitalize()}": {value: _rounded(each) for value, each in sorted(found.items())}
        for dimension, found in totals.by.items()
    }
    return {"total": _rounded(totals.total), **by, "costliest": [placement_document(each) for each in totals.costliest]}


def _rounded(totals: PlacementTotals) -> PlacementTotals:
    return replace(totals, lost_gbps=round(totals.lost_gbps, 3))


def _alternative(found: Alternative | None) -> dict[str, Any] | None:
    return None if found is None else {"node": found.node, **to_builtins(found.layout)}
