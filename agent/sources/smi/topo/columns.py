"""Stage 4: the device of each column, and the cells of each row that are certainly in their column.

The diagonal decides. Every row has its X in its own column: a row with X elsewhere lost or gained a cell, or the header
lost a name. A header that lost names is repaired where only one repair fits the X of all rows; otherwise the matrix is
rejected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from agent.sources.errors import ParseError
from agent.sources.smi.topo.blocks import MatrixBlock, MatrixRow
from agent.sources.smi.topo.header import MatrixHeader
from agent.sources.smi.topo.words import ELLIPSIS, SELF
from gputopo.model import Problem, ProblemKind

_PASTE_AGAIN = "Paste the output of `nvidia-smi topo -m` again, unedited"
_QUOTED = 100  # characters of a line in a message


class PlacedTable(msgspec.Struct, frozen=True):
    """A block with each cell in its column."""

    columns: tuple[str | None, ...]  # labels; None: a column without a name
    rows: dict[str, MatrixRow]  # the readable rows, by label
    cells: dict[tuple[str, str], str]  # (row label, column label) -> text of a certain cell
    problems: tuple[Problem, ...]


def incomplete_problem(what: str, why: str) -> Problem:
    """Return a problem of the kind "the text was cut or damaged"."""
    return Problem(what, ProblemKind.INCOMPLETE, why)


def quote_line(number: int, text: str) -> str:
    """Quote a line for a message: its number and its words."""
    words = " ".join(text.split())
    return f"line {number} ({words[:_QUOTED]}{'...' if len(words) > _QUOTED else ''})"


def place_cells(block: MatrixBlock) -> PlacedTable:
    """Assign the cells of every row to their columns. Raises ``ParseError`` where no row is certain."""
    problems: list[Problem] = []
    _refuse_difference(block.rows)
    rows = _merge_duplicates(block.rows, problems)
    columns, rows = _columns(block.header, rows, problems)
    consistent = _consistent_rows(block.header, columns, rows, problems)
    if not any(row.label.startswith("GPU") for row in consistent):
        first = block.rows[0]
        raise ParseError(
            f"topo -m: no row's X stands under its own column, beginning with {quote_line(first.number, first.text)}: "
            f"cells were lost or moved. {_PASTE_AGAIN}"
        )
    usual = _usual_count(consistent)
    last = block.rows[-1]
    cells: dict[tuple[str, str], str] = {}
    for row in consistent:
        trusted_count = _trusted_count(row, len(columns), usual, is_last=row is last)
        if trusted_count < len(row.scanned.cells):
            problems.append(_untrusted_problem(row, trusted_count, len(columns)))
        for column, cell in zip(columns, row.scanned.cells[:trusted_count], strict=False):
            if column is not None:
                cells[row.label, column] = cell
    return PlacedTable(tuple(columns), {row.label: row for row in consistent}, cells, tuple(problems))


def _refuse_difference(rows: list[MatrixRow]) -> None:
    """Reject a diff: its rows are of two machines, or of one machine at two times."""
    marks = {row.mark: row for row in rows}
    for old, new in (("-", "+"), ("<", ">")):
        if old in marks and new in marks:
            raise ParseError(
                f"topo -m: {quote_line(marks[old].number, old + marks[old].text)} and "
                f"{quote_line(marks[new].number, new + marks[new].text)} are the difference of two matrices. "
                "Paste the output of `nvidia-smi topo -m` itself"
            )


def _merge_duplicates(rows: list[MatrixRow], problems: list[Problem]) -> dict[str, MatrixRow]:
    """Return one row per label. Of two that differ, the one with X and the longer one are used.

    Otherwise they contradict each other, and neither is used.
    """
    kept: dict[str, MatrixRow] = {}
    contradicted = set()
    for row in rows:
        other = kept.setdefault(row.label, row)
        shorter, longer = sorted((other, row), key=lambda each: (len(each.scanned.cells), len(each.body)))
        if longer.scanned.cells[: len(shorter.scanned.cells)] == shorter.scanned.cells:
            kept[row.label] = longer
            continue
        both = f"{quote_line(other.number, other.text)} and {quote_line(row.number, row.text)} contradict each other"
        with_self = [each for each in (other, row) if _self_column(each) is not None]
        if len(with_self) == 1:
            kept[row.label] = with_self[0]
            why = f"{both}: the one with an X is used"
        else:
            contradicted.add(row.label)
            why = f"{both}: neither is used"
        problems.append(Problem(f"topo -m row {row.label}", ProblemKind.CONFLICT, why))
    return {label: row for label, row in kept.items() if label not in contradicted}


def _usual_count(rows: list[MatrixRow], ties: Callable[[list[int]], int] = max) -> int:
    """The number of cells of most GPU rows; the larger, or as ``ties`` selects, where several are equally frequent."""
    counts = Counter(len(row.scanned.cells) for row in rows if row.label.startswith("GPU"))
    return ties([count for count, times in counts.items() if times == max(counts.values())] or [0])


def _self_column(row: MatrixRow) -> int | None:
    """The column of a row's only X."""
    return row.scanned.cells.index(SELF) if row.scanned.cells.count(SELF) == 1 else None


