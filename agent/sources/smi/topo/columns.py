"""Stage 4: which device each column is, and which cells of each row can be trusted to stand in their column.

The diagonal decides. Every row shows X under its own device, so a row whose X stands elsewhere lost or gained a cell,
and a header that disagrees with the X of most rows is damaged itself.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from agent.sources.errors import ParseError
from agent.sources.smi.topo.blocks import Block, Row
from agent.sources.smi.topo.header import Header
from agent.sources.smi.topo.words import ELLIPSIS, SELF
from gputopo.model import Problem, ProblemKind

_QUOTED = 100  # characters of a line that a message shows


class Table(msgspec.Struct, frozen=True):
    """A block with its cells in their places."""

    columns: tuple[str | None, ...]  # labels; None: a column that nothing names
    rows: dict[str, Row]  # by label; those that could be read
    cells: dict[tuple[str, str], str]  # (row label, column label) to the cell's word; only what is trusted
    problems: tuple[Problem, ...]


def incomplete(what: str, why: str) -> Problem:
    """A problem of the kind "the text was cut or damaged"."""
    return Problem(what, ProblemKind.INCOMPLETE, why)


def quote(number: int, text: str) -> str:
    """A line for a message: its number and its words."""
    words = " ".join(text.split())
    return f"line {number} ({words[:_QUOTED]}{'...' if len(words) > _QUOTED else ''})"


def place(block: Block) -> Table:
    """Put every row's cells under their columns. Raises ``ParseError`` where nothing can be trusted."""
    problems: list[Problem] = []
    rows = _distinct(block.rows, problems)
    columns = _columns(block.header, list(rows.values()), problems)
    columns, sound = _check_diagonal(block.header, columns, rows, problems)
    if not any(row.label.startswith("GPU") for row in sound):
        first = block.rows[0]
        raise ParseError(
            f"topo -m: no row's X stands under its own column, beginning with {quote(first.number, first.text)}: "
            "cells were lost or moved. Paste the output of `nvidia-smi topo -m` again, unedited"
        )
    usual = _usual_count(sound)
    cells: dict[tuple[str, str], str] = {}
    for row in sound:
        trusted = _trusted(row, len(columns), usual, is_last=row is block.rows[-1])
        if trusted < len(row.seen.cells):
            problems.append(_untrusted(row, trusted, len(columns)))
        for column, cell in zip(columns, row.seen.cells[:trusted], strict=False):
            if column is not None:
                cells[row.label, column] = cell
    return Table(tuple(columns), {row.label: row for row in sound}, cells, tuple(problems))


def _distinct(rows: list[Row], problems: list[Problem]) -> dict[str, Row]:
    """One row per label. Of two that differ, one without X gives way to one with it, and a cut one to a whole one.

    Otherwise they contradict each other, and neither is used.
    """
    kept: dict[str, Row] = {}
    contradicted = set()
    for row in rows:
        other = kept.setdefault(row.label, row)
        shorter, longer = sorted((other, row), key=lambda each: (len(each.seen.cells), len(each.body)))
        if longer.seen.cells[: len(shorter.seen.cells)] == shorter.seen.cells:
            kept[row.label] = longer
            continue
        both = f"{quote(other.number, other.text)} and {quote(row.number, row.text)} contradict each other"
        with_self = [each for each in (other, row) if _self_at(each) is not None]
        if len(with_self) == 1:
            kept[row.label] = with_self[0]
            why = f"{both}: the one with an X is used"
        else:
            contradicted.add(row.label)
            why = f"{both}: neither is used"
        problems.append(Problem(f"topo -m row {row.label}", ProblemKind.CONFLICT, why))
    return {label: row for label, row in kept.items() if label not in contradicted}


def _usual_count(rows: list[Row]) -> int:
    """The number of cells that most GPU rows have; the larger where two are as common."""
    counts = Counter(len(row.seen.cells) for row in rows if row.label.startswith("GPU"))
    return max(counts, key=lambda count: (counts[count], count), default=0)


def _self_at(row: Row) -> int | None:
    """The place of a row's only X."""
    return row.seen.cells.index(SELF) if row.seen.cells.count(SELF) == 1 else None


def _columns(header: Header | None, rows: list[Row], problems: list[Problem]) -> list[str | None]:
    """The columns as the header names them, moved to where the X of most rows puts them."""
    usual = _usual_count(rows)
    if header is None:
        problems.append(incomplete("topo -m header", "the header line is missing: columns are named after the rows' X"))
        return [None] * usual
    labels = list(header.labels)
    if len(set(labels) - {ELLIPSIS}) < len(labels) - labels.count(ELLIPSIS):
        labels = _without_cut_end(header, labels, problems)
    votes = Counter(
        at - labels.index(row.label) for row in rows if (at := _self_at(row)) is not None and row.label in labels
    )
    shift = max(votes, key=lambda each: (votes[each], -abs(each)), default=0)
    if shift > 0:
        why = f"{quote(header.number, header.text)} lost its first {shift} columns: they are named after the rows' X"
        problems.append(incomplete("topo -m header", why))
    columns: list[str | None] = [None] * max(0, shift) + labels
    if usual > len(columns):
        why = f"{quote(header.number, header.text)} names {len(columns)} columns, but rows have {usual} cells"
        problems.append(incomplete("topo -m header", why))
        columns += [None] * (usual - len(columns))
    return columns


