"""An explanation as people read it at a terminal. Pure.

What comes from the cluster passes ``visible``: a name or a value never acts on a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from gputopo.cluster.tables import Cell, Table
from gputopo.cluster.terminal import table_lines
from gputopo.crd.reservations import EntryPhase
from gputopo.render.wording import escape_invisible, format_number
from scheduler_core.explain.advice import SEE
from scheduler_core.explain.gpu_wording import gpu_set_words
from scheduler_core.explain.model import (
    OBSTACLE,
    CandidateNode,
    CurrentPlacement,
    Explanation,
    GpuSet,
    RejectedNodes,
    RequirementItem,
    ReservedGpus,
)

_NAMED = 4  # nodes named of each group; the document names all
_NARROWEST = 40


def render_text(explanation: Explanation, width: int, *, ascii_only: bool = False) -> str:
    """The whole story. ``width``: columns of the terminal; tables are never folded."""
    printed = "\n".join(_lines(explanation, max(width, _NARROWEST)))
    shown = (escape_invisible(line, ascii_only=ascii_only) for line in printed.split("\n"))
    return "\n".join(shown) + "\n"


def _lines(told: Explanation, width: int) -> Iterator[str]:
    name = f"pod {told.pod.namespace}/{told.pod.name}"
    if told.beforehand is not None:
        yield from _folded(f"{name}: {told.beforehand}.", width)
        yield ""
    if told.malformed is not None:
        yield from _folded(f"{name} is refused on every node: {told.malformed}", width)
        return
    scheduler = "" if told.pod.scheduler is None else f" (scheduler: {told.pod.scheduler})"
    yield f"{name}{scheduler} asks for"
    yield from _table(("", "", ""), [_asked(each) for each in told.asks])
    if told.held is not None:
        yield ""
        yield from _held(told.held, width)
    yield ""
    yield from _folded(_verdict(told), width)
    if told.scheduler_said is not None:
        yield from _folded(f"kube-scheduler said: {told.scheduler_said}", width)
    for group in told.barred:
        yield from _folded(f"Left out, as kube-scheduler would: {_named(group.nodes)}: {group.text}.", width)
    yield from _nearest(told, width)
    for place, each in enumerate(told.best):
        yield ""
        yield from _candidate(each, place, width)
    if told.refused:
        yield ""
        yield from _refused(told.refused, width)
    if told.kept:
        yield ""
        yield from _kept(told.kept, width)
    for note in told.notes:
        yield ""
        yield from _folded(f"Note: {note}.", width)


def _asked(each: RequirementItem) -> tuple[str, ...]:
    return (f"  {each.words}", "required" if each.required else "", f"{each.key}: {each.value}")


def _verdict(told: Explanation) -> str:
    others = f"; {told.other_nodes} more without such devices" if told.other_nodes else ""
    if not told.nodes:
        return f"There is no node with such devices, among {told.other_nodes}."
    again = " if it were placed anew" if told.held is not None else ""
    one = "node suits it" if told.nodes == 1 else "nodes suit it"
    return f"{len(told.suited)} of {told.nodes} {one}{again}{others}."


def _held(held: CurrentPlacement, width: int) -> Iterator[str]:
    if held.spot is None:
        yield from _folded(f"It is on {held.node}; nobody says which GPUs it holds there.", width)
        return
    yield from _folded(f"It is on {held.node} and holds {gpu_set_words(held.spot)}.", width)
    if held.broken:
        yield from _folded(f"That breaks what it asked for: {', '.join(held.broken)}.", width)
    if held.best is None:
        return
    if _as_good(held.spot, held.best):
        yield "Nothing that is free there would be better."
    else:
        yield from _folded(f"Best of what is free there and its own: {gpu_set_words(held.best)}.", width)


def _as_good(one: GpuSet, other: GpuSet) -> bool:
    """Whether two sets are alike but for their names."""
    return (one.ring, one.gbps, one.distance, one.islands, len(one.numa or ())) == (
        other.ring,
        other.gbps,
        other.distance,
        other.islands,
        len(other.numa or ()),
    )


def _nearest(told: Explanation, width: int) -> Iterator[str]:
    changes = [each.text for each in told.nearest if each.kind != OBSTACLE]
    obstacles = [each.text for each in told.nearest if each.kind == OBSTACLE]
    if not told.suited and told.nodes and not changes:
        obstacles.insert(0, "no single change that was tried would make it fit")
    for title, listed in (("Any of these would make it fit:", changes), ("What stands in the way:", obstacles)):
        if listed:
            yield ""
            yield title
            for line in listed:
                yield from _folded(f"- {line}", width, "  ")


def _candidate(found: CandidateNode, place: int, width: int) -> Iterator[str]:
    yield f"{'The best' if not place else 'Next'}: {found.node}, {format_number(found.points)} of 10"
    rows = [
        (f"  {each.name}", f"{each.raw:.2f}", format_number(each.weight), f"{each.share:.2f}", each.measures)
        for each in found.factors
    ]
    yield from _table(("  FACTOR", "0 TO 1", "WEIGHT", "POINTS", "WHAT IT MEASURES"), rows)
    yield from _outcomes(found, width)


def _outcomes(found: CandidateNode, width: int) -> Iterator[str]:
    if found.outcomes is None:
        yield "  which GPUs it gets there nobody can tell"
    elif len(found.outcomes) == 1 and not found.more_outcomes:
        yield from _folded(f"  it gets {gpu_set_words(found.outcomes[0])}", width, "    ")
    else:
        yield "  it may get"
        for each in found.outcomes:
            yield from _folded(f"  - {gpu_set_words(each)}", width, "      ")
        if found.worst is not None:
            worst = f"at worst {gpu_set_words(found.worst)}"
            yield from _folded(f"  - or one of {found.more_outcomes} more sets, {worst}", width, "      ")
    if found.may_crash:
        yield "  or the device plugin crashes over it (NVIDIA/go-gpuallocator#80)"
    if found.choice is not None and (found.outcomes is None or list(found.outcomes) != [found.choice]):
        yield from _folded(f"  gputopo would choose {gpu_set_words(found.choice)}", width, "    ")


def _refused(groups: Iterable[RejectedNodes], width: int) -> Iterator[str]:
    yield "Refused:"
    for group in groups:
        count = len(group.nodes)
        yield from _folded(f"- {_reason(group.text)}: {count} {'node' if count == 1 else 'nodes'}", width, "  ")
        yield from _folded(f"  {_named(group.nodes)}", width, "  ")
        yield from _folded(f"  {group.means} {group.advice}", width, "  ")


def _kept(kept: Iterable[ReservedGpus], width: int) -> Iterator[str]:
    yield "Reserved there:"
    for each in kept:
        single = "a single pod" if each.phase == EntryPhase.HELD.value else "pods that are planned one by one"
        whom = single if each.gang is None else f"the gang {each.gang}"
        gpus = "1 GPU" if each.gpus == 1 else f"{each.gpus} GPUs"
        until = _until(each)
        yield from _folded(f"- {gpus} for {whom}, {until}: {_named(each.nodes)} ({each.reservation})", width, "  ")


def _until(kept: ReservedGpus) -> str:
    if kept.phase == EntryPhase.HELD.value:
        return "until it fits" if kept.until is None else f"until it fits, which is expected at {kept.until}"
    return "until its members are on their nodes" if kept.until is None else f"until {kept.until} at the latest"


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _reason(reason: str) -> str:
    """Without the pointer to this very text."""
    return reason.removesuffix(SEE)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    table = Table(titles, [tuple(Cell(cell) for cell in row) for row in rows])
    return (line for line in table_lines(table, lambda _, cell: cell) if line)


def _folded(line: str, width: int, indent: str = "") -> list[str]:
    return wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
