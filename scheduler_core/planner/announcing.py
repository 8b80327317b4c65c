"""Writes Events on a thread of its own: nobody waits for them, and where too many come at once some go untold."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from queue import SimpleQueue

from gputopo.kube import events
from gputopo.kube.access import EVENTS, PODS, RESERVATIONS
from gputopo.kube.client import Kube
from gputopo.kube.errors import KubeError
from gputopo.kube.events import Reporter, Subject
from scheduler_core.gangs.writes import Tell

COMPONENT = "gputopo-planner"
_WAITING = 256  # Events that wait to be written
_REMEMBERED = 4096  # that were told: the same is not told again
_PAUSE_S = 0.02
_log = logging.getLogger(__name__)


class Announcer:
    """Of one process."""

    def __init__(self, kube: Kube, note: Callable[[str], None], pause_s: float = _PAUSE_S) -> None:
        """``note`` hears of each Event, on any thread: written, failed, dropped."""
        self._kube = kube
        self._note = note
        self._pause_s = pause_s
        self._told: OrderedDict[Tell, None] = OrderedDict()
        self._queue: SimpleQueue[Tell | None] = SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def announce(self, what: Tell) -> None:
        """Tell of it, unless just that was told before."""
        if what in self._told:
            self._told.move_to_end(what)
            return
        self._told[what] = None
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        if self._queue.qsize() < _WAITING:
            self._queue.put(what)
        else:
            self._note("dropped")

    def close(self) -> None:
        """Write no more. An Event that is being written is not waited for."""
        self._ended.set()
        self._queue.put(None)

    def _run(self) -> None:
        while (what := self._queue.get()) is not None and not self._ended.is_set():
            resource = PODS if what.kind == "Pod" else RESERVATIONS
            subject = Subject(resource, what.kind, what.name, what.uid, what.namespace)
            body = events.event(
                subject, Reporter(COMPONENT), what.reason, what.message, datetime.now(UTC), warning=what.warning
            )
            try:
                self._kube.create(EVENTS, body)
            except KubeError as error:
                fields = {"of": f"{what.namespace}/{what.name}", "error": str(error)}
                _log.warning("event", extra={"fields": fields})
                self._note("failed")
            else:
                self._note("written")
            self._ended.wait(self._pause_s)
