"""Concurrent requests for one page compute it once."""

from __future__ import annotations

import asyncio

import pytest

from scheduler_core.runtime.shared_pages import SharedResults


class Work:
    """Counts how often it is done; goes on when it is told to."""

    def __init__(self) -> None:
        self.done = 0
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.done += 1
        await self.go.wait()
        return self.done


def test_all_who_ask_meanwhile_get_the_same_and_later_ones_a_new_one() -> None:
    async def main() -> None:
        shared, work = SharedResults[int](for_s=0.05), Work()
        callers = [asyncio.create_task(shared.get("page", work)) for _ in range(50)]
        await asyncio.sleep(0.1)  # longer than results are kept: the work goes on
        late = asyncio.create_task(shared.get("page", work))
        await asyncio.sleep(0)
        callers[0].cancel()
        work.go.set()

        assert await asyncio.gather(*callers[1:], late) == [1] * 50
        await asyncio.sleep(0.2)
        assert await shared.get("page", work) == 2
        assert await shared.get("another page", work) == 3

    asyncio.run(main())


def test_few_results_are_kept() -> None:
    async def main() -> None:
        shared, work = SharedResults[int](for_s=60, max_results=2), Work()
        work.go.set()
        found = [await shared.get(number, work) for number in (1, 2, 3, 3, 2, 1)]

        assert found == [1, 2, 3, 3, 2, 4]

    asyncio.run(main())


def test_all_callers_get_an_error() -> None:
    async def fail() -> int:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def main() -> None:
        shared = SharedResults[int]()
        callers = [asyncio.create_task(shared.get("page", fail)) for _ in range(3)]
        for each in callers:
            with pytest.raises(ZeroDivisionError):
                await each

    asyncio.run(main())