def _columns(
    header: MatrixHeader | None, rows: dict[str, MatrixRow], problems: list[Problem]
) -> tuple[list[str | None], dict[str, MatrixRow]]:
    """Return the device of each column, and the rows, with a misread row label corrected.

    The header's names are used unless the X of a row contradicts them. Raises ``ParseError`` where they cannot be
    reconciled: wrong column names would invent links.
    """
    if header is None:
        return _columns_of_rows(rows, problems), rows
    usual = _usual_count(list(rows.values()))
    anchors = _anchors(rows, usual)
    labels = list(header.labels)
    if len(set(labels) - {ELLIPSIS}) < len(labels) - labels.count(ELLIPSIS):
        labels = _without_cut_end(header, labels, problems)
    if len(labels) == usual:
        labels, rows, anchors = _resolve_names(labels, rows, anchors, problems)
    aligned = _align(labels, anchors, max(usual, len(labels)))
    if (
        aligned is None
        or not _plausible(aligned, anchors)
        or _lost_a_column(rows, labels, usual)
        or (usual > len(labels) and any(label.startswith("GPU") and label not in rows for label in labels))
    ):
        raise ParseError(
            f"topo -m: the rows' X do not fit the names in {quote_line(header.number, header.text)}: "
            f"names or cells were lost or moved. {_PASTE_AGAIN}"
        )
    if usual > len(labels):
        why = f"names {len(labels)} columns, but rows have {usual} cells"
        problems.append(incomplete_problem("topo -m header", f"{quote_line(header.number, header.text)} {why}"))
    return aligned, rows


def _columns_of_rows(rows: dict[str, MatrixRow], problems: list[Problem]) -> list[str | None]:
    """The columns of a matrix without header: GPUs come first, in order; the X of other rows names their column."""
    usual = _usual_count(list(rows.values()), ties=min)
    anchors = _anchors(rows, usual)
    for column_index, label in anchors.items():
        if label.startswith("GPU") and label != f"GPU{column_index}":
            line = quote_line(rows[label].number, rows[label].text)
            raise ParseError(
                f"topo -m: the header line is missing, and {line} has its X in "
                f"column {column_index + 1}: its GPU is unknown. {_PASTE_AGAIN}"
            )
    problems.append(
        incomplete_problem("topo -m header", "the header line is missing: columns are named by the X of the rows")
    )
    columns = [anchors.get(at, f"GPU{at}" if f"GPU{at}" in rows else None) for at in range(usual)]
    _name_gpus_left_out(columns, [row for row in rows.values() if len(row.scanned.cells) == usual])
    return columns


