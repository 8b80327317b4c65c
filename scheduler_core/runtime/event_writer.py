"""Writes Events on its own thread, at a limited rate. Events beyond the queue limit are dropped and counted."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, NamedTuple

from gputopo.kube import events
from gputopo.kube.client import Kube
from gputopo.kube.errors import KubeError
from gputopo.kube.events import EventReporter, EventSubject
from gputopo.kube.rbac import EVENTS, PODS, RESERVATIONS


class EventDraft(NamedTuple):
    """An Event to write."""

    kind: str  # "Pod", "PlacementReservation"
    namespace: str
    name: str
    uid: str
    reason: str  # one word
    message: str
    warning: bool = False


_REMEMBERED = 4096  # Events that are not written again
_RESOURCES = {"Pod": PODS, "PlacementReservation": RESERVATIONS}
_log = logging.getLogger(__name__)


class RateLimit(NamedTuple):
    """The limits that protect the API server."""

    queued: int
    pause_s: float  # between two Events


LOW_RATE = RateLimit(64, 0.2)  # a broken device plugin would cause an Event on every pod
HIGH_RATE = RateLimit(256, 0.02)  # every gang causes some


class EventWriter:
    """The event writer of one process."""

    def __init__(self, kube: Kube, component: str, limit: RateLimit, count: Callable[[str], None]) -> None:
        """``count`` is called with the outcome of each Event, on any thread: written, failed, dropped."""
        self._kube, self._reporter, self._limit, self._count = kube, EventReporter(component), limit, count
        self._written: OrderedDict[int, None] = OrderedDict()  # hashes: an Event takes a kilobyte
        self._queue: SimpleQueue[EventDraft | None] = SimpleQueue()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="events", daemon=True).start()

    def write_event(self, event: EventDraft) -> None:
        """Queue an Event, unless the same Event was queued recently."""
        key = hash(event)
        if key in self._written:
            self._written.move_to_end(key)
            return
        self._written[key] = None
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
        if self._queue.qsize() < self._limit.queued:
            self._queue.put(event)
        else:
            self._count("dropped")

    def close(self) -> None:
        """Stop writing, without waiting for the Event that is being written."""
        self._ended.set()
        self._queue.put(None)

    def _run(self) -> None:
        while (event := self._queue.get()) is not None and not self._ended.is_set():
            try:
                self._kube.create(EVENTS, event_body(event, self._reporter, datetime.now(UTC)))
            except KubeError as error:
                fields = {"of": f"{event.namespace}/{event.name}", "reason": event.reason, "error": str(error)}
                _log.warning("event", extra={"fields": fields})
                self._count("failed")
            else:
                self._count("written")
            self._ended.wait(self._limit.pause_s)


def event_body(draft: EventDraft, reporter: EventReporter, now: datetime) -> dict[str, Any]:
    """Return the Event as it is sent. Pure."""
    subject = EventSubject(_RESOURCES[draft.kind], draft.kind, draft.name, draft.uid, draft.namespace)
    return events.event_body(subject, reporter, draft.reason, draft.message, now, warning=draft.warning)
