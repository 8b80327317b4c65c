"""The figures of preemption rules side by side: text, JSON, Markdown and SVG. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import Any

from gputopo.render.report import UNFOLDED, Table, render, text_table
from scheduler_core.simulation.preemption.replay import (
    HOLD_RULES,
    RULE_DESCRIPTIONS,
    TIERS,
    PreemptionFigures,
    TierWaits,
)
from scheduler_core.simulation.report.plot import COLOURS

_TITLES = (
    "",
    "GPU-hours lost",
    "money lost",
    "evicted jobs",
    "in vain",
    "GPUs in use",
    "useful",
    "GPU-hours waiting at the end",
)
# Titles of columns that a narrow terminal does without, in the order in which they are dropped.
_DROPPABLE = (
    "GPU-hours waiting at the end",
    "money lost",
    "in vain",
    "useful",
    "wait scavenger p50 / p95",
    "wait low p50 / p95",
    "GPUs in use",
    "wait normal p50 / p95",
    "evicted jobs",
)
_HOLD_TITLES = ("", "backfilled jobs", "of these evicted", "holders that started late")
_WIDTH, _ROW, _LEFT = 720, 26, 110


def tiers_document(found: Sequence[PreemptionFigures], about: str) -> dict[str, Any]:
    """Return all figures as JSON values."""
    runs = [
        {**each._asdict(), "waits": {tier: waits._asdict() for tier, waits in each.waits.items()}} for each in found
    ]
    return {"kind": "PreemptionSimulation", "about": about, "replays": runs}


def tiers_text(found: Sequence[PreemptionFigures], about: str, width: int = UNFOLDED) -> str:
    """Return a table of the means over the seeds, and what each rule is, in lines of at most ``width`` columns."""
    found = means_over_seeds(found)
    notes = [
        (each.policy, RULE_DESCRIPTIONS.get(each.policy, "gputopo: the rules of the policy file")) for each in found
    ]
    table = text_table(titles(), [_row(each) for each in found], numbers=True)._replace(droppable=_DROPPABLE)
    parts: list[list[str | Table]] = [[about], [table]]
    held = [_hold_row(each) for each in found if each.policy in HOLD_RULES]
    if held:
        parts.append([text_table(_HOLD_TITLES, held, numbers=True)])
    return render([*parts, [text_table((), notes)]], width)


def means_over_seeds(found: Sequence[PreemptionFigures]) -> list[PreemptionFigures]:
    """Return the mean of each figure for each policy; counts are rounded."""
    by_policy: dict[str, list[PreemptionFigures]] = {}
    for each in found:
        by_policy.setdefault(each.policy, []).append(each)
    return [_mean(runs) for runs in by_policy.values()]


def _mean(runs: Sequence[PreemptionFigures]) -> PreemptionFigures:
    figures = {
        field: _mean_value([getattr(each, field) for each in runs])
        for field in PreemptionFigures._fields
        if field not in ("policy", "seed", "waits")
    }
    waits = {
        tier: TierWaits(*(_mean_value(values) for values in zip(*(each.waits[tier] for each in runs), strict=True)))
        for tier in TIERS
    }
    return runs[0]._replace(**figures, waits=waits)


def _mean_value(values: Sequence[Any]) -> Any:
    """Return the mean; of whole numbers, the nearest whole number."""
    mean = fmean(values)
    return round(mean) if isinstance(values[0], int) else mean


def tiers_markdown(found: Sequence[PreemptionFigures]) -> str:
    """Return the table for the documentation."""
    lines = [titles(), ["---"] + ["---:"] * (len(titles()) - 1), *(_row(each) for each in found)]
    return "".join(f"| {' | '.join(each)} |\n" for each in lines)


def tiers_svg(found: Sequence[PreemptionFigures]) -> str:
    """Return bars: the GPU-hours that each rule loses, and the waits of each tier."""
    charts = [("GPU-hours lost", [each.gpu_hours_lost for each in found])]
    charts += [
        (f"wait of {tier} jobs, p95, minutes", [each.waits[tier].p95_s / 60 for each in found]) for tier in TIERS
    ]
    body, top = [], 0
    for title, values in charts:
        body.append(f'<text x="{_LEFT}" y="{top + 18}" font-weight="bold">{escape(title)}</text>')
        most = max([*values, 1e-9])
        for at, (each, value) in enumerate(zip(found, values, strict=True)):
            y = top + _ROW * (at + 1)
            length = (_WIDTH - _LEFT - 110) * value / most
            body.append(f'<text x="{_LEFT - 8}" y="{y + 16}" text-anchor="end">{escape(each.policy)}</text>')
            body.append(f'<rect x="{_LEFT}" y="{y + 3}" width="{length:.1f}" height="18" fill="{COLOURS[at]}"/>')
            body.append(f'<text x="{_LEFT + 6 + length:.1f}" y="{y + 16}">{value:,.0f}</text>')
        top += _ROW * (len(found) + 2)
    style = "text{font:13px sans-serif;fill:#1c2733}"
    frame = f'<rect width="{_WIDTH}" height="{top}" fill="#ffffff"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" role="img" aria-label="Preemption">'
    return f"{head}<style>{style}</style>{frame}{''.join(body)}</svg>\n"


def titles() -> list[str]:
    """Return the titles of the columns."""
    return [*_TITLES, *(f"wait {tier} p50 / p95" for tier in TIERS)]


def _row(each: PreemptionFigures) -> list[str]:
    return [
        each.policy,
        f"{each.gpu_hours_lost:,.0f}",
        f"{each.money_lost:,.0f}",
        f"{each.evicted_jobs:,}",
        f"{each.in_vain:,}",
        f"{100 * each.utilisation:.1f} %",
        f"{100 * each.useful:.1f} %",
        f"{each.waiting_gpu_hours:,.0f}",
        *(_waits(each.waits[tier]) for tier in TIERS),
    ]


def _waits(waits: TierWaits) -> str:
    if not waits.jobs:
        return "-"
    never = f" ({waits.never:,} of {waits.jobs:,} never started)" if waits.never else ""
    return f"{_time(waits.p50_s)} / {_time(waits.p95_s)}{never}"


def _hold_row(each: PreemptionFigures) -> list[str]:
    return [each.policy, f"{each.backfilled_jobs:,}", f"{each.yielded_jobs:,}", f"{each.late_holders:,}"]


def _time(seconds: float) -> str:
    if seconds < 3_600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"
