"""The figures of all seeds of a policy, as one line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from scheduler_core.simulation.measures import CoursePoint, Figures


class Column(NamedTuple):
    """One measure."""

    field: str  # of ``Figures``
    title: str
    factor: float = 1.0
    unit: str = ""
    digits: int = 1


COLUMNS = (
    Column("allocated", "allocated", 100.0, "%", 2),
    Column("island_share", "in one island", 100.0, "%"),
    Column("bandwidth", "ring of best", 100.0, "%"),
    Column("fragments", "fragments", 100.0, "%"),
    Column("island_fragments", "by islands", 100.0, "%"),
    Column("mean_wait_s", "mean wait", 1.0, "s"),
    Column("never", "no room", 1.0, ""),
    Column("latency_ms", "decision", 1.0, "ms", 2),
)


class PolicySummary(NamedTuple):
    """A policy over all seeds."""

    policy: str
    seeds: int
    means: dict[str, float | None]  # by field of ``Figures``
    deviations: dict[str, float]  # of the fields with two or more values
    course: tuple[CoursePoint, ...]  # of the first seed
    bandwidths: tuple[float, ...]  # of all seeds, ascending


def summaries(figures: Iterable[Figures]) -> list[PolicySummary]:
    """One for each policy, in the order in which they come."""
    by_policy: dict[str, list[Figures]] = {}
    for each in figures:
        by_policy.setdefault(each.policy, []).append(each)
    return [_summary(policy, each) for policy, each in by_policy.items()]


def report_document(figures: Sequence[Figures], about: str) -> dict[str, Any]:
    """For programs: every seed's figures, without the courses."""
    rows = [
        {key: value for key, value in each._asdict().items() if key not in ("course", "bandwidths")} for each in figures
    ]
    return {"kind": "Simulation", "about": about, "replays": rows}


def render_text(found: Sequence[PolicySummary], words: dict[str, str], about: str) -> str:
    """A table."""
    width = max(len(each.policy) for each in found)
    heads = [f"{column.title:>14}" for column in COLUMNS]
    lines = [about, "", " ".join([" " * width, *heads])]
    lines += [
        " ".join([f"{each.policy:<{width}}", *(f"{cell(each, column):>14}" for column in COLUMNS)]) for each in found
    ]
    notes = [f"{each.policy:<{width}} {words.get(each.policy, '')}" for each in found]
    return "\n".join([*lines, "", *notes]) + "\n"


def cell(summary: PolicySummary, column: Column) -> str:
    """A mean, with its deviation over the seeds where there is one."""
    mean = summary.means[column.field]
    if mean is None:
        return "-"
    return f"{mean * column.factor:.{column.digits}f} {column.unit}".strip()


def _summary(policy: str, figures: Sequence[Figures]) -> PolicySummary:
    means: dict[str, float | None] = {}
    deviations: dict[str, float] = {}
    for column in COLUMNS:
        values = [value for each in figures if (value := getattr(each, column.field)) is not None]
        means[column.field] = fmean(values) if values else None
        if len(values) > 1:
            deviations[column.field] = stdev(values)
    rings = sorted(value for each in figures for value in each.bandwidths)
    return PolicySummary(policy, len(figures), means, deviations, figures[0].course, tuple(rings))
