"""The most recent decisions, in memory and optionally in a file. A decision is encoded only when it is read.

Decisions share most of their snapshots. The node names of a call are new strings each time and take most of the memory,
so the log limits the number of names too. A decision about 15,000 nodes takes up to 80 ms to encode, on another thread
than the calls, but in the same interpreter. So the encoder pauses every few milliseconds.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from time import sleep, thread_time

from scheduler_core.extender.decision_record import encode_decision
from scheduler_core.extender.extender import DecisionRecord

_MAX_NAMES = 300_000  # of all decisions together: about 40 MB
_MAX_QUEUED = 64  # decisions that wait to be written to the file; further ones are dropped
_MAX_FILE_BYTES = 64 * 2**20
_WORK_S = 0.002  # between two pauses of an encoder
_log = logging.getLogger(__name__)
NumberedLines = Generator[tuple[int, bytes], None, None]


class DecisionLog:
    """The most recent decisions."""

    def __init__(
        self, max_decisions: int, max_names: int = _MAX_NAMES, wait_for_calls: Callable[[], None] = lambda: None
    ) -> None:
        """``wait_for_calls``: called by encoders, on any thread."""
        self._wait_for_calls = wait_for_calls
        self._max_decisions = max_decisions
        self._max_names = max_names
        self._records: deque[DecisionRecord] = deque()
        self._next_number = 0
        self._names = 0

    def __len__(self) -> int:
        return len(self._records)

    def add_decision(self, record: DecisionRecord) -> None:
        """Add a decision; drop the oldest ones beyond the limits."""
        records = self._records
        records.append(record)
        self._next_number += 1
        self._names += len(record.names)
        while len(records) > self._max_decisions or (self._names > self._max_names and len(records) > 1):
            self._names -= len(records.popleft().names)

    def last_decision(self, uid: str) -> DecisionRecord | None:
        """Return the last decision of Filter about a pod."""
        decisions = (each for each in reversed(self._records) if each.victims is None)
        return next((each for each in decisions if each.request.uid == uid), None)

    def json_lines(self, start: int = 0) -> NumberedLines:
        """Return the number and JSON line of each decision, oldest first. Any thread may iterate.

        ``start``: the number of the first decision; if negative, the number of decisions counted from the end.
        """
        oldest = self._next_number - len(self._records)
        first = max(oldest, self._next_number + start if start < 0 else start)
        records = deque(islice(self._records, first - oldest, None))
        return _encode_lines(records, first, Pause(wait_for_calls=self._wait_for_calls))


def _encode_lines(records: deque[DecisionRecord], first: int, pause: Callable[[], None]) -> NumberedLines:
    """Yield the number and JSON line of each decision. Records are freed one at a time, also when this is closed."""
    try:
        while records:
            yield first, encode_decision(records.popleft(), pause)
            first += 1
    finally:
        while records:
            pause()
            records.popleft()


class Pause:
    """Pauses for as long as the work since the last pause took, and while calls are in progress."""

    def __init__(
        self,
        clock: Callable[[], float] = thread_time,
        sleep: Callable[[float], None] = sleep,
        wait_for_calls: Callable[[], None] = lambda: None,
    ) -> None:
        """``clock``: the seconds that this thread has run."""
        self._clock, self._sleep, self._wait_for_calls = clock, sleep, wait_for_calls
        self._since: float | None = None  # None: before the first call, which may come from another thread

    def __call__(self) -> None:
        """Wait for calls, and pause, unless there was little work."""
        self._wait_for_calls()
        now = self._clock()
        worked = 0.0 if self._since is None else now - self._since
        if self._since is None or worked > _WORK_S:
            self._since = now
            self._sleep(worked)


class DecisionFile:
    """Appends decisions to a file, on its own thread. At the maximum size it renames the file to FILE.1."""

    def __init__(
        self,
        path: Path,
        count: Callable[[str], None],
        max_bytes: int = _MAX_FILE_BYTES,
        wait_for_calls: Callable[[], None] = lambda: None,
    ) -> None:
        """``count`` is called with the outcome of each decision, on any thread: written, dropped, failed."""
        self._path, self._wait_for_calls = path, wait_for_calls
        self._count = count
        self._max_bytes = max_bytes
        self._queue: SimpleQueue[DecisionRecord | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="decisions", daemon=True)
        self._thread.start()

    def append(self, record: DecisionRecord) -> None:
        """Queue a decision; drop it if too many are queued."""
        if self._queue.qsize() < _MAX_QUEUED:
            self._queue.put(record)
        else:
            self._count("dropped")

    def close(self) -> None:
        """Write all queued decisions, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        failed, pause = False, Pause(wait_for_calls=self._wait_for_calls)
        while (record := self._queue.get()) is not None:
            try:
                self._write(encode_decision(record, pause))
            except OSError as error:
                if not failed:
                    _log.warning("decisions", extra={"fields": {"file": str(self._path), "error": str(error)}})
                failed = True
                self._count("failed")
            else:
                failed = False
                self._count("written")

    def _write(self, line: bytes) -> None:
        with self._path.open("ab") as file:
            if file.tell() and file.tell() + len(line) > self._max_bytes:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            else:
                file.write(line)
                return
        self._path.write_bytes(line)
