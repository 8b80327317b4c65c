"""Reports: values as sections of text for a terminal, and as documents for programs. Pure.

Values of a report are ``msgspec.Struct`` with ``rename="camel"``, so ``document`` needs no list of keys. Keys are
camelCase as in Kubernetes; an unknown value is null; within ``v1`` keys are added, never renamed or removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

import msgspec

from gputopo.render.schema import API_VERSION
from gputopo.render.wording import escape_invisible, shorten_names

NONE = "-"
UNFOLDED = 1_000_000  # columns: all columns of tables, and no line is folded
LISTED = 4  # names listed of each group; the document has all of them
_MIN_WIDTH = 20
_GAP = "  "
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))

Paint = Callable[[str, str], str]  # (role, text) -> text with colour


class Cell(NamedTuple):
    """A short text; ``role`` is "" or "bad"."""

    text: str
    role: str = ""


class Table(NamedTuple):
    """Titles and rows of cells. Without titles the rows stand alone."""

    titles: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    numbers: bool = False  # all columns but the first hold numbers, which end at the right
    droppable: tuple[str, ...] = ()  # titles of columns that a narrow terminal does without, least important first


Section = Iterable[str | Table]


def text_table(titles: Sequence[str], rows: Iterable[Iterable[str]], *, numbers: bool = False) -> Table:
    """Return a table of cells without roles."""
    return Table(tuple(titles), [tuple(map(Cell, row)) for row in rows], numbers)


def fit_table(table: Table, width: int) -> Table:
    """Return the table without the columns that are dropped, in their order, until it is at most ``width`` wide.

    Columns without any value are dropped first. The last column counts with at most a third of the width, because
    ``table_lines`` folds it; a column of numbers is not folded.
    """
    empty = [title for title in table.droppable if _is_empty(table, title)]
    for title in (*empty, *(each for each in table.droppable if each not in empty)):
        if _natural_width(table, width) <= width:
            break
        if title in table.titles:
            place = table.titles.index(title)
            rows = [row[:place] + row[place + 1 :] for row in table.rows]
            table = table._replace(titles=table.titles[:place] + table.titles[place + 1 :], rows=rows)
    return table


def _is_empty(table: Table, title: str) -> bool:
    if title not in table.titles:
        return False
    place = table.titles.index(title)
    return all(row[place].text in ("", NONE) for row in table.rows)


def _natural_width(table: Table, width: int) -> int:
    """Return the width that the table needs on a terminal of this width."""
    rows = [tuple(cell.text for cell in row) for row in table.rows]
    *widths, last = (max(map(len, column)) for column in zip(table.titles, *rows, strict=True))
    words = [len(word) for row in rows for word in ([row[-1]] if table.numbers else row[-1].split())]
    folded = max([min(last, width // 3), len(table.titles[-1]), *words])
    return sum(widths) + len(_GAP) * len(widths) + folded


def table_lines(table: Table, paint: Paint = lambda _, text: text, columns: int | None = None) -> Iterator[str]:
    """Yield the table in columns, as kubectl prints tables. Text is never cut.

    Lines that are longer than ``columns`` are folded between words and cells; None: no line is folded.
    """
    heads = [tuple(map(Cell, table.titles))] if table.titles else []
    rows = [*heads, *table.rows]
    widths = [max(map(len, column)) for column in zip(*([cell.text for cell in row] for row in rows), strict=True)]
    pads = [str.rjust if table.numbers and place else str.ljust for place in range(len(widths))]
    for row in rows:
        # Padded before it is coloured: escape sequences have a length and no width.
        padded = [(cell.role, pad(cell.text, width)) for cell, pad, width in zip(row, pads, widths, strict=True)]
        yield from _folded(padded, paint, columns)


def _folded(cells: Sequence[tuple[str, str]], paint: Paint, columns: int | None) -> Iterator[str]:
    """Yield the line of a row; a line that is too long is folded in its last cell, or else anywhere between words."""
    if columns is None or len(_GAP.join([text for _, text in cells]).rstrip()) <= columns:
        yield _GAP.join([paint(role, text) if role else text for role, text in cells]).rstrip()
        return
    *first, (role, last) = cells
    start = "".join(f"{text}{_GAP}" for _, text in first)
    if len(start) + max(map(len, last.split()), default=0) <= columns:
        begin = "".join(f"{paint(role, text) if role else text}{_GAP}" for role, text in first)
        for number, line in enumerate(wrap(last, columns - len(start), break_long_words=False, break_on_hyphens=False)):
            yield (" " * len(start) if number else begin) + (paint(role, line) if role else line)
        return
    words = " ".join(f"{text.rstrip()} " for _, text in cells)
    yield from wrap(words, columns, subsequent_indent=_GAP * 2, break_long_words=False, break_on_hyphens=False)


def titled(title: str, parts: Iterable[str | Table]) -> Section:
    """Return a section with a title, which is empty without parts."""
    found = list(parts)
    return [title, *found] if found else []


def render(sections: Iterable[Section], width: int = UNFOLDED, *, ascii_only: bool = False) -> str:
    """Return the sections as text, with an empty line between two; an empty section is left out.

    Tables drop columns (``fit_table``); sentences and the lines of tables are folded to ``width`` columns between
    words. Every line passes ``visible``, so a name or value from the cluster never acts on the terminal.
    """
    width = max(width, _MIN_WIDTH)
    sections = ([_with_short_names(part) for part in section] for section in sections)
    parts = ([line for part in section for line in _part_lines(part, width)] for section in sections)
    lines = [line for part in parts if part for line in ("", *part)]
    return "".join(f"{escape_invisible(line, ascii_only=ascii_only)}\n" for line in lines[1:])


def document(kind: str, body: object) -> dict[str, Any]:
    """Return the body, an object, as a document of that kind."""
    # Through JSON's own types, so that a reader of the dict and a reader of the text see the same (lists, not tuples).
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))
    return {"apiVersion": API_VERSION, "kind": kind, **plain}


def listed(names: Sequence[str], most: int = LISTED) -> str:
    """Return the names, of many the first: ``a, b and 3 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def age_words(seconds: float) -> str:
    """Return the age in the largest unit of which it has two: ``90s``, ``12m``."""
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def sentence(words: str) -> str:
    """Return the words with a capital and a full stop."""
    return f"{words[0].upper()}{words[1:]}."


def _with_short_names(part: str | Table) -> str | Table:
    if isinstance(part, str):
        return shorten_names(part)
    rows = [tuple(cell._replace(text=shorten_names(cell.text)) for cell in row) for row in part.rows]
    return part._replace(rows=rows)


def _part_lines(part: str | Table, width: int) -> Iterable[str]:
    if isinstance(part, Table):
        room = width - len(_GAP)
        return (f"{_GAP}{line}" for line in table_lines(fit_table(part, room), columns=room))
    text = part.lstrip()
    indent = part[: len(part) - len(text)]
    hanging = f"{indent}  " if text.startswith("- ") else indent
    return wrap(text, width, initial_indent=indent, subsequent_indent=hanging, break_long_words=False,
                break_on_hyphens=False)  # fmt: skip
