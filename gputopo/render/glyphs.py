"""The symbols of text output, in Unicode and in ASCII."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gputopo.render.wording import escape_invisible

if TYPE_CHECKING:
    from collections.abc import Iterable


class Glyphs(msgspec.Struct, frozen=True):
    """A set of symbols."""

    ascii_only: bool
    branch: str  # to a child that is not the last
    last: str
    pipe: str  # below a child that is not the last
    dot: str  # between facts
    arrow: str
    times: str
    alone: str  # the mark of an island of one

    def joined(self, facts: Iterable[str]) -> str:
        """Return facts on one line."""
        return f" {self.dot} ".join(facts)

    def shown(self, text: str) -> str:
        """Return a text from outside, escaped for these symbols."""
        return escape_invisible(text, ascii_only=self.ascii_only)


UNICODE = Glyphs(
    ascii_only=False,
    branch="├─ ",
    last="└─ ",
    pipe="│  ",
    dot="·",
    arrow="→",
    times="\N{MULTIPLICATION SIGN}",
    alone="·",
)
ASCII = Glyphs(ascii_only=True, branch="|- ", last="`- ", pipe="|  ", dot="-", arrow="->", times="x", alone="-")
