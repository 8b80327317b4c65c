"""``--watch``: a table that is listed again and again, redrawn on a terminal, appended elsewhere.

It lists, and needs no right to watch. On a large cluster it lists less often: lists take at most a tenth of the time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import click

from gputopo.cli.output import printed_lines

if TYPE_CHECKING:
    from gputopo.render.report import Cell, Table

    Rows = dict[tuple[str, ...], tuple[Cell, ...]]

Key = tuple[str, ...]
_Command = TypeVar("_Command", bound=Callable[..., Any])
_PERIOD_S = 5.0
_SHARE = 10  # the pause after a list is at least 9 times as long as the list took
_CLEAR = "\x1b[H\x1b[J"
_GONE = "gone"


class Watched(NamedTuple):
    """A table to watch."""

    read: Callable[[], Table]  # raises ``KubeError``
    keys: int  # the number of first columns that identify a row
    ages: frozenset[str]  # titles of columns that change with time alone
    if_empty: str
    wide: bool = False  # all columns, also on a narrow terminal


def watch_option(command: _Command) -> _Command:
    """Add ``-w``."""
    return click.option(
        "-w",
        "--watch",
        is_flag=True,
        help="List again every 5 seconds or less often, and print changes; Ctrl-C ends it.",
    )(command)


def check_watch(watch: bool, output: str, source: str | None) -> None:
    """Exit with a usage error where there is nothing to watch, or no table."""
    if watch and source is not None:
        raise click.UsageError("--watch and --from exclude each other: a file does not change")
    if watch and output not in ("table", "wide"):
        raise click.UsageError(f"--watch prints tables: -o table or -o wide, not {output}")


def watch_table(watched: Watched) -> NoReturn:
    """Print the table, and then its changes, until Ctrl-C. An error of the first list is raised."""
    from gputopo.kube.errors import KubeError  # noqa: PLC0415  start-up of all other commands

    show = _redraw if sys.stdout.isatty() else _append
    before: Rows | None = None
    while True:
        started = time.monotonic()
        try:
            table = watched.read()
        except KubeError as error:
            if before is None:
                raise
            click.echo(f"gputopo: {error}; the table was not updated", err=True)
        else:
            rows = _rows_by_key(watched, table)
            if before is None or _lasting(table, rows, watched.ages) != _lasting(table, before, watched.ages):
                show(watched, table, before)
            before = rows
        time.sleep(max(_PERIOD_S, (_SHARE - 1) * (time.monotonic() - started)))


def _rows_by_key(watched: Watched, table: Table) -> Rows:
    return {tuple(cell.text for cell in row[: watched.keys]): row for row in table.rows}


def _lasting(table: Table, rows: Rows, ages: Collection[str]) -> dict[Key, list[str]]:
    """Return the texts of the rows without the columns of ages, which change with time alone."""
    kept = [place for place, title in enumerate(table.titles) if title not in ages]
    return {key: [row[place].text for place in kept] for key, row in rows.items()}


def _redraw(watched: Watched, table: Table, _: object) -> None:
    lines = printed_lines(table, wide=watched.wide) if table.rows else [watched.if_empty]
    columns, height = os.get_terminal_size()
    height -= 1  # -1: the terminal does not know it
    needed = [max(1, -(-len(click.unstyle(each)) // max(1, columns))) for each in lines]  # a terminal wraps wide lines
    if sum(needed) > height > 1:
        fitting = sum(used < height for used in accumulate(needed))
        lines = [*lines[:fitting], f"... {len(lines) - fitting} more lines"]
    click.echo(_CLEAR + "\n".join(lines))


def _append(watched: Watched, table: Table, before: Rows | None) -> None:
    """Print the first table, and later the rows that changed; of a row that is gone, its first columns."""
    from gputopo.render.wording import escape_invisible  # noqa: PLC0415  start-up of all other commands

    if before is None:
        if table.rows:
            click.echo("\n".join(printed_lines(table, wide=watched.wide)))
        else:
            click.echo(watched.if_empty, err=True)
        return
    rows = _rows_by_key(watched, table)
    old = _lasting(table, before, watched.ages)
    changed = [rows[key] for key, cells in _lasting(table, rows, watched.ages).items() if old.get(key) != cells]
    if changed:
        click.echo("\n".join(printed_lines(table._replace(titles=(), rows=changed), wide=watched.wide)))
    for key in before:
        if key not in rows:
            click.echo(escape_invisible("  ".join((*key, _GONE))))
