"""A call that is refused waits once for what may be on its way to our watch."""

from __future__ import annotations

import time
from collections.abc import Iterator

from scheduler_core.verbs import WAIT_S, WAITS, Reply, verbs_app
from tests.scheduler_core.served import serving


def asked(replies: Iterator[Reply], calls: int) -> tuple[list[bytes], float]:
    """The answers to so many calls in a row, and the seconds that all took."""
    app = verbs_app({"filter": lambda _, __: next(replies)}, lambda: None, 100, "", time.monotonic)
    with serving(app) as running:
        begun = time.monotonic()
        return [running.ask("POST", "/filter", b"{}")[1] for _ in range(calls)], time.monotonic() - begun


def test_the_first_ones_are_answered_anew_and_the_others_of_that_moment_at_once() -> None:
    replies = (Reply(200, str(number).encode(), again=True) for number in range(99))

    answers, seconds = asked(replies, WAITS + 2)

    anew = [str(2 * number + 1).encode() for number in range(WAITS)]
    assert answers == [*anew, str(2 * WAITS).encode(), str(2 * WAITS + 1).encode()]
    assert seconds >= WAITS * WAIT_S


def test_what_is_not_refused_never_waits() -> None:
    replies = (Reply(200, str(number).encode()) for number in range(9))

    assert asked(replies, 3)[0] == [b"0", b"1", b"2"]
