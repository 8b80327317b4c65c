"""Stage 4: which device each column is, and which cells of each row can be trusted to stand in their column.

The diagonal decides. Every row shows X under its own device: a row whose X stands elsewhere lost or gained a cell, or
the header a name. Where a header that lost names fits the X of all rows in one way only, it is that; else the matrix
is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from agent.sources.errors import ParseError
from agent.sources.smi.topo.blocks import Block, Row
from agent.sources.smi.topo.header import Header
from agent.sources.smi.topo.words import ELLIPSIS, SELF
from gputopo.model import Problem, ProblemKind

_AGAIN = "Paste the output of `nvidia-smi topo -m` again, unedited"
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
    _refuse_difference(block.rows)
    rows = _distinct(block.rows, problems)
    columns, rows = _columns(block.header, rows, problems)
    sound = _sound(block.header, columns, rows, problems)
    if not any(row.label.startswith("GPU") for row in sound):
        first = block.rows[0]
        raise ParseError(
            f"topo -m: no row's X stands under its own column, beginning with {quote(first.number, first.text)}: "
            f"cells were lost or moved. {_AGAIN}"
        )
    usual = _usual_count(sound)
    last = block.rows[-1]
    cells: dict[tuple[str, str], str] = {}
    for row in sound:
        trusted = _trusted(row, len(columns), usual, is_last=row is last)
        if trusted < len(row.seen.cells):
            problems.append(_untrusted(row, trusted, len(columns)))
        for column, cell in zip(columns, row.seen.cells[:trusted], strict=False):
            if column is not None:
                cells[row.label, column] = cell
    return Table(tuple(columns), {row.label: row for row in sound}, cells, tuple(problems))


def _refuse_difference(rows: list[Row]) -> None:
    """Rows before a change and after it are of two machines, or of one at two times."""
    marks = {row.mark: row for row in rows}
    for old, new in (("-", "+"), ("<", ">")):
        if old in marks and new in marks:
            raise ParseError(
                f"topo -m: {quote(marks[old].number, old + marks[old].text)} and "
                f"{quote(marks[new].number, new + marks[new].text)} are the difference of two matrices. "
                "Paste the output of `nvidia-smi topo -m` itself"
            )


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


def _usual_count(rows: list[Row], ties: Callable[[list[int]], int] = max) -> int:
    """The number of cells that most GPU rows have; the larger, or as ``ties`` says, where several are as common."""
    counts = Counter(len(row.seen.cells) for row in rows if row.label.startswith("GPU"))
    return ties([count for count, times in counts.items() if times == max(counts.values())] or [0])


def _self_at(row: Row) -> int | None:
    """The place of a row's only X."""
    return row.seen.cells.index(SELF) if row.seen.cells.count(SELF) == 1 else None


def _columns(
    header: Header | None, rows: dict[str, Row], problems: list[Problem]
) -> tuple[list[str | None], dict[str, Row]]:
    """What each column is; and the rows, one whose name was misread under its own.

    The header's names, as far as no row's X contradicts them. Raises ``ParseError`` where they cannot be reconciled:
    columns that are named wrongly would invent links.
    """
    if header is None:
        return _columns_of_rows(rows, problems), rows
    usual = _usual_count(list(rows.values()))
    anchors = _anchors(rows, usual)
    labels = list(header.labels)
    if len(set(labels) - {ELLIPSIS}) < len(labels) - labels.count(ELLIPSIS):
        labels = _without_cut_end(header, labels, problems)
    if len(labels) == usual:
        labels, rows, anchors = _one_name_each(labels, rows, anchors, problems)
    aligned = _align(labels, anchors, max(usual, len(labels)))
    if (
        aligned is None
        or not _plausible(aligned, anchors)
        or _lost_a_column(rows, labels, usual)
        or (usual > len(labels) and any(label.startswith("GPU") and label not in rows for label in labels))
    ):
        raise ParseError(
            f"topo -m: the rows' X do not fit the names in {quote(header.number, header.text)}: "
            f"names or cells were lost or moved. {_AGAIN}"
        )
    if usual > len(labels):
        why = f"names {len(labels)} columns, but rows have {usual} cells"
        problems.append(incomplete("topo -m header", f"{quote(header.number, header.text)} {why}"))
    return aligned, rows


def _columns_of_rows(rows: dict[str, Row], problems: list[Problem]) -> list[str | None]:
    """The columns of a matrix without header: GPUs come first and are counted, and the X of other rows names theirs."""
    usual = _usual_count(list(rows.values()), ties=min)
    anchors = _anchors(rows, usual)
    for at, label in anchors.items():
        if label.startswith("GPU") and label != f"GPU{at}":
            raise ParseError(
                f"topo -m: the header line is missing, and {quote(rows[label].number, rows[label].text)} has its X in "
                f"column {at + 1}: which GPU that is cannot be told. {_AGAIN}"
            )
    problems.append(incomplete("topo -m header", "the header line is missing: columns are named after the rows' X"))
    columns = [anchors.get(at, f"GPU{at}" if f"GPU{at}" in rows else None) for at in range(usual)]
    _name_gpus_left_out(columns, [row for row in rows.values() if len(row.seen.cells) == usual])
    return columns


