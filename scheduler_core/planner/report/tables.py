"""Gangs as a table. Pure; ``gputopo.render.report`` makes the lines."""

from __future__ import annotations

from collections.abc import Iterable

from gputopo.crd.reservations import EntryPhase
from gputopo.render.report import NONE, Cell, Table, age_words
from gputopo.render.wording import UNKNOWN, escape_invisible, format_number
from scheduler_core.planner.commit.progress import PHASES
from scheduler_core.planner.gang.gang import GangPhase
from scheduler_core.planner.report.listing import FAILED_PHASES, GangSummary

# Columns that a narrow terminal does without, in the order in which they are dropped.
GANG_DROPPABLE = ("PRIORITY", "GB/S", "DOMAIN", "NODES", "GPUS", "WAITING", "MEMBERS")
_BINDING = (PHASES[EntryPhase.COMMITTED], GangPhase.UNGATED.value)
_PHASE_WORDS = {
    GangPhase.WAITING.value: "waiting for other gates",
    GangPhase.ELSEWHERE.value: "not gated",
    PHASES[EntryPhase.HELD]: "capacity hold",
}  # for people; other phases, and all in documents, are shown as they are


def gang_table(gangs: Iterable[GangSummary], *, wide: bool) -> Table:
    """Return a row for each gang, in the order given."""
    titles = ("NAMESPACE", "GANG", "PHASE", "PRIORITY", "MEMBERS", "GPUS", "NODES", "DOMAIN", "GB/S", "WAITING")
    more = ("DECLARED BY", "MINIMUM", "ATTEMPT", "RESERVATION", "DEADLINE", "ON") if wide else ()
    rows = [(*_row(each), *(_wide(each) if wide else ()), Cell(escape_invisible(reason_words(each)))) for each in gangs]
    return Table((*titles, *more, "REASON"), rows, droppable=() if wide else GANG_DROPPABLE)


def phase_word(phase: str) -> str:
    """Return the phase as people read it."""
    return _PHASE_WORDS.get(phase, phase)


def phase_words(gang: GangSummary) -> str:
    """Return the phase with its progress: ``waiting for members 3 of 16``, ``bound 12 of 16``."""
    if gang.phase == GangPhase.WAITING_FOR_MEMBERS.value:
        need = gang.size if gang.minimum is None else gang.minimum
        return f"{phase_word(gang.phase)} {gang.there} of {UNKNOWN if need is None else need}"
    if gang.phase in _BINDING and gang.ungated:
        return f"bound {gang.bound} of {gang.there}"
    return phase_word(gang.phase)


def reason_words(gang: GangSummary) -> str:
    """Return the reason of the phase, and on whose held capacity the gang is."""
    if gang.backfill is None:
        return gang.reason
    words = f"backfill: uses capacity that is held for {gang.backfill.gang}, until {gang.backfill.until} at the latest"
    return f"{words}; {gang.reason}" if gang.reason else words


def _row(gang: GangSummary) -> tuple[Cell, ...]:
    return (
        Cell(gang.namespace),
        Cell(gang.name if gang.pod is None else f"pod/{gang.pod}"),
        Cell(phase_words(gang), "bad" if gang.phase in FAILED_PHASES else ""),
        Cell(f"{gang.priority} (lowest)" if gang.priorities else str(gang.priority)),
        Cell(f"{gang.there}/{UNKNOWN if gang.size is None else gang.size}"),
        Cell(UNKNOWN if gang.gpus is None else str(gang.gpus)),
        Cell(str(len(gang.nodes)) if gang.nodes else NONE),
        Cell(NONE if gang.domain is None else escape_invisible(gang.domain)),
        Cell(NONE if gang.gbps is None else format_number(gang.gbps)),
        Cell(NONE if gang.waiting_seconds is None else age_words(gang.waiting_seconds)),
    )


def _wide(gang: GangSummary) -> tuple[Cell, ...]:
    deadline = gang.deadline if gang.estimate is None else f"about {gang.estimate}"
    return (
        Cell(gang.by),
        Cell(NONE if gang.minimum is None else str(gang.minimum)),
        Cell(NONE if gang.attempt is None else str(gang.attempt)),
        Cell(gang.reservation or NONE),
        Cell(NONE if deadline is None else escape_invisible(deadline)),
        Cell(",".join(gang.nodes) or NONE),
    )
