"""``gputopo replay``: decisions of an extender, made again offline and compared.

Exit codes: 0 all the same; 1 one is decided otherwise now; 2 bad input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import click

from gputopo.process.page_reader import PageError, read_pages
from scheduler_core.extender.decision_record import DecisionFormatError, parse_decision, replay_differences

DIFFERENT, BAD_INPUT = 1, 2


class Lines(NamedTuple):
    """Decisions, and where they are from."""

    name: str
    lines: Iterable[bytes]


class _Source(click.File):
    """A file, or the address of an extender's page, which is read with all pages that continue it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).startswith(("http://", "https://")):
            return Lines(value, (line for page in read_pages(value) for line in page.splitlines()))
        file = super().convert(value, param, ctx)
        return Lines(file.name, file)


@click.command()
@click.argument("source", type=_Source("rb"), metavar="FILE|URL")
def replay(source: Lines) -> None:
    """Make the decisions of FILE again, and say which come out otherwise. `-` is standard input.

    FILE is what an extender writes with --decisions-file. URL is where an extender serves /decisions; all its pages are
    read. After a change of version it tells what the new one would have decided; with the same version a difference is
    a bug worth reporting.

    \b
    Examples:
      gputopo replay http://127.0.0.1:9439/decisions
      gputopo replay /var/log/gputopo/decisions.jsonl
    """
    made = different = 0
    try:
        for number, line in enumerate(source.lines, start=1):
            decision = parse_decision(line)
            made += 1
            found = list(replay_differences(decision))
            different += bool(found)
            for each in found:
                click.echo(f"line {number}: pod {decision.pod}, generation {decision.generation}: {each}")
    except DecisionFormatError as error:
        click.echo(f"gputopo: {source.name}: line {number}: {error}", err=True)
        sys.exit(BAD_INPUT)
    except PageError as error:
        click.echo(f"gputopo: {error}", err=True)
        sys.exit(BAD_INPUT)
    click.echo(f"{made} decisions replayed, {different} differ")
    if different:
        sys.exit(DIFFERENT)
