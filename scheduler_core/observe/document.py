"""Placements and reports as documents: what ``-o jsonl`` prints and ``/report`` serves. Pure.

Keys are camelCase as in Kubernetes; what is unknown is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gputopo.render.schema import API_VERSION
from gputopo.rings import Ring
from scheduler_core.observe.alternatives import Alternative
from scheduler_core.observe.cluster_now import ClusterNow
from scheduler_core.observe.comparison import ComparisonResult, ObservedPlacement
from scheduler_core.observe.gpu_layout import GpuLayout
from scheduler_core.observe.observer import ObserverReport
from scheduler_core.observe.summary import NOT_LOOKED_AT
from scheduler_core.observe.totals import PlacementTotals, TotalsByDimension
from scheduler_core.observe.wording import placement_sentence

Document = dict[str, Any]


def placement_document(placement: ObservedPlacement) -> Document:
    """One placement."""
    got, options = placement.layout, placement.alternatives
    return {
        "apiVersion": API_VERSION,
        "kind": "ObservedPlacement",
        "at": _time(placement.at),
        "ranBefore": placement.cluster_then,
        "namespace": placement.namespace,
        "pod": placement.name,
        "scheduler": placement.scheduler,
        "node": placement.node,
        "gpus": placement.size,
        "indices": None if placement.gpus is None else list(placement.gpus),
        "verdict": placement.result.value,
        "lostGbps": placement.lost_gbps,
        "got": None if got is None else {"worst": _layout(got.worst), "best": _layout(got.best)},
        "byUs": _offer(options.ours),
        "best": _offer(options.best),
        "brokeIslandOf": placement.broke or None if placement.result is ComparisonResult.BROKE else None,
        "sparingNode": options.sparing,
        "unchecked": list(placement.unchecked),
        "text": placement_sentence(placement),
    }


def report_document(report: ObserverReport) -> Document:
    """All that was seen."""
    return {
        "apiVersion": API_VERSION,
        "kind": "PlacementReport",
        "since": _time(report.since),
        "until": _time(report.until),
        "now": _cluster_now_document(report.now),
        "ranBefore": _sums(report.ran),
        "placed": _sums(report.placed),
        "pending": report.pending,
        "notLookedAt": NOT_LOOKED_AT,
    }


def _cluster_now_document(now: ClusterNow) -> Document:
    return {
        "nodes": now.nodes,
        "unknownNodes": now.unknown,
        "gpus": now.gpus,
        "free": now.free,
        "freeInIslands": now.free_in_islands,
        "freeInWholeIslands": now.free_in_whole,
        "islandsByFreeGpus": {str(size): count for size, count in now.islands},
    }


def _sums(sums: TotalsByDimension) -> Document:
    return {
        "total": _totals(sums.all),
        **{f"by{dimension.capitalize()}": _totals_by_name(tallies) for dimension, tallies in sums.by.items()},
        "costliest": [placement_document(each) for each in sums.costliest],
    }


def _totals_by_name(tallies: Mapping[str, PlacementTotals]) -> Document:
    return {value: _totals(tally) for value, tally in sorted(tallies.items())}


def _totals(tally: PlacementTotals) -> Document:
    return {
        "placed": tally.placed,
        "compared": tally.compared,
        "oneIsland": tally.one_island,
        "couldBeOneIsland": tally.could_be_one_island,
        "byUsInOneIsland": tally.ours_in_one_island,
        "worse": tally.worse,
        "lostGbps": round(tally.lost_gbps, 3),
        "worseByUnknown": tally.uncounted,
        "wouldWait": tally.waits,
        "unknown": tally.unknown,
        "single": tally.single,
        "brokeIslands": tally.broke,
        "brokeNeedlessly": tally.needlessly,
        "shared": tally.shared,
        "withUncheckedRules": tally.unchecked,
    }


def _offer(offer: Alternative | None) -> Document | None:
    return None if offer is None else {"node": offer.node, **_layout(offer.layout)}


def _layout(lay: GpuLayout) -> Document:
    return {"ring": _ring(lay.ring), "oneIsland": lay.one_island, "numaNodes": lay.numa_nodes}


def _ring(ring: Ring | None) -> Document | None:
    if ring is None:
        return None
    distance = None if ring.distance is None else ring.distance.value
    return {"kind": ring.kind.value, "gbps": ring.gbps, "lanes": ring.lanes, "distance": distance}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
