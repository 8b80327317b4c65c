"""Notes on nodes without the agent: required shapes that their labels decide, and those that they leave open. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from gputopo.labels import keys
from gputopo.labels.keys import LabelKey
from gputopo.labels.reasons import Reason
from gputopo.render.report import listed
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.evaluate import Decision
from scheduler_core.request.pod_request import Constraints, PodProfile, Strength

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
    labelled = ((name, _sources(name, table)) for name in refused)
    for sources, names in _grouped((name, sources) for name, sources in labelled if sources is not None):
        stated = f"the labels ({', '.join(sources)}) leave" if sources else "no label decides"
        open_question = "this shape open" if sources else "this shape"
        missing = [
            key.key for key in _deciding(profile.constraints) if not any(s.startswith(f"{key.key}=") for s in sources)
        ]
        advice = f"; missing: {', '.join(missing)}" if missing else "; only the whole graph decides it"
        yield f"{listed(names)}: no agent describes these GPUs, and {stated} {open_question}{advice} (gputopo labels)"


def _sources(name: str, table: ClusterSnapshot) -> tuple[str, ...] | None:
    """Return the labels that describe a node; None where an annotation describes it, or tried to."""
    record = table.records.get(name)
    if record is None or record.machine.described or record.machine.annotation_error is not None:
        return None
    shape = table.states[name].shape
    return () if shape is None or shape.summary is None else shape.summary.sources


def _deciding(constraints: Constraints) -> Iterator[LabelKey]:
    """Yield the labels that may decide the required constraints."""
    if constraints.interconnect is not None or constraints.min_gbps is not None:
        yield keys.INTERCONNECT
    islands = constraints.island is Strength.REQUIRED or constraints.parallel is not None
    if islands or constraints.min_gbps is not None or constraints.interconnect is not None:
        yield keys.ISLANDS
    if constraints.min_gbps is not None:
        yield keys.ISLAND_BANDWIDTH
    if constraints.numa is Strength.REQUIRED:
        yield keys.NUMA_LAYOUT


def _grouped(items: Iterable[tuple[str, tuple[str, ...]]]) -> list[tuple[tuple[str, ...], list[str]]]:
    groups: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, sources in items:
        groups[sources].append(name)
    return sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))[:_MOST_NOTES]
