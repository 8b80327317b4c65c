"""The report as a self-contained HTML page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from gputopo.render.wording import counted_noun
from scheduler_core.simulation.report.plot import Axis, bar_plot, distribution, legend, line_plot
from scheduler_core.simulation.report.summary import COLUMNS, NEVER_SCHEDULED, PolicySummary, cell_text

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1120px;margin:2rem auto;padding:0 1rem;color:#1c2733}
table{border-collapse:collapse;width:100%;margin:1rem 0}td,th{padding:.3rem .6rem;text-align:right;border-bottom:1px
solid #d8dee5}td:first-child,th:first-child{text-align:left}figure{display:inline-block;width:48%;min-width:360px;
margin:0 1% 1rem 0;vertical-align:top}svg{width:100%;font:11px system-ui,sans-serif;fill:#1c2733}.grid{stroke:#e3e8ee}
.key{margin-right:1rem;white-space:nowrap}.key i{display:inline-block;width:.8rem;height:.8rem;margin-right:.3rem}
.small{color:#55616d;font-size:.9rem}
"""


def simulation_page(
    found: Sequence[PolicySummary], words: Mapping[str, str], about: str, caveats: Sequence[str] = ()
) -> str:
    """Return the page: what was simulated, a summary, caveats, the table, the plots and the terms."""
    plots = [
        (_courses(found, "allocated"), "Share of the GPU capacity in use, while pods arrive."),
        (_courses(found, "island_fragments"), "Free GPUs that no usual pod can use inside one island."),
        (_islands(found), "Share of multi-GPU pods in one NVLink island, among the pods that fit into one."),
        (_rings(found), "Bandwidth of the pods' rings, in % of the best possible: further right is better."),
    ]
    figures = "".join(f"<figure>{svg}<figcaption>{escape(text)}</figcaption></figure>" for svg, text in plots if svg)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>GPU placement, simulated</title>'
        f"<style>{_STYLE}</style><h1>GPU placement, simulated</h1><p>{escape(about)}</p>{_verdict(found)}"
        f"{''.join(f'<p>{escape(each)}</p>' for each in caveats)}"
        f"{_table(found)}<p>{legend([each.policy for each in found])}</p>{figures}{_notes(found, words)}</html>\n"
    )


def _verdict(found: Sequence[PolicySummary]) -> str:
    """Return the first policy compared with the best of the others."""
    if len(found) < 2:
        return ""
    first, *others = found
    results = []
    in_use = ("mean_allocated", "of the GPU capacity in use on average")
    for field, what in (in_use, ("island_share", "of pods inside one island")):
        own = first.means[field]
        other_means = [(value, each.policy) for each in others if (value := each.means[field]) is not None]
        if own is not None and other_means:
            best, name = max(other_means)
            results.append(f"{100 * own:.1f} % {what}; best of the others: {100 * best:.1f} % ({name})")
    return f"<p><b>{escape(first.policy)}</b>: {escape('. '.join(results))}.</p>" if results else ""


def _table(found: Sequence[PolicySummary]) -> str:
    head = "".join(f"<th>{escape(column.title)}</th>" for column in COLUMNS)
    rows = "".join(
        f"<tr><td>{escape(each.policy)}</td>{''.join(f'<td>{cell_text(each, column)}</td>' for column in COLUMNS)}</tr>"
        for each in found
    )
    return f"<table><tr><th>policy</th>{head}</tr>{rows}</table>"


def _courses(found: Sequence[PolicySummary], field: str) -> str:
    series = {each.policy: [(point.submitted, getattr(point, field)) for point in each.course] for each in found}
    title = "GPUs requested so far, in multiples of the GPUs of the cluster"
    return line_plot(series, Axis(title, percent=False), Axis(field.replace("_", " ")))


def _islands(found: Sequence[PolicySummary]) -> str:
    shares = {each.policy: share for each in found if (share := each.means["island_share"]) is not None}
    return bar_plot(shares, "in one island") if shares else ""


def _rings(found: Sequence[PolicySummary]) -> str:
    series = {each.policy: distribution(each.bandwidths) for each in found if each.bandwidths}
    return line_plot(series, Axis("% of best ring bandwidth"), Axis("pods, up to this")) if series else ""


def _notes(found: Sequence[PolicySummary], words: Mapping[str, str]) -> str:
    rows = "".join(f"<li><b>{escape(each.policy)}</b>: {escape(words.get(each.policy, ''))}</li>" for each in found)
    seeds = ", ".join(counted_noun(number, "run") for number in sorted({each.seeds for each in found}))
    return (
        f'<ul class="small">{rows}</ul><p class="small">Means of {seeds}. "mean allocated": over the second half '
        'of the arrivals; "allocated at end": after the last arrival. "fragments": free GPUs that usual pods '
        'cannot use on their node; "fragments by island": inside one island; both in % of all GPUs. "% of best ring '
        "bandwidth\": the weakest hop of the ring through a pod's GPUs, compared with the best ring possible. "
        f'"never scheduled": {NEVER_SCHEDULED}.</p>'
    )
