"""The progress of long work: one line on standard error, on a terminal only, removed when the work ends.

It has neither colours nor escape sequences. A pipe, a file and a terminal that cannot overwrite a line
(``TERM=dumb``) get nothing.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Self

LARGE_INPUT = 4 * 1024 * 1024  # bytes; reading less takes a moment
_DELAY_S = 0.5  # work that ends before shows nothing
_PERIOD_S = 0.2
_QUOTED = 60  # characters of the name of a file


class ProgressLine:
    """The progress of one piece of work. As a context manager it removes its line at the end.

    ``total``: the number of steps; None: unknown, and the line counts the steps that are done.
    """

    def __init__(self, work: str, total: int | None = None, unit: str = "") -> None:
        self.detail = ""  # what the work is at
        self._work, self._total, self._unit = work, total, unit
        self._done = self._width = 0
        self._next = time.monotonic() + _DELAY_S
        self._visible = shows_progress()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.clear()

    def advance(self, steps: int = 1) -> None:
        """Count steps, and draw the line now and then."""
        self._done += steps
        if self._visible and time.monotonic() >= self._next:
            self.draw()

    def draw(self) -> None:
        """Draw the line now: for work without steps."""
        if not self._visible:
            return
        text = self._text()[: _columns() - 1]
        _write("\r" + text + " " * (self._width - len(text)))
        self._width = len(text)
        self._next = time.monotonic() + _PERIOD_S

    def clear(self) -> None:
        """Remove the line; other output may follow. The next step draws it again."""
        if self._width:
            _write("\r" + " " * self._width + "\r")
            self._width = 0

    def _text(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        if self._total:
            return f"{self._work}: {min(100, 100 * self._done // self._total)} %{detail}"
        counted = f": {self._done:,} {self._unit}" if self._done else " ..."
        return f"{self._work}{detail}{counted}"


def input_progress(source: str, size: int) -> ProgressLine:
    """Return the progress of decoding an input of ``size`` bytes, drawn at once if it is large."""
    name = ascii(source if source != "-" else "standard input")[1:-1][:_QUOTED]
    shown = ProgressLine(f"reading {name}, {size / 1024**2:.0f} MiB")
    if size >= LARGE_INPUT:
        shown.draw()
    return shown


def shows_progress() -> bool:
    """Return True if standard error is a terminal that can overwrite a line."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        pass  # the terminal is gone; the work goes on
