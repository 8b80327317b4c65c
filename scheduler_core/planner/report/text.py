"""The story of a gang as people read it at a terminal. Pure.

What comes from the cluster passes ``visible``: a name or a value never acts on a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from gputopo.cluster.tables import Cell, Table
from gputopo.cluster.terminal import table_lines
from gputopo.crd.reservations import EntryPhase
from gputopo.render.wording import counted, escape_invisible, format_number
from scheduler_core.explain.advice import SEE
from scheduler_core.planner.commit.progress import FAILED, ROLLING_BACK
from scheduler_core.planner.gang.gang import GangPhase
from scheduler_core.planner.report.listing import GangSummary
from scheduler_core.planner.report.model import (
    BlockingReservation,
    GangEviction,
    GangExplanation,
    GangPlacement,
    NoPlacement,
)
from scheduler_core.planner.report.tables import age_words

_NAMED = 4  # pods or nodes named of each group; the document names all
_NARROWEST = 40
_DECIDED = (FAILED, ROLLING_BACK, GangPhase.ELSEWHERE.value, GangPhase.UNGATED.value)
_NOW = ("It fits now, on", "It does not fit now:")
_IF = {
    GangPhase.WAITING_FOR_MEMBERS.value: (
        "Those that are there would fit now, on",
        "Those that are there would not fit now:",
    ),
    GangPhase.WAITING.value: ("Without the gates of others it would fit now, on", _NOW[1]),
}


def render_text(told: GangExplanation, width: int, *, ascii_only: bool = False) -> str:
    """The whole story. ``width``: columns of the terminal; tables are never folded."""
    printed = "\n".join(_lines(told, max(width, _NARROWEST)))
    shown = (escape_invisible(line, ascii_only=ascii_only) for line in printed.split("\n"))
    return "\n".join(shown) + "\n"


def _lines(told: GangExplanation, width: int) -> Iterator[str]:
    gang = told.gang
    yield from _folded(f"gang {gang.namespace}/{gang.name}: {gang.phase}: {gang.reason}.", width)
    yield from _folded(_facts(told), width)
    if told.unplanned is not None:
        yield ""
        yield from _folded(f"{told.unplanned[0].upper()}{told.unplanned[1:]}.", width)
    yield ""
    yield "Members:"
    for each in told.standing:
        yield from _folded(f"- {each.state}: {_named(each.members)}", width, "  ")
    if told.absent_ranks:
        yield from _folded(f"- not there: rank {_ranks(told.absent_ranks)}", width, "  ")
    if told.before:
        yield ""
        yield from _folded(f"Before it in the queue: {_named(told.before)}.", width)
    for place in told.places:
        yield ""
        yield from _place(place, told, width)
    if told.unfit is not None:
        yield ""
        yield from _unfit(told.unfit, told, width)
    if told.kept:
        yield ""
        yield _without(told)
        for keeper in told.kept:
            yield from _folded(f"- {_keeper(keeper)}", width, "  ")
    if told.relief is not None:
        yield ""
        yield from _folded(_relief(told.relief), width)
    if gang.advice is not None:
        yield ""
        yield from _folded(f"What to do: {gang.advice}.", width)
    for note in told.notes:
        yield ""
        yield from _folded(f"Note: {note}.", width)


def _facts(told: GangExplanation) -> str:
    gang = told.gang
    waits = "" if gang.waiting_seconds is None else f", waits for {age_words(gang.waiting_seconds)}"
    least = "" if gang.minimum is None else f", can start with {gang.minimum}"
    topology = [f"one {told.required} required"] if told.required else []
    topology += [f"one {told.preferred} preferred"] if told.preferred else []
    asked = f"; {', '.join(topology)}" if topology else ""
    size = "of unknown size" if gang.size is None else f"{counted(gang.size, 'member')}"
    gpus = "" if gang.gpus is None else f", {counted(gang.gpus, 'GPU')}"
    of = "" if gang.gpus is None or gang.there == gang.size else " asked for by those that are there"
    return f"Known by {gang.by}, {_priority(gang)}{waits}: {size}{least}{gpus}{of}{asked}{_due(told)}."


def _priority(gang: GangSummary) -> str:
    if not gang.priorities:
        return f"priority {gang.priority}"
    whose = "members that ask for GPUs" if gang.gpus != 0 else "its members"
    return f"priority {gang.priority} (the lowest of {whose}: {', '.join(map(str, gang.priorities))})"


def _due(told: GangExplanation) -> str:
    gang = told.gang
    if gang.left_seconds is not None:
        left = f"{gang.left_seconds} s left" if gang.left_seconds >= 0 else "which has passed"
        return f"; all to be bound by {gang.deadline}, {left}"
    over = gang.waiting_seconds is None or gang.phase in _DECIDED
    return "" if over else f"; to be bound within {told.timeout_seconds:g} s of being let go"


def _place(place: GangPlacement, told: GangExplanation, width: int) -> Iterator[str]:
    nodes = sum(each.node is not None for each in place.stops)
    where = f", all in {place.domain}" if place.domain is not None else ", in no domain together" if nodes > 1 else ""
    rate = "" if place.gbps is None else f", {format_number(place.gbps)} GB/s"
    now = _IF.get(told.gang.phase, _NOW)[0]
    title = {"plan": f"Planned ({told.gang.reservation}):", "there": "It has its places on"}.get(place.of, now)
    yield from _folded(f"{title} {counted(nodes, 'node')}{where}{rate}", width)
    rows = [
        (
            f"  {each.node or '(any)'}",
            str(each.gpus),
            _ranks([rank for rank in each.ranks if rank is not None]),
            _named(each.members),
        )
        for each in place.stops
    ]
    yield from _table(("  NODE", "GPUS", "RANKS", "MEMBERS"), rows)


def _unfit(unfit: NoPlacement, told: GangExplanation, width: int) -> Iterator[str]:
    yield from _folded(f"{_IF.get(told.gang.phase, _NOW)[1]} {unfit.reason}.", width)
    for each in unfit.lacks:
        yield from _folded(f"- {each.reason.removesuffix(SEE)}: {_named(each.members)}", width, "  ")


def _keeper(keeper: BlockingReservation) -> str:
    single = "a single pod" if keeper.phase == EntryPhase.HELD.value else "pods that are planned one by one"
    whom = single if keeper.gang is None else f"the gang {keeper.gang}"
    until = "" if keeper.until is None else f", until {keeper.until}"
    if keeper.phase == EntryPhase.HELD.value:
        until = ", until it fits" if keeper.until is None else f", until it fits, which is expected at {keeper.until}"
    return f"{counted(keeper.gpus, 'GPU')} for {whom}{until}: {_named(keeper.nodes)} ({keeper.reservation})"


def _relief(relief: GangEviction) -> str:
    who = "the pod has ended that is" if len(relief.pods) == 1 else "the pods have ended that are"
    pods = f"{_named(relief.pods)} with {counted(relief.gpus, 'GPU')}"
    when = "when that is, nobody can say" if relief.at is None else f"by their deadlines at {relief.at}"
    return f"It would fit once {who} on {_named(relief.nodes)} ({pods}): {when}."


def _without(told: GangExplanation) -> str:
    if told.kept_together:
        return "It would fit without all of what is kept there:"
    return (
        "It would fit without any one of these:" if len(told.kept) > 1 else "It would fit without what is kept there:"
    )


def _ranks(ranks: Sequence[int]) -> str:
    """``0-3, 7``; "-" for none."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or "-"


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    return table_lines(Table(titles, [tuple(Cell(cell) for cell in row) for row in rows]), lambda _, cell: cell)


def _folded(line: str, width: int, indent: str = "") -> list[str]:
    return wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
