"""Other threads wait while the loop works, for a limited time."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from scheduler_core.runtime.calls_in_progress import LONGEST_WAIT_S, WORK_SHARE, CallPause, CallsInProgress


def test_a_call_comes_first_for_a_limited_time() -> None:
    now = [0.0]
    calls = CallsInProgress(lambda: now[0])
    calls.begin("slow client")
    now[0] = 0.049

    assert calls.come_first
    now[0] = 0.051
    assert not calls.come_first
    assert calls.wait_until_idle(0)


def test_other_threads_wait_for_calls_and_for_pieces_of_work() -> None:
    calls = CallsInProgress(lambda: 0.0)
    assert calls.wait_until_idle(0)

    calls.begin("one")
    calls.begin("other")
    calls.end("one")
    assert not calls.wait_until_idle(0)
    with calls.waiting():
        assert calls.wait_until_idle(0)
        with calls.piece_of_work():
            assert not calls.wait_until_idle(0)
        assert calls.wait_until_idle(0)
    assert not calls.wait_until_idle(0)

    with calls.piece_of_work():
        calls.end("other")
        assert not calls.wait_until_idle(0)
    assert calls.wait_until_idle(0)


def test_an_error_ends_a_piece_of_work() -> None:
    calls = CallsInProgress()

    with pytest.raises(ZeroDivisionError), calls.piece_of_work():
        _ = 1 // 0

    assert calls.wait_until_idle(0)


def test_a_thread_works_again_when_the_call_ends() -> None:
    calls = CallsInProgress()
    calls.begin("connection")
    order: list[str] = []

    def work() -> None:
        for _ in range(50):  # each waits in vain for 25 ms at most
            if "ended" in order:
                break
            pause()
        order.append("worked")

    pause = CallPause(calls)
    thread = threading.Thread(target=work)
    thread.start()
    order.append("ended")
    calls.end("connection")
    thread.join(10)

    assert order == ["ended", "worked"]


class _EndlessCall(CallsInProgress):
    """Notes each wait, which ends at its timeout."""

    def __init__(self, now: list[float]) -> None:
        super().__init__(lambda: now[0])
        self._now = now
        self.waited: list[float] = []

    def wait_until_idle(self, timeout_s: float) -> bool:
        self._now[0] += timeout_s
        self.waited.append(timeout_s)
        return False


def test_a_thread_that_waited_in_vain_gets_a_fifth_of_the_time() -> None:
    """A call that never ends: each piece of the thread's own work takes 1 ms."""
    now, worked = [0.0], 0.0
    calls = _EndlessCall(now)
    pause = CallPause(calls, lambda: now[0])

    while now[0] < 10.0:
        pause()
        now[0] += 0.001
        worked += 0.001

    assert set(calls.waited) == {LONGEST_WAIT_S}
    assert worked / now[0] == pytest.approx(WORK_SHARE / (1 + WORK_SHARE), rel=0.2)


def test_each_thread_has_its_own_time_to_work() -> None:
    calls = _EndlessCall([0.0])
    pause = CallPause(calls, lambda: 0.0)
    pause()
    pause()

    assert len(calls.waited) == 1
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pause).result()

    assert len(calls.waited) == 2


def test_a_thread_does_not_wait_without_calls() -> None:
    pause = CallPause(CallsInProgress(), time.monotonic)

    for _ in range(1000):
        pause()


def test_a_call_that_has_arrived_comes_before_other_work() -> None:
    calls, (ours, theirs) = CallsInProgress(lambda: 0.0), socket.socketpair()
    with ours, theirs:
        calls.expect("connection", ours.fileno())
        assert not calls.come_first

        theirs.send(b"POST /filter")
        assert calls.come_first
        with calls.waiting():
            assert not calls.come_first
        calls.begin("connection")
        calls.end("connection")
        assert not calls.come_first  # only connections between two calls count

        calls.expect("connection", ours.fileno())
        assert calls.come_first
        calls.forget("connection")
        assert not calls.come_first


def test_a_socket_that_is_used_again_is_polled_for_its_new_connection() -> None:
    calls, (ours, theirs) = CallsInProgress(lambda: 0.0), socket.socketpair()
    with ours, theirs:
        calls.expect("closed", ours.fileno())
        calls.expect("new", ours.fileno())
        calls.forget("closed")
        theirs.send(b"POST /filter")

        assert calls.come_first


def test_a_closed_socket_is_no_call() -> None:
    calls, (ours, theirs) = CallsInProgress(lambda: 0.0), socket.socketpair()
    calls.expect("connection", ours.fileno())
    ours.close()
    theirs.close()

    assert not calls.come_first
