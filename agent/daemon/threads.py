"""Turns the loop for as long as the process lives: the threads that ask, the inbox that they fill, the signals.

probe thread ─ Probed ─┐
poll thread ─ Reading ─┼─▶ inbox ─▶ Loop.turn
event thread ─ Woken ──┘
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import NamedTuple

from agent.allocation.watch import POLL_S, Watch
from agent.daemon.loop import Loop, News, Now, Probed, Woken
from agent.snapshot import Snapshot


class Died(NamedTuple):
    """A thread ended in a surprise."""

    thread: str


Inbox = SimpleQueue[News | Died | None]  # None: end. Its put may be called from a signal handler.
Clock = Callable[[], Now]

_log = logging.getLogger(__name__)


class Machine(NamedTuple):
    """How to ask this machine, or what stands in for it. Each function may take long, and runs on its own thread."""

    probe: Callable[[], Snapshot]
    signature: tuple[str, Callable[[], Hashable]]  # why to wake, and what changes then: "driver", its version
    watch: Watch | None = None  # of the kubelet
    listen: Callable[[Callable[[str], None], Callable[[float], bool]], None] | None = None  # for the driver's events


def run(loop: Loop, machine: Machine, inbox: Inbox, clock: Clock) -> str | None:
    """Turn the loop until None comes in; why the process must end where the loop says so, else None."""
    requests: SimpleQueue[bool] = SimpleQueue()
    stopping = threading.Event()

    def wake(reason: str) -> None:
        inbox.put(Woken(reason))

    def probe() -> None:
        while requests.get():
            started = clock().monotonic
            snapshot = machine.probe()
            inbox.put(Probed(snapshot, clock().monotonic - started))

    targets: dict[str, Callable[[], None]] = {
        "probe": probe,
        "poll": lambda: poll(machine, inbox, clock, stopping.wait),
    }
    if (listen := machine.listen) is not None:
        targets["events"] = lambda: listen(wake, stopping.wait)
    for name, target in targets.items():
        # Daemons: one that hangs in the driver must not keep the process from ending.
        threading.Thread(target=_guarded, args=(name, target, inbox), name=name, daemon=True).start()
    try:
        return _turn_forever(loop, inbox, requests, clock)
    finally:
        stopping.set()
        requests.put(False)


def _guarded(name: str, target: Callable[[], None], inbox: Inbox) -> None:
    try:
        target()
    except Exception:  # noqa: BLE001  whatever it is, a new process is better than a deaf one
        _log.exception("thread", extra={"fields": {"thread": name}})
        inbox.put(Died(name))


def _turn_forever(loop: Loop, inbox: Inbox, requests: SimpleQueue[bool], clock: Clock) -> str | None:
    news: list[News] = []
    while True:
        now = clock()
        step = loop.turn(now, news)
        if step.end is not None:
            return step.end
        if step.probe:
            requests.put(True)
        try:
            first = inbox.get(timeout=max(0.0, step.until - clock().monotonic))
        except Empty:
            news = []
            continue
        if first is None:
            return None
        if isinstance(first, Died):
            return f"the thread {first.thread!r} ended in a surprise"
        news = [first]


def poll(machine: Machine, inbox: Inbox, clock: Clock, pause: Callable[[float], bool]) -> None:
    """Every second: has the driver (or the file) changed, and who holds what? Until ``pause`` says to stop."""
    reason, signature = machine.signature
    before = signature()
    while True:
        if machine.watch is not None and (reading := machine.watch.poll(clock().monotonic)) is not None:
            inbox.put(reading)
        if pause(POLL_S):
            return
        if (after := signature()) != before:
            before = after
            inbox.put(Woken(reason))


@contextmanager
def signals(inbox: Inbox) -> Iterator[None]:
    """Within: SIGTERM and SIGINT end the loop and leave what is published in place; SIGHUP makes it look at once."""
    ends, hangs_up = (signal.SIGTERM, signal.SIGINT), signal.SIGHUP
    before = {each: signal.getsignal(each) for each in (*ends, hangs_up)}
    for each in ends:
        signal.signal(each, lambda *_: inbox.put(None))
    signal.signal(hangs_up, lambda *_: inbox.put(Woken("hangup")))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
