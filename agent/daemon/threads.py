"""The threads around the loop: probe, poll and driver events write to an inbox, the main thread runs the loop.

probe thread ─ ProbeResult ─┐
poll thread ─── Reading ────┼─▶ inbox ─▶ AgentLoop.run_iteration
event thread ── WakeUp ─────┘
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import NamedTuple

from agent.allocation.watch import POLL_S, AllocationWatch
from agent.daemon.loop import AgentLoop, LoopInput, Now, ProbeResult, WakeUp
from agent.snapshot import Snapshot


class ThreadDied(NamedTuple):
    """A thread ended with an exception."""

    thread: str


Inbox = SimpleQueue[LoopInput | ThreadDied | None]  # None: stop. A signal handler may call put.
Clock = Callable[[], Now]

_log = logging.getLogger(__name__)


class MachineAccess(NamedTuple):
    """The functions that read this machine, or a replacement. Each may block, and runs on its own thread."""

    probe: Callable[[], Snapshot]
    signature: tuple[str, Callable[[], Hashable]]  # wake-up reason, and the value that changes: "driver", its version
    watch: AllocationWatch | None = None  # of the kubelet
    listen: Callable[[Callable[[str], None], Callable[[float], bool]], None] | None = None  # to driver events


def run_loop(loop: AgentLoop, access: MachineAccess, inbox: Inbox, clock: Clock) -> str | None:
    """Run the loop until None is in the inbox. Returns the loop's exit reason, else None."""
    requests: SimpleQueue[bool] = SimpleQueue()
    stopping = threading.Event()

    def wake(reason: str) -> None:
        inbox.put(WakeUp(reason))

    def probe() -> None:
        while requests.get():
            started = clock().monotonic
            snapshot = access.probe()
            inbox.put(ProbeResult(snapshot, clock().monotonic - started))

    targets: dict[str, Callable[[], None]] = {
        "probe": probe,
        "poll": lambda: poll_for_changes(access, inbox, clock, stopping.wait),
    }
    if (listen_for_events := access.listen) is not None:
        targets["events"] = lambda: listen_for_events(wake, stopping.wait)
    for name, target in targets.items():
        # Daemon threads: a thread that hangs in the driver must not keep the process from exiting.
        threading.Thread(target=_run_guarded, args=(name, target, inbox), name=name, daemon=True).start()
    try:
        return _iterate_until_end(loop, inbox, requests, clock)
    finally:
        stopping.set()
        requests.put(False)


def _run_guarded(name: str, target: Callable[[], None], inbox: Inbox) -> None:
    try:
        target()
    except Exception:  # noqa: BLE001  a restart is better than an agent without this thread
        _log.exception("thread", extra={"fields": {"thread": name}})
        inbox.put(ThreadDied(name))


def _iterate_until_end(loop: AgentLoop, inbox: Inbox, requests: SimpleQueue[bool], clock: Clock) -> str | None:
    inputs: list[LoopInput] = []
    while True:
        now = clock()
        result = loop.run_iteration(now, inputs)
        if result.exit_reason is not None:
            return result.exit_reason
        if result.probe:
            requests.put(True)
        try:
            first = inbox.get(timeout=max(0.0, result.next_at - clock().monotonic))
        except Empty:
            inputs = []
            continue
        if first is None:
            return None
        if isinstance(first, ThreadDied):
            return f"the thread {first.thread!r} ended with an exception; the log has the traceback"
        inputs = [first]


def poll_for_changes(access: MachineAccess, inbox: Inbox, clock: Clock, wait: Callable[[float], bool]) -> None:
    """Check every second whether the driver (or the file) or the allocations changed, until ``wait`` returns True."""
    reason, signature = access.signature
    before = signature()
    while True:
        if access.watch is not None and (report := access.watch.poll(clock().monotonic)) is not None:
            inbox.put(report)
        if wait(POLL_S):
            return
        if (after := signature()) != before:
            before = after
            inbox.put(WakeUp(reason))


@contextmanager
def handle_signals(inbox: Inbox) -> Iterator[None]:
    """Within the block SIGTERM and SIGINT stop the loop (published labels stay); SIGHUP starts a pass at once."""
    ends, hangs_up = (signal.SIGTERM, signal.SIGINT), signal.SIGHUP
    before = {each: signal.getsignal(each) for each in (*ends, hangs_up)}
    for each in ends:
        signal.signal(each, lambda *_: inbox.put(None))
    signal.signal(hangs_up, lambda *_: inbox.put(WakeUp("hangup")))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
