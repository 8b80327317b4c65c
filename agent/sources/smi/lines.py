"""The lines of a text with their numbers, so that an error can quote a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.sources.errors import ParseError

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUOTED = 120  # characters of a line in a message: a paste can be one line of megabytes


class OutputLine(msgspec.Struct, frozen=True):
    """A line that is not blank."""

    number: int  # from 1
    text: str  # without the white space around it
    indent: int  # columns of white space before it; a tab counts as one


def split_lines(text: str) -> Iterator[OutputLine]:
    """Yield the lines of ``text`` that are not blank."""
    for number, raw in enumerate(text.splitlines(), 1):
        if stripped := raw.strip():
            yield OutputLine(number, stripped, len(raw) - len(raw.lstrip()))


def line_error(line: OutputLine, why: str) -> ParseError:
    """Return the error that quotes a line and says why it is invalid."""
    return ParseError(f"line {line.number}: {line.text[:_QUOTED]!r}: {why}")
