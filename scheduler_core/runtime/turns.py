"""One piece of work at a time, and users take turns: no user waits for all the requests of another user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from scheduler_core.runtime.turn_queue import TurnQueue

MAX_WAITING = 16  # of one user; a report takes up to two seconds


class TooManyWaitingError(RuntimeError):
    """The user has too many requests that wait."""


class Turns:
    """The requests that wait, by user. For one event loop."""

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._waiting = TurnQueue[asyncio.Future[None]]()
        self._is_busy = False

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn of this user. Raises ``TooManyWaitingError`` at once."""
        if self._is_busy:
            await self._wait(user)
        self._is_busy = True
        try:
            yield
        finally:
            self._give_next()

    async def _wait(self, user: str) -> None:
        if self._waiting.count_items(user) >= self._max_waiting:
            raise TooManyWaitingError
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(user, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(user, turn)
            else:  # its turn had just come
                self._give_next()
            raise

    def _give_next(self) -> None:
        """Give the turn to the next user."""
        while (turn := self._waiting.pop_next()) is not None:
            if not turn.done():
                turn.set_result(None)
                return
        self._is_busy = False
