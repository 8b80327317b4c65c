"""An explanation as text for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gputopo.crd.reservations import EntryPhase
from gputopo.render.report import Section, Table, listed, render, text_table, titled
from gputopo.render.wording import counted_noun, escape_invisible, format_number
from scheduler_core.explain.advice import SEE
from scheduler_core.explain.gpu_wording import gpu_set_words
from scheduler_core.explain.model import (
    OBSTACLE,
    CandidateNode,
    CurrentPlacement,
    Explanation,
    GpuSet,
    RejectedNodes,
    ReservedGpus,
)


def explanation_text(explanation: Explanation, width: int, *, ascii_only: bool = False) -> str:
    """Return the whole explanation. ``width``: columns of the terminal."""
    return render(_sections(explanation), width, ascii_only=ascii_only)


def reserved_words(reserved: ReservedGpus) -> str:
    """``4 GPUs for the gang team/llm, until ...: node-7 (team/llm-1)``."""
    hold = reserved.phase == EntryPhase.HELD.value
    if hold:
        until = "until it fits" + ("" if reserved.until is None else f", expected at {reserved.until}")
    elif reserved.until is None:
        until = "until its members are bound"
    else:
        until = f"until {reserved.until} at the latest"
    owner = "a single pod" if hold else "pods without a gang"
    owner = owner if reserved.gang is None else f"the gang {reserved.gang}"
    return (
        f"{counted_noun(reserved.gpus, 'GPU')} for {owner}, {until}: {listed(reserved.nodes)} ({reserved.reservation})"
    )


def _sections(explanation: Explanation) -> Iterator[Section]:
    name = (
        f"pod {escape_invisible(f'{explanation.pod.namespace}/{explanation.pod.name}')}"  # of a file: may be any text
    )
    yield [] if explanation.beforehand is None else [f"{name}: {explanation.beforehand}."]
    if explanation.malformed is not None:
        yield [f"{name} is rejected on every node: {explanation.malformed}"]
        return
    scheduler = "" if explanation.pod.scheduler is None else f" (scheduler: {explanation.pod.scheduler})"
    asks = explanation.asks
    rows = ((each.words, "required" if each.required else "", f"{each.key}: {each.value}") for each in asks)
    yield [f"{name}{scheduler} requests:", text_table((), rows)]
    yield [] if explanation.held is None else _current(explanation.held)
    yield _verdict(explanation)
    changes = [f"- {each.text}" for each in explanation.nearest if each.kind != OBSTACLE]
    obstacles = [f"- {each.text}" for each in explanation.nearest if each.kind == OBSTACLE]
    if not explanation.suited and explanation.nodes and not changes:
        obstacles.insert(0, "- no single change that was tried would make it fit")
    yield titled("Any of these changes would make it fit:", changes)
    yield titled("Obstacles:", obstacles)
    for place, each in enumerate(explanation.best):
        yield _candidate(each, place)
    yield titled("Rejected:", (line for group in explanation.refused for line in _rejected(group)))
    yield titled("Reserved there:", (f"- {reserved_words(each)}" for each in explanation.kept))
    for note in explanation.notes:
        yield [f"Note: {note}."]


def _verdict(explanation: Explanation) -> Iterator[str]:
    others = explanation.other_nodes
    if explanation.nodes:
        fits = "It fits" if explanation.held is None else "Scheduled again, it would fit"
        more = f"; {counted_noun(others, 'other node')} without such devices" if others else ""
        yield f"{fits} {len(explanation.suited)} of {counted_noun(explanation.nodes, 'node')}{more}."
    elif explanation.barred:
        more = f"; {counted_noun(others, 'other node')} without such devices" if others else ""
        yield f"kube-scheduler would exclude all nodes with such devices{more}."
    else:
        yield f"No node has such devices; the cluster has {counted_noun(others, 'node')}."
    if explanation.scheduler_said is not None:
        yield f"kube-scheduler says: {explanation.scheduler_said}"
    for group in explanation.barred:
        yield f"Excluded, as kube-scheduler would: {listed(group.nodes)}: {group.text}."


def _current(held: CurrentPlacement) -> Iterator[str]:
    if held.spot is None:
        yield f"It is on {held.node}; which GPUs it holds is not reported."
        return
    yield f"It is on {held.node} and holds {gpu_set_words(held.spot)}."
    if held.broken:
        yield f"This violates what it requires: {', '.join(held.broken)}."
    if held.best is not None and _quality(held.spot) == _quality(held.best):
        yield "No better GPUs are free there."
    elif held.best is not None:
        yield f"Best of its own and the free GPUs there: {gpu_set_words(held.best)}."


def _quality(gpus: GpuSet) -> tuple[object, ...]:
    """Return all of a set but the names of its GPUs and NUMA nodes."""
    return gpus.ring, gpus.gbps, gpus.distance, gpus.islands, len(gpus.numa or ())


def _candidate(found: CandidateNode, place: int) -> Iterator[str | Table]:
    yield f"{'Next' if place else 'Best'} node: {found.node}, score {format_number(found.points)} of 10"
    yield text_table(
        ("FACTOR", "RAW SCORE", "WEIGHT", "POINTS", "MEASURES"),
        (
            (each.name, f"{each.raw:.2f}", format_number(each.weight), f"{each.share:.2f}", each.measures)
            for each in found.factors
        ),
    )._replace(droppable=("RAW SCORE", "WEIGHT"))
    if found.outcomes is None:
        yield "  which GPUs it would get is not known"
    elif len(found.outcomes) == 1 and not found.more_outcomes:
        yield f"  it would get {gpu_set_words(found.outcomes[0])}"
    else:
        yield "  it may get:"
        yield from (f"  - {gpu_set_words(each)}" for each in found.outcomes)
        if found.worst is not None:
            yield f"  - or one of {found.more_outcomes} more sets, at worst {gpu_set_words(found.worst)}"
    if found.may_crash:
        yield "  or the device plugin crashes (docs/troubleshooting.md)"
    if found.choice is not None and (found.outcomes is None or list(found.outcomes) != [found.choice]):
        yield f"  gputopo would choose {gpu_set_words(found.choice)}"


def _rejected(group: RejectedNodes) -> Iterator[str]:
    yield f"- {group.text.removesuffix(SEE)}: {counted_noun(len(group.nodes), 'node')}"
    yield f"  {listed(group.nodes)}"
    yield f"  {group.means} {group.advice}"
