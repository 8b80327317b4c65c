"""The lines of a text, with their numbers, so that a refusal can quote the one it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.sources.smi.errors import ParseError

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUOTED = 120  # characters of a line that a message shows: a paste can be one line of megabytes


class Line(msgspec.Struct, frozen=True):
    """A line that is not blank."""

    number: int  # from 1
    text: str  # without the white space around it
    indent: int  # columns of white space before it; a tab counts as one


def lines(text: str) -> Iterator[Line]:
    """The lines of ``text`` that are not blank."""
    for number, raw in enumerate(text.splitlines(), 1):
        if stripped := raw.strip():
            yield Line(number, stripped, len(raw) - len(raw.lstrip()))


def refuse(line: Line, why: str) -> ParseError:
    """The error that quotes a line and says why it cannot be understood."""
    return ParseError(f"line {line.number}: {line.text[:_QUOTED]!r}: {why}")