def _without_cut_end(header: Header, labels: list[str], problems: list[Problem]) -> list[str]:
    """A line that was cut inside "GPU12" ends in a second "GPU1"."""
    if labels[-1] in labels[:-1] and len(set(labels[:-1])) == len(labels) - 1:
        why = (
            f"{quote(header.number, header.text)} ends in a second {labels[-1]}: a longer name was cut; it is left out"
        )
        problems.append(incomplete("topo -m header", why))
        return labels[:-1]
    raise ParseError(
        f"topo -m: the header names a device twice: {quote(header.number, header.text)}. "
        "Paste the output of `nvidia-smi topo -m` of one machine, unedited"
    )


def _check_diagonal(
    header: Header | None, columns: list[str | None], rows: dict[str, Row], problems: list[Problem]
) -> tuple[list[str | None], list[Row]]:
    """Name nameless columns after the rows whose X is there, and set rows aside whose X contradicts their label."""
    columns = list(columns)
    for row in rows.values():
        at = _self_at(row)
        if at is not None and at < len(columns) and row.label not in columns:
            stranger = columns[at]
            if stranger is None:
                columns[at] = row.label
            elif stranger not in rows and stranger.startswith("GPU") == row.label.startswith("GPU"):
                why = f"{quote(row.number, row.text)} has its X in the column that the header calls {stranger}"
                problems.append(Problem(f"topo -m column {stranger}", ProblemKind.CONFLICT, why))
                columns[at] = row.label
    _name_gpus_left_out(columns, list(rows.values()))
    sound = []
    for row in rows.values():
        fault = _fault(row, columns, header)
        if fault is None:
            sound.append(row)
        else:
            why = f"{quote(row.number, row.text)}: {fault}; the row is not used"
            problems.append(Problem(f"topo -m row {row.label}", ProblemKind.CONFLICT, why))
    return columns, sound


def _name_gpus_left_out(columns: list[str | None], rows: list[Row]) -> None:
    """GPU columns come first and in order, so nameless ones before or between known ones can be counted out.

    A nameless column with NVLinks in it is of a GPU as well.
    """
    linked = {at for row in rows for at, cell in enumerate(row.seen.cells[: len(columns)]) if cell.startswith("NV")}
    at, index = -1, -1  # of the last column whose GPU is known
    for place, name in enumerate(columns):
        if name is None and place in linked and at >= 0 and not any(columns[at + 1 : place]):
            here = index + place - at
        elif name is not None and name.startswith("GPU"):
            here = int(name[3:])
        else:
            continue
        if here - index == place - at and f"GPU{here}" not in columns[place + 1 :]:
            columns[at + 1 : place + 1] = [f"GPU{index + step}" for step in range(1, place - at + 1)]
        at, index = place, here


def _fault(row: Row, columns: list[str | None], header: Header | None) -> str | None:
    """What is wrong with a row's place for itself, or None."""
    cells = row.seen.cells
    if cells.count(SELF) > 1:
        return "it has more than one X"
    mine = columns.index(row.label) if row.label in columns else None
    at = _self_at(row)
    if at != mine and at is not None:
        return f"its X is in column {at + 1}" + ("" if mine is None else f", not in {mine + 1}, its own")
    if at is None and mine is not None and mine < len(cells):
        return f"{cells[mine]} stands where its X should be"
    if mine is None and header and header.affinity:
        return "the header has no column for it"
    strays = [column for column, cell in zip(columns, cells, strict=False) if cell.startswith("NV") and _is_nic(column)]
    return f"{strays[0]} is no GPU, but has NVLinks there" if strays else None


def _is_nic(column: str | None) -> bool:
    return column is not None and column != ELLIPSIS and not column.startswith("GPU")


def _trusted(row: Row, width: int, usual: int, *, is_last: bool) -> int:
    """How many cells of a row surely stand in their column.

    A row of full width: all. A shorter one that is the last (the text was cut) or as short as the others (every line
    was cut): all it has. Any other lost a cell somewhere behind its X, or gained one: those up to its X.
    """
    count = len(row.seen.cells)
    if count == width or (count < width and (is_last or count == usual)):
        return count
    at = _self_at(row)
    return 0 if at is None else at + 1


def _untrusted(row: Row, trusted: int, width: int) -> Problem:
    found = f"{quote(row.number, row.text)} has {len(row.seen.cells)} cells for {width} columns"
    why = f"{found}: the first {trusted} are used"
    return incomplete(f"topo -m row {row.label}", why)
