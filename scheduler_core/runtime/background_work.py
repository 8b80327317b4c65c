"""Work of the event loop that is done in short pieces between calls, as long as something is left to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scheduler_core.runtime.calls_in_progress import LONGEST_WAIT_S, CallsInProgress


class BackgroundWork:
    """Repeats pieces of one kind of work. For the thread of the event loop."""

    def __init__(self, calls: CallsInProgress, do_piece: Callable[[], bool], pause_s: float) -> None:
        """``do_piece``: returns whether something is left. ``pause_s``: seconds between two pieces."""
        self._calls, self._do_piece, self._pause_s = calls, do_piece, pause_s
        self._running = False
        self._waited_s = 0.0  # for calls

    def start(self) -> None:
        """Do a piece now, and the others later, unless this is going on already."""
        if not self._running:
            self._continue()

    def start_later(self) -> None:
        """Do all pieces later, unless this is going on already."""
        if not self._running:
            self._continue_later()
            self._running = True

    def _continue(self) -> None:
        self._running = self._waited_s < LONGEST_WAIT_S and self._calls.come_first
        if self._running:
            self._waited_s += self._pause_s
        else:
            self._waited_s = 0.0
            with self._calls.piece_of_work():
                self._running = self._do_piece()
        if self._running:
            self._continue_later()

    def _continue_later(self) -> None:
        asyncio.get_running_loop().call_later(self._pause_s, self._continue)
