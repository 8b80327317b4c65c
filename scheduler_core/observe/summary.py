"""The report of the observer as text for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from gputopo.render.report import Section, Table, render, text_table
from gputopo.render.wording import counted_noun, format_number
from scheduler_core.observe.cluster_now import ClusterNow
from scheduler_core.observe.observer import ObserverReport
from scheduler_core.observe.totals import PlacementTotals, TotalsByDimension
from scheduler_core.observe.wording import cost_words, placement_sentence

NOT_CHECKED = "CPU, memory, pod affinity, topology spread and volumes"
_TITLES = ("", "PLACED", "COMPARED", "ONE ISLAND", "POSSIBLE", "BY GPUTOPO", "WORSE", "GB/S LOST")
_LEGEND = (
    "  POSSIBLE: some node may have offered one island. BY GPUTOPO: gputopo's choice certainly offers one island.",
    "  WORSE: a slower ring than gputopo's choice offers. GB/S LOST: of the rings' weakest hops, where known.",
)
_LISTED = 12  # rows of each dimension


def render_summary(report: ObserverReport) -> str:
    """Return the report as text."""
    return render(_sections(report))


def _sections(report: ObserverReport) -> Iterator[Section]:
    times = (datetime.fromtimestamp(at, UTC) for at in (report.since, report.until))
    since, until = (f"{at:%Y-%m-%d %H:%M:%SZ}" for at in times)
    yield [f"gputopo observe: {since} to {until}; nothing in the cluster was changed"]
    yield _now(report.now)
    yield _running(report.ran)
    yield _placed(report)


def _now(now: ClusterNow) -> Iterator[str]:
    if now.nodes:
        broken = now.broken_share
        share = "" if broken is None else f"; {broken:.0%} of the free GPUs with NVLink are in partly used islands"
        yield f"Now: {counted_noun(now.nodes, 'node')} with {counted_noun(now.gpus, 'GPU')}, {now.free} free{share}."
        islands = ", ".join(f"{count} with {size} free" for size, count in now.islands_by_free_gpus.items())
        yield f"     Islands: {islands or 'none with a GPU that is certainly free'}."
    else:
        yield "Now: no node has a known GPU topology. Install gputopo's agent first (docs/install.md)."
    if now.unknown_nodes:
        yield f"     {counted_noun(now.unknown_nodes, 'node')} with GPUs of unknown topology or allocation."


def _running(ran: TotalsByDimension) -> Iterator[str]:
    total = ran.total
    if not total.placed:
        yield "At the start, no GPU pod ran."
        return
    yield f"At the start, {counted_noun(total.placed, 'GPU pod')} ran: {_results(total)}."
    if total.compared:
        loss = f", by {format_number(total.lost_gbps)} GB/s in total" if total.lost_gbps else ""
        yield (
            f"  Of the compared pods, {total.one_island} are in one island and {total.could_be_one_island} could be on "
            f"an empty node; {total.worse} with a slower ring than there{loss}."
        )
    yield from _costliest(ran)


def _placed(report: ObserverReport) -> Iterator[str | Table]:
    placed, total = report.placed, report.placed.total
    pending = f"; {report.pending} waiting for the kubelet's report" if report.pending else ""
    if not total.placed:
        yield f"Since then, no GPU pod was placed{pending}."
        return
    were = "was" if total.placed == 1 else "were"
    yield f"Since then, {counted_noun(total.placed, 'GPU pod')} {were} placed: {_results(total)}{pending}."
    if total.compared:
        yield _table(placed)
        yield from _LEGEND
    if total.worse_by_unknown:
        yield f"  Worse by an unknown rate, not in the totals: {total.worse_by_unknown}."
    if total.would_wait:
        yield f"  {counted_noun(total.would_wait, 'pod')} would have waited with gputopo: no node fit the request."
    if total.broke_islands:
        yield (
            f"  {total.broke_islands} of {total.single} pods with a single GPU broke an island with only free GPUs, "
            f"{total.broke_needlessly} of them although a partly used island had a free GPU."
        )
    if total.compared:
        rules = f" (compared pods with such rules: {total.with_unchecked_rules})"
        yield f"  Not checked on other nodes: {NOT_CHECKED}{rules if total.with_unchecked_rules else ''}."
    if placed.costliest:
        yield "  Largest losses:"
        yield from _costliest(placed)


def _costliest(totals: TotalsByDimension) -> Iterator[str]:
    return (f"  {cost_words(each):>12}  {placement_sentence(each)}" for each in totals.costliest)


def _table(placed: TotalsByDimension) -> Table:
    """Return the totals, in all and by dimension: the largest loss first."""
    rows = [("all", placed.total)]
    for dimension, by in placed.by.items():
        largest = sorted(by.items(), key=lambda each: (-each[1].lost_gbps, -each[1].placed, each[0]))[:_LISTED]
        rows += [(f"{dimension} {value}", totals) for value, totals in largest]
    return text_table(_TITLES, ((title, *_figures(totals)) for title, totals in rows), numbers=True)


def _figures(totals: PlacementTotals) -> tuple[str, ...]:
    counts = (
        totals.placed,
        totals.compared,
        totals.one_island,
        totals.could_be_one_island,
        totals.by_us_in_one_island,
        totals.worse,
    )
    return *map(str, counts), format_number(totals.lost_gbps)


def _results(totals: PlacementTotals) -> str:
    counts = {
        "compared": totals.compared,
        "with a single GPU": totals.single,
        "that would have waited": totals.would_wait,
        "unknown": totals.unknown,
        "with shares of GPUs or MIG devices": totals.shared,
    }
    return ", ".join(f"{count} {words}" for words, count in counts.items() if count)
