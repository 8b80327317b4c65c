"""Delivery of one value to a receiver that is sometimes unavailable."""

from __future__ import annotations

import pytest

from agent.daemon.delivery import Delivery
from agent.daemon.schedule import NodeSchedule
from agent.publish import PublishError

INF = float("inf")


class FakeReceiver:
    """Receives values, unless it is away. ``received`` are the values, ``attempts`` counts all calls."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.attempts = 0
        self.away: PublishError | None = None

    def receive(self, value: str) -> bool:
        self.attempts += 1
        if self.away is not None:
            raise self.away
        self.received.append(value)
        return True


@pytest.fixture
def taker() -> FakeReceiver:
    return FakeReceiver()


def delivery(taker: FakeReceiver, refresh_s: float = 300.0) -> Delivery[str, bool]:
    return Delivery(taker.receive, NodeSchedule("gpu-7"), refresh_s, str.lower)


def drive(delivery: Delivery[str, bool], start: float, end: float) -> None:
    """Let the time pass and make every attempt that is due."""
    now = start
    while now < end:
        if delivery.next_attempt_at() <= now:
            delivery.attempt(now)
        now += 0.5


def test_nothing_is_due_before_a_value_is_set(taker: FakeReceiver) -> None:
    assert delivery(taker).next_attempt_at() == INF


def test_a_value_is_sent_at_once_and_then_only_refreshed(taker: FakeReceiver) -> None:
    each = delivery(taker)
    each.set_wanted("A", 100.0)
    assert each.next_attempt_at() == -INF

    drive(each, 100.0, 100.0 + 3 * 300)

    assert taker.received[:1] == ["A"]
    assert taker.attempts == 5  # at 100 s, somewhere in the first 300 s after it, and every 270 to 330 s from there
    assert each.pending_since is None


def test_a_value_with_equal_compared_fields_waits_for_the_refresh(taker: FakeReceiver) -> None:
    each = delivery(taker, refresh_s=INF)
    each.set_wanted("A", 0.0)
    drive(each, 0.0, 1.0)

    each.set_wanted("a", 1.0)

    assert each.next_attempt_at() == INF
    assert each.pending_since is None


def test_after_an_outage_of_an_hour_one_value_is_sent(taker: FakeReceiver) -> None:
    each = delivery(taker)
    each.set_wanted("A", 0.0)
    drive(each, 0.0, 1.0)
    taker.away = PublishError("connection refused")
    for minute in range(60):
        each.set_wanted(f"change {minute}", 60.0 * minute)
        drive(each, 60.0 * minute, 60.0 * (minute + 1))
    tried = taker.attempts

    assert (each.error, each.confirmed, each.pending_since) == ("connection refused", "A", 0.0)
    assert 60 < tried < 150  # backed off to one attempt in 30 to 60 s
    taker.away = None
    drive(each, 3600.0, 3660.0)
    assert taker.received == ["A", "change 59"]
    assert (each.error, each.pending_since) == (None, None)


def test_retry_after_is_respected(taker: FakeReceiver) -> None:
    each = delivery(taker)
    taker.away = PublishError("too many requests", retry_after=30.0)
    each.set_wanted("A", 0.0)
    each.attempt(0.0)

    assert each.next_attempt_at() == 30.0


def test_after_a_success_back_off_starts_again(taker: FakeReceiver) -> None:
    each = delivery(taker)
    each.set_wanted("A", 0.0)
    taker.away = PublishError("no")
    drive(each, 0.0, 500.0)
    taker.away = None
    drive(each, 500.0, 600.0)
    taker.away = PublishError("no")
    each.set_wanted("B", 600.0)
    each.attempt(600.0)

    assert 600.5 <= each.next_attempt_at() <= 601.0
