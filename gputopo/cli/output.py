"""Print tables, JSON and YAML documents and text as wide as the terminal; fetch the pages of extender and planner."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from gputopo.cli.terminal import NO_CLUSTER, exit_with_error, has_colours, supports_unicode, terminal_width, write_out

if TYPE_CHECKING:
    from gputopo.kube.objects import Unreadable
    from gputopo.render.report import Table

Command = TypeVar("Command", bound=Callable[..., Any])
_TOKEN = "gputopo.page-token"  # noqa: S105  the key of the token in the context
_NO_HEADERS = "gputopo.no-headers"
_MAX_TOKEN = 64 * 2**10
_MAX_LISTED = 10  # objects that cannot be decoded
_WIDTH = 120  # columns, where standard output is not a terminal


def print_table(table: Callable[[], Any], has_rows: bool, if_empty: str, *, wide: bool = False) -> None:
    """Print a table as ``printed_lines``; if it has no rows, print ``if_empty`` to standard error."""
    if not has_rows:
        click.echo(if_empty, err=True)
        return
    click.echo("\n".join(printed_lines(table(), wide=wide)))


def printed_lines(table: Table, *, wide: bool = False) -> list[str]:
    """Return the lines of a table: on a terminal as wide as it, elsewhere and with ``wide`` all columns, unfolded."""
    from gputopo.render.report import fit_table, table_lines  # noqa: PLC0415  start-up of all other commands
    from gputopo.render.wording import MAX_NAME, escape_invisible, shorten_names  # noqa: PLC0415

    width = None if wide else terminal_width()
    colour = has_colours()
    # Tables of large clusters have 100,000 cells, nearly all of them short and printable.
    rows = [
        row
        if len(line := "".join([cell.text for cell in row])) <= MAX_NAME and line.isprintable()
        else tuple(cell._replace(text=escape_invisible(shorten_names(cell.text))) for cell in row)
        for row in table.rows
    ]
    table = table._replace(rows=rows)
    fitted = table if width is None else fit_table(table, width)
    ctx = click.get_current_context(silent=True)
    if ctx is not None and ctx.meta.get(_NO_HEADERS):
        fitted = fitted._replace(titles=())
    return [*table_lines(fitted, lambda _, text: click.style(text, fg="red") if colour else text, width)]


def output_option(*formats: str) -> Callable[[Command], Command]:
    """Return the option ``-o``; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats, case_sensitive=False),
        default=formats[0],
        show_default=True,
        help="What to print.",
    )


def no_headers_option(command: Command) -> Command:
    """Add ``--no-headers``, which ``print_table`` obeys within the command."""

    def set_flag(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.meta[_NO_HEADERS] = value

    return click.option(
        "--no-headers",
        is_flag=True,
        expose_value=False,
        callback=set_flag,
        help="Print tables without the header line.",
    )(command)


def print_document(document: dict[str, Any], output: str) -> None:
    """Print a document; ``output`` is "json" or "yaml"."""
    import json  # noqa: PLC0415  start-up of all other commands

    if output == "json":
        click.echo(json.dumps(document, indent=2))
        return
    import yaml  # noqa: PLC0415  20 ms, and only this output needs it

    click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=1_000_000), nl=False)


def token_option(command: Command) -> Command:
    """Add ``--token-file``, whose token ``page_token`` returns within the command."""
    return click.option(
        "--token-file",
        type=click.File("r"),
        metavar="FILE|-",
        envvar="GPUTOPO_TOKEN_FILE",
        expose_value=False,
        callback=_keep_token,
        help="A bearer token for the pages of a program with --pages authorized.  [GPUTOPO_TOKEN_FILE]",
    )(command)


def _keep_token(ctx: click.Context, _: click.Parameter, file: IO[str] | None) -> None:
    if file is not None:
        try:
            ctx.meta[_TOKEN] = file.read(_MAX_TOKEN).strip()
        except (UnicodeDecodeError, OSError) as error:
            if file is not sys.stdin:
                file.close()  # click closes it only if the command starts
            what = "it is not text" if isinstance(error, UnicodeDecodeError) else error.strerror
            raise click.BadParameter(f"not a file with a bearer token: {what}") from None


def page_token() -> str | None:
    """Return the token of ``--token-file``; None: not given."""
    ctx = click.get_current_context(silent=True)
    return None if ctx is None else ctx.meta.get(_TOKEN)


def fetch_pages(url: str) -> Iterator[bytes]:
    """Yield the pages of a running extender or planner. Exit with an error if they cannot be fetched."""
    from gputopo.process.page_reader import PageError, read_pages  # noqa: PLC0415  start-up of all other commands

    try:
        yield from read_pages(url, page_token())
    except PageError as error:
        exit_with_error(str(error), NO_CLUSTER)


def fetch_page(url: str) -> bytes:
    """Return the body of a page that has no continuation. Exit with an error if it cannot be fetched."""
    return b"".join(fetch_pages(url))


def print_text(text: Callable[[int, bool], str]) -> None:
    """Print ``text(columns, ascii_only)``."""
    write_out(text(terminal_width() or _WIDTH, not supports_unicode()))


def print_unreadable(found: Sequence[Unreadable]) -> None:
    """Print on standard error the objects that are left out."""
    from gputopo.render.wording import escape_invisible, shorten_names  # noqa: PLC0415  start-up of all other commands

    messages = dict.fromkeys(escape_invisible(shorten_names(str(each))) for each in found)
    for each in list(messages)[:_MAX_LISTED]:
        click.echo(f"gputopo: {each}; it is left out", err=True)
    if len(messages) > _MAX_LISTED:
        click.echo(f"gputopo: {len(messages) - _MAX_LISTED} more objects cannot be read; they are left out", err=True)
