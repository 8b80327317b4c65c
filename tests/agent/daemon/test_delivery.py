"""Delivering one value to somebody who is not always there."""

from __future__ import annotations

import pytest

from agent.daemon.delivery import Delivery
from agent.daemon.schedule import Schedule
from agent.publish import PublishError

INF = float("inf")


class Taker:
    """Takes values, unless it is away. ``taken`` are those that it got, ``asked`` counts all attempts."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.asked = 0
        self.away: PublishError | None = None

    def take(self, value: str) -> bool:
        self.asked += 1
        if self.away is not None:
            raise self.away
        self.taken.append(value)
        return True


@pytest.fixture
def taker() -> Taker:
    return Taker()


def delivery(taker: Taker, refresh_s: float = 300.0) -> Delivery[str, bool]:
    return Delivery(taker.take, Schedule("gpu-7"), refresh_s, str.lower)


def drive(delivery: Delivery[str, bool], start: float, end: float) -> None:
    """Let the time pass, attempting whatever is due."""
    now = start
    while now < end:
        if delivery.due() <= now:
            delivery.attempt(now)
        now += 0.5


def test_there_is_nothing_to_do_before_something_is_wanted(taker: Taker) -> None:
    assert delivery(taker).due() == INF


def test_what_is_wanted_is_sent_at_once_and_then_only_refreshed(taker: Taker) -> None:
    each = delivery(taker)
    each.want("A", 100.0)
    assert each.due() == -INF

    drive(each, 100.0, 100.0 + 3 * 300)

    assert taker.taken[:1] == ["A"]
    assert taker.asked == 5  # at 100 s, somewhere in the first 300 s after it, and every 270 to 330 s from there
    assert each.behind_since is None


def test_a_value_that_is_the_same_in_essence_waits_for_the_refresh(taker: Taker) -> None:
    each = delivery(taker, refresh_s=INF)
    each.want("A", 0.0)
    drive(each, 0.0, 1.0)

    each.want("a", 1.0)

    assert each.due() == INF
    assert each.behind_since is None


def test_an_hour_away_is_caught_up_with_one_value(taker: Taker) -> None:
    each = delivery(taker)
    each.want("A", 0.0)
    drive(each, 0.0, 1.0)
    taker.away = PublishError("connection refused")
    for minute in range(60):
        each.want(f"change {minute}", 60.0 * minute)
        drive(each, 60.0 * minute, 60.0 * (minute + 1))
    tried = taker.asked

    assert (each.error, each.confirmed, each.behind_since) == ("connection refused", "A", 0.0)
    assert 60 < tried < 150  # backed off to one attempt in 30 to 60 s
    taker.away = None
    drive(each, 3600.0, 3660.0)
    assert taker.taken == ["A", "change 59"]
    assert (each.error, each.behind_since) == (None, None)


def test_a_server_that_says_when_to_come_back_is_obeyed(taker: Taker) -> None:
    each = delivery(taker)
    taker.away = PublishError("too many requests", retry_after=30.0)
    each.want("A", 0.0)
    each.attempt(0.0)

    assert each.due() == 30.0


def test_after_it_was_taken_the_next_failure_backs_off_from_the_start(taker: Taker) -> None:
    each = delivery(taker)
    each.want("A", 0.0)
    taker.away = PublishError("no")
    drive(each, 0.0, 500.0)
    taker.away = None
    drive(each, 500.0, 600.0)
    taker.away = PublishError("no")
    each.want("B", 600.0)
    each.attempt(600.0)

    assert 600.5 <= each.due() <= 601.0
