"""The last decisions, in memory and on request in a file. Keeping one costs a reference: it is written when read.

A decision refers to tables that share all that did not change, and to the names that kube-scheduler asked about, which
are new strings each time and the greater part of its memory: so not only decisions are counted but their names too.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

from scheduler_core.extender.decision_record import encode_decision
from scheduler_core.extender.extender import DecisionRecord

_NAMES = 300_000  # of all decisions together: some 40 MB
_WAITING = 64  # decisions that wait to be written to the file; more are left out of it
_FILE_BYTES = 64 * 2**20
_log = logging.getLogger(__name__)


class DecisionLog:
    """Those that were made last."""

    def __init__(self, most: int, most_names: int = _NAMES) -> None:
        self._most = most
        self._most_names = most_names
        self._held: deque[DecisionRecord] = deque()
        self._made = 0  # as many were kept so far, so the next one has this number
        self._names = 0

    def __len__(self) -> int:
        return len(self._held)

    def add_decision(self, record: DecisionRecord) -> None:
        """One more; the oldest go."""
        held = self._held
        held.append(record)
        self._made += 1
        self._names += len(record.names)
        while len(held) > self._most or (self._names > self._most_names and len(held) > 1):
            self._names -= len(held.popleft().names)

    def last_decision(self, uid: str) -> DecisionRecord | None:
        """The last one about that pod."""
        return next((each for each in reversed(self._held) if each.request.uid == uid), None)

    def json_lines(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Return numbers and lines of JSON of those that are kept now, oldest first. Iterate on any thread.

        ``start``: the first number; negative: as many from the end.
        """
        oldest = self._made - len(self._held)
        first = max(oldest, self._made + start if start < 0 else start)
        records = tuple(islice(self._held, first - oldest, None))
        return ((number, encode_decision(record)) for number, record in enumerate(records, start=first))


class DecisionFile:
    """Appends decisions to a file, on a thread of its own; at a size it becomes FILE.1 and a new one begins."""

    def __init__(self, path: Path, note: Callable[[str], None], most_bytes: int = _FILE_BYTES) -> None:
        """``note`` hears of each decision on any thread: written, dropped (too many at once), failed."""
        self._path = path
        self._note = note
        self._most_bytes = most_bytes
        self._queue: SimpleQueue[DecisionRecord | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="decisions", daemon=True)
        self._thread.start()

    def append(self, record: DecisionRecord) -> None:
        """Write it soon."""
        if self._queue.qsize() < _WAITING:
            self._queue.put(record)
        else:
            self._note("dropped")

    def close(self) -> None:
        """Write what waits."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        failed = False
        while (record := self._queue.get()) is not None:
            try:
                self._write(encode_decision(record))
            except OSError as error:
                if not failed:
                    _log.warning("decisions", extra={"fields": {"file": str(self._path), "error": str(error)}})
                failed = True
                self._note("failed")
            else:
                failed = False
                self._note("written")

    def _write(self, line: bytes) -> None:
        with self._path.open("ab") as file:
            if file.tell() and file.tell() + len(line) > self._most_bytes:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            else:
                file.write(line)
                return
        self._path.write_bytes(line)
