"""The figures of all seeds of a policy in a row. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from gputopo.render.report import NONE, UNFOLDED, render, text_table
from scheduler_core.simulation.measures import CoursePoint, Figures


class Column(NamedTuple):
    """A measure. The mean of a count over several runs is no integer, and has ``digits``."""

    field: str  # of ``Figures``
    title: str
    factor: float = 1.0
    unit: str = ""
    digits: int = 1
    is_count: bool = False


UNKNOWN = "?"
NEVER_SCHEDULED = "pods that had no GPUs when the last pod arrived, which ends the run"
COLUMNS = (
    Column("mean_allocated", "mean allocated", 100.0, "%", 2),
    Column("allocated", "allocated at end", 100.0, "%", 2),
    Column("island_share", "in one island", 100.0, "%"),
    Column("bandwidth", "% of best ring bandwidth", 100.0, "%"),
    Column("fragments", "fragments", 100.0, "%"),
    Column("island_fragments", "fragments by island", 100.0, "%"),
    Column("mean_wait_s", "mean wait", 1.0, "s"),
    Column("never", "never scheduled", is_count=True),
    Column("latency_ms", "time per decision", 1.0, "ms", 2),
)
# Titles of columns that a narrow terminal does without, in the order in which they are dropped.
DROPPABLE = (
    "time per decision",
    "fragments by island",
    "fragments",
    "mean wait",
    "% of best ring bandwidth",
    "allocated at end",
    "never scheduled",
)


class PolicySummary(NamedTuple):
    """A policy over all seeds."""

    policy: str
    seeds: int
    means: dict[str, float | None]  # by field of ``Figures``
    course: tuple[CoursePoint, ...]  # of the first seed
    bandwidths: tuple[float, ...]  # of all seeds, ascending
    unknown: frozenset[str] = frozenset()  # fields of ``means`` that are None because facts about the nodes are missing


def summaries(figures: Iterable[Figures]) -> list[PolicySummary]:
    """Return a summary for each policy, in the order given."""
    by_policy: defaultdict[str, list[Figures]] = defaultdict(list)
    for each in figures:
        by_policy[each.policy].append(each)
    return [_summary(policy, each) for policy, each in by_policy.items()]


def simulation_document(figures: Sequence[Figures], about: str) -> dict[str, Any]:
    """Return the figures of every seed, without the courses."""
    runs = [
        {key: value for key, value in each._asdict().items() if key not in ("course", "bandwidths")} for each in figures
    ]
    return {"kind": "Simulation", "about": about, "replays": runs}


def simulation_text(found: Sequence[PolicySummary], words: dict[str, str], about: str, width: int = UNFOLDED) -> str:
    """Return a table, and what each policy is, in lines of at most ``width`` columns."""
    titles = ("", *(column.title for column in COLUMNS))
    rows = [(each.policy, *(cell_text(each, column) for column in COLUMNS)) for each in found]
    notes = [(each.policy, words.get(each.policy, "")) for each in found]
    if any(each.means["never"] for each in found):
        notes.append(("never scheduled", NEVER_SCHEDULED))
    table = text_table(titles, rows, numbers=True)._replace(droppable=DROPPABLE)
    return render([[about], [table], [text_table((), notes)]], width)


def cell_text(summary: PolicySummary, column: Column) -> str:
    """Return the mean over the seeds; "?": facts about the nodes are missing, "-": no pod counts."""
    mean = summary.means[column.field]
    digits = 0 if column.is_count and summary.seeds == 1 else column.digits
    if mean is None:
        return UNKNOWN if column.field in summary.unknown else NONE
    return f"{mean * column.factor:.{digits}f} {column.unit}".strip()


def _summary(policy: str, figures: Sequence[Figures]) -> PolicySummary:
    means: dict[str, float | None] = {}
    for column in COLUMNS:
        values = [value for each in figures if (value := getattr(each, column.field)) is not None]
        means[column.field] = fmean(values) if values else None
    return PolicySummary(
        policy=policy,
        seeds=len(figures),
        means=means,
        course=figures[0].course,
        bandwidths=tuple(sorted(value for each in figures for value in each.bandwidths)),
        unknown=frozenset(field for each in figures for field in each.unknown if means[field] is None),
    )