def _anchors(rows: dict[str, Row], usual: int) -> dict[int, str]:
    """The columns that the X of whole rows names."""
    anchors: dict[int, str] = {}
    for row in rows.values():
        at = _self_at(row)
        if at is None or len(row.seen.cells) != usual or (at in anchors and not row.label.startswith("GPU")):
            continue
        if at in anchors:
            raise ParseError(
                f"topo -m: {quote(row.number, row.text)} has its X in column {at + 1}, as {anchors[at]} has: "
                f"names or cells were lost or moved. {_AGAIN}"
            )
        anchors[at] = row.label
    return anchors


def _plausible(columns: list[str | None], anchors: dict[int, str]) -> bool:
    """Whether GPUs are in their order, and none is only named by a header that leaves out others."""
    gpus = [int(column[3:]) for column in columns if column and column.startswith("GPU")]
    return gpus == sorted(gpus) and all(
        at in anchors or (at and columns[at - 1] == ELLIPSIS) or column == _following(columns, at)
        for at, column in enumerate(columns)
        if column and column.startswith("GPU")
    )


def _lost_a_column(rows: dict[str, Row], labels: list[str], usual: int) -> bool:
    """Whether all rows are short by a column that is not the last: one as long as the others has no X."""
    return usual < len(labels) and any(
        len(row.seen.cells) == usual and SELF not in row.seen.cells and row.label in labels[:usual]
        for row in rows.values()
    )


def _align(labels: list[str], anchors: dict[int, str], width: int) -> list[str | None] | None:
    """The header's names put between the columns that rows name, in their order; None where they do not fit.

    Columns behind all the names have none.
    """
    columns: list[str | None] = [anchors.get(at) for at in range(width)]
    known = [(at, labels.index(label)) for at, label in sorted(anchors.items()) if label in labels]
    for (left, first), (right, last) in pairwise([(-1, -1), *known, (width, len(labels))]):
        free = [at for at in range(left + 1, right) if at not in anchors]
        names = labels[first + 1 : last]
        if first >= last or len(free) < len(names):
            return None
        if len(free) == len(names):
            for at, name in zip(free, names, strict=True):
                columns[at] = name
        elif names:
            return None
    return columns


def _one_name_each(
    labels: list[str], rows: dict[str, Row], anchors: dict[int, str], problems: list[Problem]
) -> tuple[list[str], dict[str, Row], dict[int, str]]:
    """Settle where header and row name one column differently, and neither name is anywhere else.

    GPUs are numbered in the order of their columns: the name that follows on the one before is taken.
    """
    labels, rows, anchors = list(labels), dict(rows), dict(anchors)
    for at, label in sorted(anchors.items()):
        other = labels[at]
        if label in labels or other in rows:
            continue
        row = rows[label]
        if other == _following(labels, at):
            why = f"{quote(row.number, row.text)} has its X in the column of {other}: it is taken for the row of that"
            problems.append(Problem(f"topo -m row {label}", ProblemKind.CONFLICT, why))
            rows = {
                other if name == label else name: msgspec.structs.replace(each, label=other) if each is row else each
                for name, each in rows.items()
            }
            anchors[at] = other
        elif label == _following(labels, at):
            why = f"{quote(row.number, row.text)} has its X in the column that the header calls {other}"
            problems.append(Problem(f"topo -m column {other}", ProblemKind.CONFLICT, why))
            labels[at] = label
    return labels, rows, anchors


def _following(labels: Sequence[str | None], at: int) -> str | None:
    """The name of a GPU in this column, counted from the column before it, which is a GPU's or none."""
    before = labels[at - 1] if at else "GPU-1"
    return f"GPU{int(before[3:]) + 1}" if before and before.startswith("GPU") else None


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


def _sound(
    header: Header | None, columns: list[str | None], rows: dict[str, Row], problems: list[Problem]
) -> list[Row]:
    """The rows without those whose X contradicts their name."""
    sound = []
    for row in rows.values():
        fault = _fault(row, columns, header)
        if fault is None:
            sound.append(row)
        else:
            why = f"{quote(row.number, row.text)}: {fault}; the row is not used"
            problems.append(Problem(f"topo -m row {row.label}", ProblemKind.CONFLICT, why))
    return sound


def _name_gpus_left_out(columns: list[str | None], rows: list[Row]) -> None:
    """Without header: GPU columns come first and are counted, so nameless ones before the last of them are GPUs.

    A nameless column with NVLinks in it is of a GPU as well.
    """
    linked = {at for row in rows for at, cell in enumerate(row.seen.cells) if cell.startswith("NV")}
    before_nics = next((at for at, name in enumerate(columns) if _is_nic(name)), len(columns))
    gpus = [at for at in range(before_nics) if columns[at] is not None or at in linked]
    for at in range(max(gpus, default=-1) + 1):
        columns[at] = f"GPU{at}"


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
    if count == width or (count < width and (count == usual or (is_last and not row.tail.strip()))):
        return count
    at = _self_at(row)
    return 0 if at is None else at + 1


def _untrusted(row: Row, trusted: int, width: int) -> Problem:
    found = f"{quote(row.number, row.text)} has {len(row.seen.cells)} cells for {width} columns"
    why = f"{found}: the first {trusted} are used"
    return incomplete(f"topo -m row {row.label}", why)
