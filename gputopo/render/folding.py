"""Folding of painted lines for narrow terminals: between words only.

A number and its unit are one word here, and so are the lanes of an NVLink and its peer (``NV2 → GPU3``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gputopo.render.wording import Cell

MIN_WIDTH = 20  # columns; a narrower terminal gets lines of this width
_WORD = re.compile(r"(\s*)(\S+(?: (?:(?:[GMK]i?B|[GM]b/s|GB/s|each)(?![\w/])|(?:→|->) \S+))*)")


def folded_line(cells: Sequence[Cell], width: int | None, hanging: Sequence[Cell] = ()) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells of a line as lines of at most ``width`` columns; None: as one line.

    ``hanging`` begins each further line. A word that is longer than a line stays whole, on a line of its own.
    """
    if width is None or text_length(cells) <= width:
        yield tuple(cells)
        return
    line: list[Cell] = []
    begin = length = 0  # cells and columns that are no words of this line
    ending = ""  # the blanks at the end of the last cell
    for role, text in cells:
        for gap, word in _WORD.findall(ending + text):
            if len(line) > begin and length + len(gap) + len(word) > width:
                yield tuple(line)
                line, begin, length = [*hanging], len(hanging), text_length(hanging)
                gap = ""  # noqa: PLW2901  the gap is where the line ends
            line.append((role, gap + word))
            length += len(gap) + len(word)
        ending = (ending + text)[len((ending + text).rstrip()) :]
    yield tuple(line)


def text_length(cells: Sequence[Cell]) -> int:
    """Return the number of columns of the cells."""
    return sum(len(text) for _, text in cells)
