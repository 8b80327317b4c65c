"""One piece of work at a time, and users take turns: no user waits for all the requests of another user."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MAX_WAITING = 16  # of one user; a report takes up to two seconds


class TooManyWaitingError(RuntimeError):
    """The user has too many requests that wait."""


class Turns:
    """The requests that wait, by user. For one event loop."""

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next user is first
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
        queue = self._waiting.setdefault(user, deque())
        if len(queue) >= self._max_waiting:
            raise TooManyWaitingError
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(user, turn)
            else:  # its turn had just come
                self._give_next()
            raise

    def _leave(self, user: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(user)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[user]

    def _give_next(self) -> None:
        """Give the turn to the next user; the user goes to the end of the line."""
        while self._waiting:
            user = next(iter(self._waiting))
            queue = self._waiting.pop(user)
            turn = queue.popleft()
            if queue:
                self._waiting[user] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._is_busy = False
