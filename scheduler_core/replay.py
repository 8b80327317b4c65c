"""``gputopo replay``: decisions of an extender, made again offline and compared.

Exit codes: 0 all the same; 1 one is decided otherwise now; 2 bad input.
"""

from __future__ import annotations

import sys
from typing import BinaryIO

import click

from scheduler_core.decision_document import DocumentError, differences, read

DIFFERENT, BAD_INPUT = 1, 2


@click.command()
@click.argument("file", type=click.File("rb"))
def replay(file: BinaryIO) -> None:
    """Make the decisions of FILE again, and say which come out otherwise. `-` is standard input.

    FILE is what an extender serves at /decisions, or writes with --decisions-file. After a change of version it tells
    what the new one would have decided; with the same version a difference is a bug worth reporting.

    \b
    Examples:
      curl -s localhost:9439/decisions | gputopo replay -
      gputopo replay /var/log/gputopo/decisions.jsonl
    """
    made = different = 0
    try:
        for number, line in enumerate(file, start=1):
            decision = read(line)
            made += 1
            found = list(differences(decision))
            different += bool(found)
            for each in found:
                click.echo(f"line {number}: pod {decision.pod}, generation {decision.generation}: {each}")
    except DocumentError as error:
        click.echo(f"gputopo: {file.name}: line {number}: {error}", err=True)
        sys.exit(BAD_INPUT)
    click.echo(f"{made} decisions made again, {different} came out otherwise")
    if different:
        sys.exit(DIFFERENT)
