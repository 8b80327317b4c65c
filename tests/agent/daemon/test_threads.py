"""The threads around the loop, with real queues and signals and a clock that does not matter."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from agent.allocation.client import PodResourcesError
from agent.allocation.watch import POLL_S, Reading, Watch
from agent.allocation.wire import Held
from agent.daemon.loop import Loop, Now, Woken
from agent.daemon.metrics import Metrics
from agent.daemon.threads import Inbox, Machine, poll, run, signals
from agent.snapshot import Snapshot
from tests.agent.daemon.fake_cluster import SETTINGS, Cluster
from tests.agent.recordings import broken, machine

WELL = machine("4a100-1n-mesh4")
STILL: tuple[str, Callable[[], int]] = ("driver", lambda: 0)
PATIENCE_S = 30.0


def clock() -> Now:
    return Now(time.monotonic(), time.time())


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


class Process:
    """An agent on a thread of its own, as its process would run it."""

    def __init__(self, machine: Machine, **settings: Any) -> None:
        self.cluster = Cluster()
        self.loop = Loop(replace(SETTINGS, **settings), self.cluster, Metrics())
        self.inbox = Inbox()
        self.ended: list[str | None] = []
        self._thread = threading.Thread(
            target=lambda: self.ended.append(run(self.loop, machine, self.inbox, clock)), daemon=True
        )
        self._thread.start()

    def end(self) -> str | None:
        self.inbox.put(None)
        return self.wait()

    def wait(self) -> str | None:
        self._thread.join(PATIENCE_S)
        (ended,) = self.ended
        return ended


def test_a_machine_is_looked_at_and_published_until_the_end_is_told() -> None:
    process = Process(Machine(lambda: WELL, STILL))
    wait_until(lambda: process.cluster.state is not None)

    assert process.end() is None
    assert process.cluster.writes == ["node", "nodegpus"]


def test_who_holds_what_reaches_the_cluster() -> None:
    held = Held("ml", "train-0", "main", "nvidia.com/gpu", ("0",))
    process = Process(Machine(lambda: WELL, STILL, Watch(lambda: (held,))))
    wait_until(lambda: process.cluster.state is not None and process.cluster.state.allocations is not None)

    process.end()

    assert process.cluster.state is not None
    assert [each.pod.name for each in process.cluster.state.allocations or ()] == ["train-0"]


def test_events_of_the_driver_make_it_look_again() -> None:
    looks: list[float] = []

    def probe() -> Snapshot:
        looks.append(time.monotonic())
        return WELL

    def listen(wake: Callable[[str], None], pause: Callable[[float], bool]) -> None:
        wake("xid")
        pause(PATIENCE_S)

    process = Process(Machine(probe, STILL, None, listen))
    wait_until(lambda: process.loop.status.unready is None)

    process.end()

    assert looks


def test_an_agent_that_cannot_go_on_says_why() -> None:
    seen = iter([WELL])
    process = Process(Machine(lambda: next(seen, broken(WELL, "UNKNOWN")), STILL), grace_s=0.0)
    wait_until(lambda: process.cluster.state is not None)
    process.inbox.put(Woken("hangup"))

    assert process.wait() == "NVML fails for 0 s, and this process cannot recover: nvmlInit_v2: UNKNOWN"


def test_a_thread_that_ends_in_a_surprise_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    def probe() -> Snapshot:
        raise AssertionError("a bug")

    process = Process(Machine(probe, STILL))

    assert process.wait() == "the thread 'probe' ended in a surprise"
    assert "thread" in {each.message for each in caplog.records}


def polled(signatures: list[int], watch: Watch | None = None) -> list[object]:
    """What polls put into the inbox, one per signature after the first."""
    inbox = Inbox()
    pauses: list[float] = []
    coming = iter(signatures)

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == len(signatures)

    poll(Machine(lambda: WELL, ("file", lambda: next(coming)), watch), inbox, clock, pause)
    assert set(pauses) == {POLL_S}
    return [inbox.get_nowait() for _ in range(inbox.qsize())]


def test_a_driver_that_appears_or_changes_is_told() -> None:
    assert polled([1, 1, 2, 2, 1]) == [Woken("file"), Woken("file")]


def test_what_the_kubelet_says_is_told_when_it_changes() -> None:
    def ask() -> tuple[Held, ...]:
        raise PodResourcesError("no socket")

    assert polled([1, 1, 1], Watch(ask)) == [Reading(None, "no socket")]


def test_signals_end_the_loop_or_make_it_look_and_are_put_back() -> None:
    inbox = Inbox()
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]

    with signals(inbox):
        for each in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), each)
        told = [inbox.get(timeout=PATIENCE_S) for _ in range(3)]

    assert told == [Woken("hangup"), None, None]
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before
