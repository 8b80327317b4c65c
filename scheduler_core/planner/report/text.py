"""The explanation of a gang as text for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gputopo.labels.reasons import Reason
from gputopo.render.report import NONE, Section, Table, age_words, listed, render, sentence, text_table, titled
from gputopo.render.wording import counted_noun, format_number, runs
from scheduler_core.explain.advice import SEE
from scheduler_core.explain.text import reserved_words
from scheduler_core.planner.commit.progress import FAILED, ROLLING_BACK
from scheduler_core.planner.gang.gang import GangPhase
from scheduler_core.planner.report.listing import GangSummary
from scheduler_core.planner.report.model import GangEviction, GangExplanation, GangPlacement, NoPlacement
from scheduler_core.planner.report.tables import phase_word

_WITHOUT_LIMIT = (FAILED, ROLLING_BACK, GangPhase.ELSEWHERE.value, GangPhase.UNGATED.value)
_NOW = ("It fits now, on", "It does not fit now:")
_IF = {
    GangPhase.WAITING_FOR_MEMBERS.value: (
        "The members that exist would fit now, on",
        "The members that exist do not fit now:",
    ),
    GangPhase.WAITING.value: ("Without the gates of other controllers it would fit now, on", _NOW[1]),
}


def gang_explanation_text(explanation: GangExplanation, width: int, *, ascii_only: bool = False) -> str:
    """Return the whole explanation. ``width``: columns of the terminal."""
    return render(_sections(explanation), width, ascii_only=ascii_only)


def _sections(explanation: GangExplanation) -> Iterator[Section]:
    gang = explanation.gang
    title = f"gang {gang.namespace}/{gang.name}: {phase_word(gang.phase)}: {gang.reason}."
    yield [title] if gang.phase == GangPhase.FINISHED.value else [title, sentence("; ".join(_facts(explanation)))]
    yield [] if explanation.unplanned is None else [sentence(explanation.unplanned)]
    states = [f"- {each.state}: {listed(each.members)}" for each in explanation.standing]
    if explanation.absent_ranks:
        states.append(f"- missing: rank {_ranks(explanation.absent_ranks)}")
    yield ["Members:", *states]
    yield [f"Before it in the queue: {listed(explanation.before)}."] if explanation.before else []
    for place in explanation.places:
        yield _placement(place, gang)
    if explanation.never is not None:
        yield _never(explanation.never, gang)
    elif explanation.unfit is not None:
        yield _no_placement(explanation.unfit, gang)
    yield titled(_without(explanation), (f"- {reserved_words(each)}" for each in explanation.kept))
    yield [] if explanation.relief is None else [_eviction(explanation.relief)]
    yield [] if gang.advice is None else [f"What to do: {gang.advice}."]
    for note in explanation.notes:
        yield [f"Note: {note}."]


def _facts(explanation: GangExplanation) -> Iterator[str]:
    gang = explanation.gang
    yield f"declared by {gang.by}"
    counted_members = "members that request GPUs" if gang.gpus != 0 else "its members"
    priorities = ", ".join(map(str, gang.priorities))
    yield f"priority {gang.priority}" + (f" (the lowest of {counted_members}: {priorities})" if priorities else "")
    if gang.waiting_seconds is not None:
        yield f"waiting for {age_words(gang.waiting_seconds)}"
    size = "unknown size" if gang.size is None else counted_noun(gang.size, "member")
    yield size + ("" if gang.minimum is None else f", can start with {gang.minimum}")
    if gang.gpus is not None:
        partial = "" if gang.there == gang.size else " requested by the members that exist"
        yield f"{counted_noun(gang.gpus, 'GPU')}{partial}"
    topology = (explanation.required, "required"), (explanation.preferred, "preferred")
    yield from (f"one {level} {strength}" for level, strength in topology if level)
    if gang.left_seconds is not None:
        left = f"{gang.left_seconds} s left" if gang.left_seconds >= 0 else "passed"
        yield f"all to be bound by {gang.deadline} ({left})"
    elif gang.waiting_seconds is not None and gang.phase not in _WITHOUT_LIMIT:
        yield f"to be bound within {explanation.timeout_seconds:g} s after ungating"


def _placement(place: GangPlacement, gang: GangSummary) -> Iterator[str | Table]:
    nodes = sum(each.node is not None for each in place.stops)
    where = f", all in {place.domain}" if place.domain is not None else ", in no common domain" if nodes > 1 else ""
    inside = " inside the nodes" if nodes > 1 else ""
    rate = "" if place.gbps is None else f", {format_number(place.gbps)} GB/s{inside}"
    titles = {"plan": f"Planned ({gang.reservation}):", "there": "Placed on"}
    yield f"{titles.get(place.of) or _IF.get(gang.phase, _NOW)[0]} {counted_noun(nodes, 'node')}{where}{rate}"
    if place.network_source is not None:
        between = "unknown" if place.network_gbps is None else f"at most {format_number(place.network_gbps)} GB/s"
        yield f"Between the nodes: {between} ({place.network_source})"
    yield text_table(
        ("NODE", "GPUS", "RANKS", "MEMBERS"),
        (
            (
                each.node or "(any)",
                str(each.gpus),
                _ranks([rank for rank in each.ranks if rank is not None]),
                listed(each.members),
            )
            for each in place.stops
        ),
    )._replace(droppable=("RANKS", "GPUS"))


def _no_placement(unfit: NoPlacement, gang: GangSummary) -> Iterator[str]:
    yield f"{_IF.get(gang.phase, _NOW)[1]} {unfit.reason}."
    yield from (f"- {each.reason.removesuffix(SEE)}: {listed(each.members)}" for each in unfit.lacks)


def _never(lacks: NoPlacement, gang: GangSummary) -> Iterator[str]:
    yield f"It can never fit on these nodes, even if all other pods end: {lacks.reason}."
    beside = "" if gang.there < 2 else ", beside the other members"
    words = {Reason.TOO_FEW_GPUS.value: f"too few GPUs even on empty nodes{beside}"}
    reasons = ((words.get(each.reason, each.reason), each.members) for each in lacks.lacks)
    yield from (f"- {reason.removesuffix(SEE)}: {listed(members)}" for reason, members in reasons)


def _without(explanation: GangExplanation) -> str:
    these = "all of these reservations" if explanation.kept_together else "any one of these reservations"
    return f"It would fit without {these if len(explanation.kept) > 1 else 'this reservation'}:"


def _eviction(relief: GangEviction) -> str:
    noun, end = ("pod", "ends") if len(relief.pods) == 1 else ("pods", "end")
    pods = f"{listed(relief.pods)} with {counted_noun(relief.gpus, 'GPU')}"
    when = "at an unknown time" if relief.at is None else f"by their deadlines at {relief.at}"
    return f"It would fit after the {noun} on {listed(relief.nodes)} {end} ({pods}): {when}."


def _ranks(ranks: Sequence[int]) -> str:
    """``0-3, 7``; "-" without ranks."""
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs(ranks)) or NONE
