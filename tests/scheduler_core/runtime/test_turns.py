"""Turns of users: one user's requests delay another user by one request."""

from __future__ import annotations

import asyncio

import pytest

from scheduler_core.runtime.turns import TooManyWaitingError, Turns


async def _ask(turns: Turns, user: str, served: list[str], gate: asyncio.Event) -> None:
    async with turns.turn(user):
        served.append(user)
        await gate.wait()


async def _start(*tasks: asyncio.Task[None]) -> None:
    for _ in tasks:
        await asyncio.sleep(0)


def test_a_user_waits_for_one_request_of_each_other_user() -> None:
    async def run() -> list[str]:
        turns, served, gate = Turns(), list[str](), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for user in ("a", "a", "a", "a", "b", "c", "b"):
                await _start(tasks.create_task(_ask(turns, user, served, gate)))
            gate.set()
        return served

    assert asyncio.run(run()) == ["a", "a", "b", "c", "a", "b", "a"]


def test_requests_above_the_limit_of_a_user_are_refused_and_others_are_not() -> None:
    async def run() -> list[str]:
        turns, served, gate = Turns(max_waiting=2), list[str](), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                await _start(tasks.create_task(_ask(turns, "a", served, gate)))
            with pytest.raises(TooManyWaitingError):
                await _ask(turns, "a", served, gate)
            await _start(tasks.create_task(_ask(turns, "b", served, gate)))
            gate.set()
        await _ask(turns, "a", served, gate)
        return served

    assert asyncio.run(run()) == ["a", "a", "b", "a", "a"]


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_cancelled_requests_do_not_stop_other_requests(cancelled: int) -> None:
    async def run() -> list[str]:
        turns, served, gate = Turns(), list[str](), asyncio.Event()
        running = [asyncio.create_task(_ask(turns, user, served, gate)) for user in ("a", "b", "c")]
        await _start(*running)
        running[cancelled].cancel()
        await asyncio.gather(running[cancelled], return_exceptions=True)
        gate.set()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.wait_for(_ask(turns, "d", served, gate), 10)
        return served

    left = [user for number, user in enumerate("abc") if number != cancelled or number == 0]
    assert asyncio.run(run()) == [*left, "d"]


def test_a_request_cancelled_when_its_turn_has_come_passes_the_turn_on() -> None:
    async def run() -> list[str]:
        turns, served, gate = Turns(), list[str](), asyncio.Event()
        running = [asyncio.create_task(_ask(turns, user, served, gate)) for user in ("a", "b", "c")]
        await _start(*running)
        running[0].add_done_callback(lambda _: running[1].cancel())
        gate.set()
        await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 10)
        await asyncio.wait_for(_ask(turns, "d", served, gate), 10)
        return served

    assert asyncio.run(run())[-2:] == ["c", "d"]
