"""Server-sent events: one message for each change, built once and sent to all viewers.

A viewer that reads slowly misses messages and is told to fetch the page again; nothing is queued for it. Where all
streams are in use, a user with fewer of them gets one of the user with the most. Its page then refreshes itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import orjson

MAX_STREAMS = 500
_KEPT = 32  # messages, for viewers that reconnect
_COMMENT_S = 15.0  # proxies close streams that are silent for a minute
REFRESH = b'{"refresh":true}'
SeesAll = Callable[[], Awaitable[bool | None]]  # whether the viewer may see all names; None: no page any more


class Streams:
    """The messages, and the viewers that wait for them. For one event loop."""

    def __init__(self) -> None:
        self._of_users: dict[str, dict[object, None]] = {}  # open streams, oldest first; "": viewers without a token
        self._messages: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self._newest = 0
        self._woken = asyncio.Event()
        self._closed = False

    @property
    def open(self) -> int:
        """Return the number of open streams."""
        return sum(map(len, self._of_users.values()))

    def is_full(self, user: str) -> bool:
        """Return whether this user gets no further stream."""
        return self.open >= MAX_STREAMS and len(self._largest()) < len(self._of_users.get(user, ())) + 2

    def _largest(self) -> dict[object, None]:
        """Return the streams of the user with the most."""
        return max(self._of_users.values(), key=len)

    def send(self, parts: Mapping[str, str] | None) -> None:
        """Send new parts of the page, by element id; None: the page must be fetched again."""
        self._newest += 1
        body = REFRESH if parts is None else orjson.dumps({"parts": parts})
        self._messages.append((self._newest, body))
        self.wake()

    def wake(self) -> None:
        """Let every viewer look for messages, and for the end."""
        self._woken.set()
        self._woken = asyncio.Event()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self.wake()

    async def follow(self, last: int | None, sees_all: SeesAll, user: str = "") -> AsyncGenerator[bytes]:
        """Yield the events after the message ``last`` (None: from now on), while the viewer may see the pages.

        ``sees_all`` is called before each message: a viewer's rights may end while its stream is open.
        """
        loop = asyncio.get_running_loop()
        at, said = self._newest if last is None else last, loop.time()
        if self.open >= MAX_STREAMS:
            largest = self._largest()
            del largest[next(iter(largest))]
            self.wake()
        stream, own = object(), self._of_users.setdefault(user, {})
        own[stream] = None
        try:
            yield b"retry: 3000\n\n"
            while not self._closed and stream in own:
                for number, body in self._after(at):
                    everything = await sees_all()
                    if everything is None:
                        return
                    yield _event(number, body if everything else REFRESH)
                    at, said = number, loop.time()
                if loop.time() - said > _COMMENT_S:
                    yield b": still here\n\n"
                    said = loop.time()
                await self._wait()
        finally:
            own.pop(stream, None)
            if not own and self._of_users.get(user) is own:
                del self._of_users[user]

    def _after(self, at: int) -> list[tuple[int, bytes]]:
        """Return the messages after this one; only one to fetch the page again if some were missed."""
        if at == self._newest:
            return []
        oldest = self._messages[0][0] if self._messages else self._newest + 1
        if at > self._newest or at < oldest - 1:
            return [(self._newest, REFRESH)]
        return [each for each in self._messages if each[0] > at]

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._woken.wait(), _COMMENT_S)
        except TimeoutError:
            return


def _event(number: int, body: bytes) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (number, body)
