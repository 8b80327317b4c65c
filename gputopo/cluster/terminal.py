"""Prints a table to a terminal, or to whatever reads one."""

from __future__ import annotations

from typing import TextIO

from gputopo.cluster.tables import Table

_NO_TERMINAL = 100_000  # columns: what is read by a program is never folded


def print_table(table: Table, stream: TextIO) -> None:
    """In columns, as kubectl prints them; folded and with colour only where the stream is a terminal."""
    from rich.console import Console  # noqa: PLC0415  150 ms, and only tables need it
    from rich.table import Table as Columns  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=stream, width=None if stream.isatty() else _NO_TERMINAL, highlight=False)
    columns = Columns(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0), header_style="")
    for title in table.titles:
        columns.add_column(title, overflow="fold")
    for row in table.rows:
        columns.add_row(*(Text(cell.text, style="red" if cell.role == "bad" else "") for cell in row))
    with console.capture() as printed:
        console.print(columns)
    stream.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))
