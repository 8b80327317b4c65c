"""The stream of changes: order, missed messages, the end, and who sees names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import pytest

from scheduler_core.ui.streams import MAX_STREAMS, REFRESH, Streams


async def next_event(stream: AsyncIterator[bytes]) -> bytes:
    return await asyncio.wait_for(anext(stream), 5)


async def opened(
    streams: Streams, last: int | None = None, answers: Sequence[bool | None] = (), user: str = ""
) -> AsyncGenerator[bytes]:
    """A stream. ``answers``: whether the viewer may see all names, before each message; afterwards: yes."""
    left = list(answers)

    async def sees_all() -> bool | None:
        return left.pop(0) if left else True

    stream = streams.follow(last, sees_all, user)
    assert await next_event(stream) == b"retry: 3000\n\n"
    return stream


def test_all_viewers_get_each_message_in_order() -> None:
    async def run() -> None:
        streams = Streams()
        viewers = [await opened(streams) for _ in range(3)]
        streams.send({"a": "1"})
        streams.send({"a": "2"})
        for viewer in viewers:
            assert await next_event(viewer) == b'id: 1\ndata: {"parts":{"a":"1"}}\n\n'
            assert await next_event(viewer) == b'id: 2\ndata: {"parts":{"a":"2"}}\n\n'

    asyncio.run(run())


def test_a_viewer_that_comes_back_gets_what_it_missed_or_fetches_the_page() -> None:
    async def run() -> None:
        streams = Streams()
        for number in range(1, 101):
            streams.send({"n": str(number)})
        near, far, other = await opened(streams, 99), await opened(streams, 3), await opened(streams, 5000)
        assert await next_event(near) == b'id: 100\ndata: {"parts":{"n":"100"}}\n\n'
        assert await next_event(far) == b"id: 100\ndata: " + REFRESH + b"\n\n"
        assert await next_event(other) == b"id: 100\ndata: " + REFRESH + b"\n\n"  # of a server before this one

    asyncio.run(run())


def test_a_viewer_who_may_not_see_all_names_gets_none() -> None:
    async def run() -> None:
        streams = Streams()
        viewer = await opened(streams, answers=[False])
        streams.send({"row": "secret"})
        assert await next_event(viewer) == b"id: 1\ndata: " + REFRESH + b"\n\n"

    asyncio.run(run())


def test_a_stream_ends_with_the_right_of_its_viewer() -> None:
    async def run() -> None:
        streams = Streams()
        viewer = await opened(streams, answers=[True, False, None])
        for number in range(3):
            streams.send({"row": f"secret-{number}"})
        assert await next_event(viewer) == b'id: 1\ndata: {"parts":{"row":"secret-0"}}\n\n'
        assert await next_event(viewer) == b"id: 2\ndata: " + REFRESH + b"\n\n"
        with pytest.raises(StopAsyncIteration):
            await next_event(viewer)
        assert streams.open == 0

    asyncio.run(run())


def test_a_user_with_few_streams_takes_one_of_the_user_with_the_most() -> None:
    async def run() -> None:
        streams = Streams()
        many = [await opened(streams, user="tenant-a") for _ in range(MAX_STREAMS - 1)]
        other = await opened(streams, user="tenant-b")
        assert streams.is_full("tenant-a")
        assert not streams.is_full("tenant-b")
        assert not streams.is_full("tenant-c")
        opened_last = await opened(streams, user="tenant-c")
        assert streams.open == MAX_STREAMS
        with pytest.raises(StopAsyncIteration):
            await next_event(many[0])  # the oldest of the user with the most
        streams.send({"a": "1"})
        for viewer in (*many[1:], other, opened_last):
            assert await next_event(viewer) == b'id: 1\ndata: {"parts":{"a":"1"}}\n\n'
        for viewer in (*many, other, opened_last):
            await viewer.aclose()
        assert streams.open == 0
        assert not streams.is_full("tenant-a")

    asyncio.run(run())


def test_streams_end_with_the_server() -> None:
    async def run() -> None:
        streams = Streams()
        viewer = await opened(streams)
        assert streams.open == 1
        waiting = asyncio.create_task(anext(viewer, None))
        await asyncio.sleep(0)
        streams.close()
        assert await asyncio.wait_for(waiting, 5) is None
        assert streams.open == 0

    asyncio.run(run())
