"""The threads around the loop, with real queues and signals."""

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
from agent.allocation.watch import POLL_S, AllocationReport, AllocationWatch
from agent.allocation.wire import HeldDevices
from agent.daemon.loop import AgentLoop, Now, WakeUp
from agent.daemon.metrics import AgentMetrics
from agent.daemon.threads import Inbox, MachineAccess, handle_signals, poll_for_changes, run_loop
from agent.snapshot import Snapshot
from tests.agent.daemon.fake_cluster import SETTINGS, FakeNodePublisher
from tests.agent.recordings import load_machine, nvml_failed

HEALTHY = load_machine("4a100-1n-mesh4")
UNCHANGING: tuple[str, Callable[[], int]] = ("driver", lambda: 0)
DEADLINE_S = 30.0


def clock() -> Now:
    return Now(time.monotonic(), time.time())


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


class AgentThread:
    """An agent on its own thread."""

    def __init__(self, machine: MachineAccess, **settings: Any) -> None:
        self.cluster = FakeNodePublisher()
        self.loop = AgentLoop(replace(SETTINGS, **settings), self.cluster, AgentMetrics())
        self.inbox = Inbox()
        self.ended: list[str | None] = []
        self._thread = threading.Thread(
            target=lambda: self.ended.append(run_loop(self.loop, machine, self.inbox, clock)), daemon=True
        )
        self._thread.start()

    def end(self) -> str | None:
        self.inbox.put(None)
        return self.wait()

    def wait(self) -> str | None:
        self._thread.join(DEADLINE_S)
        (ended,) = self.ended
        return ended


def test_passes_run_until_the_loop_is_stopped() -> None:
    agent = AgentThread(MachineAccess(lambda: HEALTHY, UNCHANGING))
    wait_until(lambda: agent.cluster.state is not None)

    assert agent.end() is None
    assert agent.cluster.writes == ["node", "nodegpus"]


def test_allocations_reach_the_publisher() -> None:
    held = HeldDevices("ml", "train-0", "main", "nvidia.com/gpu", ("0",))
    agent = AgentThread(MachineAccess(lambda: HEALTHY, UNCHANGING, AllocationWatch(lambda: (held,))))
    wait_until(lambda: agent.cluster.state is not None and agent.cluster.state.allocations is not None)

    agent.end()

    assert agent.cluster.state is not None
    assert [each.pod.name for each in agent.cluster.state.allocations or ()] == ["train-0"]


def test_driver_events_start_a_pass() -> None:
    probe_times: list[float] = []

    def probe() -> Snapshot:
        probe_times.append(time.monotonic())
        return HEALTHY

    def listen(wake: Callable[[str], None], pause: Callable[[float], bool]) -> None:
        wake("xid")
        pause(DEADLINE_S)

    agent = AgentThread(MachineAccess(probe, UNCHANGING, None, listen))
    wait_until(lambda: agent.loop.status.unready_reason is None)

    agent.end()

    assert probe_times


def test_an_agent_that_must_exit_says_why() -> None:
    snapshots = iter([HEALTHY])
    agent = AgentThread(
        MachineAccess(lambda: next(snapshots, nvml_failed(HEALTHY, "UNKNOWN")), UNCHANGING), grace_s=0.0
    )
    wait_until(lambda: agent.cluster.state is not None)
    agent.inbox.put(WakeUp("hangup"))

    assert agent.wait() == "NVML has failed for 0 s and this process cannot recover: nvmlInit_v2: UNKNOWN"


def test_a_thread_that_raises_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    def probe() -> Snapshot:
        raise AssertionError("a bug")

    agent = AgentThread(MachineAccess(probe, UNCHANGING))

    assert agent.wait() == "the thread 'probe' ended with an exception; the log has the traceback"
    assert "thread" in {each.message for each in caplog.records}


def polled(signatures: list[int], watch: AllocationWatch | None = None) -> list[object]:
    """The inputs that polls put into the inbox, with one signature per poll."""
    inbox = Inbox()
    pauses: list[float] = []
    coming = iter(signatures)

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == len(signatures)

    poll_for_changes(MachineAccess(lambda: HEALTHY, ("file", lambda: next(coming)), watch), inbox, clock, pause)
    assert set(pauses) == {POLL_S}
    return [inbox.get_nowait() for _ in range(inbox.qsize())]


def test_a_driver_that_appears_or_changes_starts_a_pass() -> None:
    assert polled([1, 1, 2, 2, 1]) == [WakeUp("file"), WakeUp("file")]


def test_changed_allocations_start_a_pass() -> None:
    def ask() -> tuple[HeldDevices, ...]:
        raise PodResourcesError("no socket")

    assert polled([1, 1, 1], AllocationWatch(ask)) == [AllocationReport(None, "no socket")]


def test_signals_stop_the_loop_or_start_a_pass_and_handlers_are_restored() -> None:
    inbox = Inbox()
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]

    with handle_signals(inbox):
        for each in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), each)
        inputs = [inbox.get(timeout=DEADLINE_S) for _ in range(3)]

    assert inputs == [WakeUp("hangup"), None, None]
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before
