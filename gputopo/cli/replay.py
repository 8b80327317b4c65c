"""``gputopo replay``: recorded decisions of an extender, replayed offline and compared.

Exit codes: 0 no decision differs; 1 a decision differs; 2 bad input.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import click

from gputopo.cli.output import page_token, token_option
from gputopo.cli.progress import ProgressLine
from gputopo.cli.terminal import exit_with_error, unpacked_lines
from gputopo.process.page_reader import PageError, read_pages
from scheduler_core.extender.decision_record import DecisionFormatError, parse_decision, replay_differences

DIFFERENT = 1
_IF_EMPTY = "no decisions found; expected the file of an extender's option --decisions-file"


class DecisionLines(NamedTuple):
    """Lines of decisions, with the name of their source."""

    name: str
    lines: Iterable[bytes]
    if_empty: str | None = None  # the error if no line follows; None: no error


class _Source(click.File):
    """A file, or the URL of an extender's page and all pages that continue it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).startswith(("http://", "https://")):
            return DecisionLines(
                value, (line for page in read_pages(value, page_token()) for line in page.splitlines())
            )
        file = super().convert(value, param, ctx)
        return DecisionLines(str(value), unpacked_lines(str(value), file), _IF_EMPTY)


@click.command()
@token_option
@click.argument("source", type=_Source("rb"), metavar="FILE|URL")
def replay(source: DecisionLines) -> None:
    """Replay the recorded decisions of an extender.

    It lists the decisions that differ. URL is the page /decisions of an extender, which is read with all its further
    pages. FILE is the file of its option --decisions-file, also packed by gzip; `-` is standard input. After a change
    of version, differences show what the new version decides differently. With the same version, a difference is a
    bug: please report it.

    \b
    Examples:
      gputopo replay http://127.0.0.1:9439/decisions
      gputopo replay /var/log/gputopo/decisions.jsonl
    """
    replayed = different = 0
    try:
        with ProgressLine("replay", unit="decisions") as shown:
            for number, line in enumerate(source.lines, start=1):
                decision = parse_decision(line)
                replayed += 1
                differences = list(replay_differences(decision))
                different += bool(differences)
                if differences:
                    shown.clear()
                for each in differences:
                    click.echo(f"line {number}: pod {decision.pod}, generation {decision.generation}: {each}")
                shown.advance()
    except DecisionFormatError as error:
        exit_with_error(f"{source.name}: line {number}: {error}")
    except PageError as error:
        exit_with_error(str(error))
    if not replayed and source.if_empty is not None:
        exit_with_error(f"{source.name}: {source.if_empty}")
    result = f"{replayed} decisions replayed, {different} differ"
    if different:
        exit_with_error(result, DIFFERENT)
    click.echo(result)