def _anchors(rows: dict[str, MatrixRow], usual: int) -> dict[int, str]:
    """The columns that the X of complete rows names."""
    anchors: dict[int, str] = {}
    for row in rows.values():
        column_index = _self_column(row)
        if (
            column_index is None
            or len(row.scanned.cells) != usual
            or (column_index in anchors and not row.label.startswith("GPU"))
        ):
            continue
        if column_index in anchors:
            raise ParseError(
                f"topo -m: {quote_line(row.number, row.text)} has its X in column {column_index + 1}, like "
                f"{anchors[column_index]}: names or cells were lost or moved. {_PASTE_AGAIN}"
            )
        anchors[column_index] = row.label
    return anchors


def _plausible(columns: list[str | None], anchors: dict[int, str]) -> bool:
    """Return whether GPUs are in order, and every GPU is named by an X or follows the column before it."""
    gpus = [int(column[3:]) for column in columns if column and column.startswith("GPU")]
    return gpus == sorted(gpus) and all(
        at in anchors or (at and columns[at - 1] == ELLIPSIS) or column == _next_gpu_name(columns, at)
        for at, column in enumerate(columns)
        if column and column.startswith("GPU")
    )


def _lost_a_column(rows: dict[str, MatrixRow], labels: list[str], usual: int) -> bool:
    """Return whether all rows lost the same inner column: a row of the usual length then has no X."""
    return usual < len(labels) and any(
        len(row.scanned.cells) == usual and SELF not in row.scanned.cells and row.label in labels[:usual]
        for row in rows.values()
    )


def _align(labels: list[str], anchors: dict[int, str], width: int) -> list[str | None] | None:
    """Put the header's names between the columns named by rows, in order; None where they do not fit.

    Columns after the last name have none.
    """
    columns: list[str | None] = [anchors.get(at) for at in range(width)]
    known = [(at, labels.index(label)) for at, label in sorted(anchors.items()) if label in labels]
    for (left, first), (right, last) in pairwise([(-1, -1), *known, (width, len(labels))]):
        free = [at for at in range(left + 1, right) if at not in anchors]
        names = labels[first + 1 : last]
        if first >= last or len(free) < len(names):
            return None
        if len(free) == len(names):
            for column_index, name in zip(free, names, strict=True):
                columns[column_index] = name
        elif names:
            return None
    return columns


def _resolve_names(
    labels: list[str], rows: dict[str, MatrixRow], anchors: dict[int, str], problems: list[Problem]
) -> tuple[list[str], dict[str, MatrixRow], dict[int, str]]:
    """Resolve a column that header and row name differently, where neither name occurs elsewhere.

    GPUs are numbered in the order of their columns: the name that continues the numbering is used.
    """
    labels, rows, anchors = list(labels), dict(rows), dict(anchors)
    for column_index, label in sorted(anchors.items()):
        other = labels[column_index]
        if label in labels or other in rows:
            continue
        row = rows[label]
        if other == _next_gpu_name(labels, column_index):
            why = f"{quote_line(row.number, row.text)} has its X in the column of {other}: the row is used for {other}"
            problems.append(Problem(f"topo -m row {label}", ProblemKind.CONFLICT, why))
            rows = {
                other if name == label else name: msgspec.structs.replace(each, label=other) if each is row else each
                for name, each in rows.items()
            }
            anchors[column_index] = other
        elif label == _next_gpu_name(labels, column_index):
            why = f"{quote_line(row.number, row.text)} has its X in the column that the header calls {other}"
            problems.append(Problem(f"topo -m column {other}", ProblemKind.CONFLICT, why))
            labels[column_index] = label
    return labels, rows, anchors


def _next_gpu_name(labels: Sequence[str | None], column_index: int) -> str | None:
    """The GPU name that continues the numbering in this column; None after a column that is not a GPU."""
    before = labels[column_index - 1] if column_index else "GPU-1"
    return f"GPU{int(before[3:]) + 1}" if before and before.startswith("GPU") else None


