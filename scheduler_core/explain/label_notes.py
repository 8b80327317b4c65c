"""Notes on nodes without the agent: required shapes that their labels decide, and those that they leave open. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from gputopo.labels import keys
from gputopo.labels.keys import LabelKey
from gputopo.labels.reasons import Reason
from gputopo.render.report import listed
from gputopo.summary import TopologySummary
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.evaluate import Decision
from scheduler_core.request.pod_request import Constraints, PodProfile, Strength

T = TypeVar("T", bound=Hashable)
_MOST_NOTES = 4  # groups of nodes with equal labels


def label_notes(decision: Decision, profile: PodProfile, table: ClusterSnapshot) -> Iterator[str]:
    """Yield which labels are ignored, which decided a required shape, and which are missing on rejected nodes."""
    considered = sorted((*decision.scores, *decision.rejected))
    faulty = ((name, table.records[name].machine.label_faults) for name in considered if name in table.records)
    for faults, names in _grouped((name, faults) for name, faults in faulty if faults):
        yield f"{listed(names)}: {'; '.join(faults)}"
    if not profile.requires_shape:
        return
    named = table.states
    fits = ((name, named[name].shape) for name in sorted(decision.scores))
    sufficient = (
        (name, shape.summary.sources) for name, shape in fits if shape is not None and shape.summary is not None
    )
    for sources, names in _grouped(sufficient):
        yield f"{listed(names)}: no agent describes these GPUs; the labels suffice: {', '.join(sources)}"
    refused = (name for name, reason in sorted(decision.rejected.items()) if reason is Reason.UNKNOWN_TOPOLOGY)
    labelled = ((name, _label_summary(name, table)) for name in refused)
    open_shapes = _grouped((name, summary) for name, summary in labelled if summary is not None)
    for summary, names in open_shapes:
        sources = summary.sources
        stated = f"the labels ({', '.join(sources)}) leave" if sources else "no label decides"
        open_question = "this shape open" if sources else "this shape"
        missing = [key.key for key, value in _deciding(profile.constraints, summary) if value is None]
        advice = f"; missing: {', '.join(missing)}" if missing else "; only the whole graph decides it"
        yield f"{listed(names)}: no agent describes these GPUs, and {stated} {open_question}{advice} (gputopo labels)"


def _label_summary(name: str, table: ClusterSnapshot) -> TopologySummary | None:
    """Return what the labels of a node state; None where an annotation describes it, or tried to."""
    record = table.records.get(name)
    if record is None or record.machine.described or record.machine.annotation_error is not None:
        return None
    shape = table.states[name].shape
    return TopologySummary() if shape is None or shape.summary is None else shape.summary


def _deciding(constraints: Constraints, summary: TopologySummary) -> Iterator[tuple[LabelKey, object]]:
    """Yield the labels that may decide the required constraints, and what these labels or their aliases state."""
    if constraints.interconnect is not None or constraints.min_gbps is not None:
        yield keys.INTERCONNECT, summary.interconnect
    islands = constraints.island is Strength.REQUIRED or constraints.parallel is not None
    if islands or constraints.min_gbps is not None or constraints.interconnect is not None:
        yield keys.ISLANDS, summary.island_sizes
    if constraints.min_gbps is not None:
        yield keys.ISLAND_BANDWIDTH, summary.island_gbps
    if constraints.numa is Strength.REQUIRED:
        yield keys.NUMA_LAYOUT, summary.numa_gpus


def _grouped(items: Iterable[tuple[str, T]]) -> list[tuple[T, list[str]]]:
    """Return the nodes of each value, most nodes first; a bounded number of values."""
    groups: defaultdict[T, list[str]] = defaultdict(list)
    for name, value in items:
        groups[value].append(name)
    return sorted(groups.items(), key=lambda each: (-len(each[1]), each[1]))[:_MOST_NOTES]
