"""All that was seen, as text for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from gputopo.render.wording import escape_invisible, format_number
from scheduler_core.observe.cluster_now import ClusterNow
from scheduler_core.observe.observer import ObserverReport
from scheduler_core.observe.totals import PlacementTotals, TotalsByDimension
from scheduler_core.observe.wording import cost_words, placement_sentence

NOT_LOOKED_AT = "CPU, memory, pod affinity, topology spread and volumes"
_TITLES = ("", "PLACED", "COMPARED", "ONE ISLAND", "COULD BE", "BY US", "WORSE", "GB/S LOST")
_DIMENSIONS = {"scheduler": "scheduler ", "size": "size ", "namespace": "namespace "}
_LEGEND = (
    "  COULD BE: some node may have given one island. BY US: ours surely would. WORSE: a slower ring than ours would",
    "  have promised. GB/S LOST: of the weakest hop of the ring, summed over the pods, where it can be said.",
)
_MOST = 12  # lines of each dimension


def render_summary(report: ObserverReport) -> str:
    """The report as text."""
    parts = [_head(report), *_now(report.now), *_ran(report.ran), *_placed(report)]
    return "\n".join(escape_invisible(part) for part in parts) + "\n"


def _head(report: ObserverReport) -> str:
    return f"gputopo observe: {_time(report.since)} to {_time(report.until)}; nothing in the cluster was changed"


def _now(now: ClusterNow) -> Iterable[str]:
    yield ""
    if not now.nodes:
        yield "Now: no node is known whose GPUs can be told apart. Install gputopo's agent first (docs/install.md)."
    else:
        broken = "" if now.broken_share is None else f"; of those with NVLink {now.broken_share:.0%} in broken islands"
        yield f"Now: {_many(now.nodes, 'node')} with {now.gpus} GPUs, {now.free} of them free{broken}."
        islands = ", ".join(f"{many} with {size} free" for size, many in now.islands)
        yield f"     Islands: {islands or 'none with a GPU that is surely free'}."
    if now.unknown:
        yield f"     {_many(now.unknown, 'node')} more with GPUs, but nobody says how these are joined or who has them."


def _ran(ran: TotalsByDimension) -> Iterable[str]:
    every = ran.all
    yield ""
    if not every.placed:
        yield "When this began, no GPU pod ran."
        return
    yield f"When this began, {_many(every.placed, 'GPU pod')} ran: {_kinds(every)}."
    if every.compared:
        yield (
            f"  Of the compared, {every.one_island} are in one island and {every.could_be_one_island} could be, were "
            f"their machine empty; {every.worse} with a slower ring than that{_loss(every)}."
        )
    yield from (f"  {cost_words(each):>12}  {placement_sentence(each)}" for each in ran.costliest)


def _placed(report: ObserverReport) -> Iterable[str]:
    placed, every = report.placed, report.placed.all
    yield ""
    waiting = f"; {report.pending} waiting for a kubelet's word" if report.pending else ""
    if not every.placed:
        yield f"Since then, no GPU pod was placed{waiting}."
        return
    were = "was" if every.placed == 1 else "were"
    yield f"Since then, {_many(every.placed, 'GPU pod')} {were} placed: {_kinds(every)}{waiting}."
    if every.compared:
        yield from totals_table(placed)
        yield from _LEGEND
    if every.uncounted:
        yield f"  Of {every.uncounted} that are worse nobody can say by how much: they are in no sum."
    if every.waits:
        yield f"  {_many(every.waits, 'pod')} would have waited: no node suited what was asked."
    if every.broke:
        yield (
            f"  {every.broke} of {_many(every.single, 'single GPU')} broke an island that was free as a whole, "
            f"{every.needlessly} of them although a broken one would have served."
        )
    if every.compared:
        yield f"  Not looked at when other nodes are named: {NOT_LOOKED_AT}{_unchecked(every)}."
    if placed.costliest:
        yield "  The costliest:"
        yield from (f"  {cost_words(each):>12}  {placement_sentence(each)}" for each in placed.costliest)


def totals_table(placed: TotalsByDimension) -> list[str]:
    """The sums, in all and by dimension, in columns."""
    rows = [_TITLES, _row("in all", placed.all)]
    for dimension, words in _DIMENSIONS.items():
        rows += [_row(f"{words}{value}", tally) for value, tally in _largest(placed.by[dimension])]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_TITLES))]
    return ["  " + f"{row[0]:<{widths[0]}}" + _cells(row, widths) for row in rows]


def _cells(row: tuple[str, ...], widths: list[int]) -> str:
    return "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))


def _row(title: str, tally: PlacementTotals) -> tuple[str, ...]:
    told = (
        tally.placed,
        tally.compared,
        tally.one_island,
        tally.could_be_one_island,
        tally.ours_in_one_island,
        tally.worse,
    )
    return title, *map(str, told), format_number(tally.lost_gbps)


def _largest(by: Mapping[str, PlacementTotals]) -> list[tuple[str, PlacementTotals]]:
    """Those that lost most; of equals the largest."""
    return sorted(by.items(), key=lambda each: (-each[1].lost_gbps, -each[1].placed, each[0]))[:_MOST]


def _kinds(tally: PlacementTotals) -> str:
    told = {
        "compared": tally.compared,
        "of a single GPU": tally.single,
        "that would have waited": tally.waits,
        "unknown": tally.unknown,
        "of shares of GPUs or MIG devices": tally.shared,
    }
    return ", ".join(f"{count} {words}" for words, count in told.items() if count)


def _loss(tally: PlacementTotals) -> str:
    return f", by {format_number(tally.lost_gbps)} GB/s in sum" if tally.lost_gbps else ""


def _unchecked(tally: PlacementTotals) -> str:
    return f" ({tally.unchecked} of the compared pods have such rules)" if tally.unchecked else ""


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
