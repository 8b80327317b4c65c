"""Prints a table to a terminal, or to whatever reads one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gputopo.cluster.tables import Table

Paint = Callable[[str, str], str]  # (role, text) -> text with colour
GAP = "  "


def table_lines(table: Table, paint: Paint) -> Iterator[str]:
    """In columns, as kubectl prints them: never folded or cut. By hand, for a cluster has pods by the ten thousand."""
    widths = [
        max(len(title), *(len(row[place].text) for row in table.rows), 0) for place, title in enumerate(table.titles)
    ]
    yield GAP.join(title.ljust(width) for title, width in zip(table.titles, widths, strict=True)).rstrip()
    for row in table.rows:
        # Padded before it is coloured: escapes have a length and no width.
        cells = [(cell.role, cell.text.ljust(width)) for cell, width in zip(row, widths, strict=True)]
        yield GAP.join(paint(role, text) if role else text for role, text in cells).rstrip()