def _without_cut_end(header: MatrixHeader, labels: list[str], problems: list[Problem]) -> list[str]:
    """Drop a second "GPU1" at the end of a line: the rest of a cut "GPU12"."""
    if labels[-1] in labels[:-1] and len(set(labels[:-1])) == len(labels) - 1:
        line = quote_line(header.number, header.text)
        why = f"{line} ends in a second {labels[-1]}, the rest of a longer name: it is left out"
        problems.append(incomplete_problem("topo -m header", why))
        return labels[:-1]
    raise ParseError(
        f"topo -m: the header names a device twice: {quote_line(header.number, header.text)}. "
        "Paste the output of `nvidia-smi topo -m` of one machine, unedited"
    )


def _consistent_rows(
    header: MatrixHeader | None, columns: list[str | None], rows: dict[str, MatrixRow], problems: list[Problem]
) -> list[MatrixRow]:
    """Return the rows in which the position of the X agrees with the label."""
    consistent = []
    for row in rows.values():
        fault = _row_fault(row, columns, header)
        if fault is None:
            consistent.append(row)
        else:
            why = f"{quote_line(row.number, row.text)}: {fault}; the row is not used"
            problems.append(Problem(f"topo -m row {row.label}", ProblemKind.CONFLICT, why))
    return consistent


def _name_gpus_left_out(columns: list[str | None], rows: list[MatrixRow]) -> None:
    """Name unnamed columns of a matrix without header: those before the last GPU are GPUs.

    An unnamed column with NVLinks is a GPU as well.
    """
    linked = {at for row in rows for at, cell in enumerate(row.scanned.cells) if cell.startswith("NV")}
    before_nics = next((at for at, name in enumerate(columns) if _is_nic(name)), len(columns))
    gpus = [at for at in range(before_nics) if columns[at] is not None or at in linked]
    for column_index in range(max(gpus, default=-1) + 1):
        columns[column_index] = f"GPU{column_index}"


def _row_fault(row: MatrixRow, columns: list[str | None], header: MatrixHeader | None) -> str | None:
    """Return the contradiction between a row's X and its label, or None."""
    cells = row.scanned.cells
    if cells.count(SELF) > 1:
        return "the row has more than one X"
    own_column = columns.index(row.label) if row.label in columns else None
    column_index = _self_column(row)
    if column_index != own_column and column_index is not None:
        return f"its X is in column {column_index + 1}" + (
            "" if own_column is None else f", not in {own_column + 1}, its own"
        )
    if column_index is None and own_column is not None and own_column < len(cells):
        return f"{cells[own_column]} is in the place of its X"
    if own_column is None and header and header.affinity:
        return "the header has no column for it"
    strays = [column for column, cell in zip(columns, cells, strict=False) if cell.startswith("NV") and _is_nic(column)]
    return f"{strays[0]} is not a GPU, but has NVLinks there" if strays else None


def _is_nic(column: str | None) -> bool:
    return column is not None and column != ELLIPSIS and not column.startswith("GPU")


def _trusted_count(row: MatrixRow, width: int, usual: int, *, is_last: bool) -> int:
    """Return how many cells of a row are certainly in their column.

    All cells of a row of full width. All of a shorter row that is the last (the text was cut) or as short as the others
    (every line was cut). Any other row lost or gained a cell somewhere after its X: its cells up to the X.
    """
    count = len(row.scanned.cells)
    if count == width or (count < width and (count == usual or (is_last and not row.tail.strip()))):
        return count
    column_index = _self_column(row)
    return 0 if column_index is None else column_index + 1


def _untrusted_problem(row: MatrixRow, trusted_count: int, width: int) -> Problem:
    found = f"{quote_line(row.number, row.text)} has {len(row.scanned.cells)} cells for {width} columns"
    why = f"{found}: the first {trusted_count} are used"
    return incomplete_problem(f"topo -m row {row.label}", why)
