"""Writes Events on a thread of its own: nobody waits for them, and where too many come at once some go untold.

The metrics count those.
"""

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
    """An Event."""

    kind: str  # "Pod", "PlacementReservation"
    namespace: str
    name: str
    uid: str
    reason: str  # one word, for machines
    message: str
    warning: bool = False


_REMEMBERED = 4096  # that were told: the same is not told again
_RESOURCES = {"Pod": PODS, "PlacementReservation": RESERVATIONS}
_log = logging.getLogger(__name__)


class RateLimit(NamedTuple):
    """How many Events at most, and how soon one after the other: the API server has better to do."""

    waiting: int  # to be written
    pause_s: float  # between two


LOW_RATE = RateLimit(64, 0.2)  # a broken node plugin would have something to say of every pod
HIGH_RATE = RateLimit(256, 0.02)  # every gang has some


class EventWriter:
    """Of one process."""

    def __init__(self, kube: Kube, component: str, haste: RateLimit, note: Callable[[str], None]) -> None:
        """``note`` hears of each Event, on any thread: written, failed, dropped."""
        self._kube, self._reporter, self._haste, self._note = kube, EventReporter(component), haste, note
        self._written: OrderedDict[EventDraft, None] = OrderedDict()
        self._queue: SimpleQueue[EventDraft | None] = SimpleQueue()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="events", daemon=True).start()

    def write_event(self, what: EventDraft) -> None:
        """Tell of it, unless just that was told before."""
        if what in self._written:
            self._written.move_to_end(what)
            return
        self._written[what] = None
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
        if self._queue.qsize() < self._haste.waiting:
            self._queue.put(what)
        else:
            self._note("dropped")

    def close(self) -> None:
        """Write no more. An Event that is being written is not waited for."""
        self._ended.set()
        self._queue.put(None)

    def _run(self) -> None:
        while (what := self._queue.get()) is not None and not self._ended.is_set():
            try:
                self._kube.create(EVENTS, event_body(what, self._reporter, datetime.now(UTC)))
            except KubeError as error:
                fields = {"of": f"{what.namespace}/{what.name}", "reason": what.reason, "error": str(error)}
                _log.warning("event", extra={"fields": fields})
                self._note("failed")
            else:
                self._note("written")
            self._ended.wait(self._haste.pause_s)


def event_body(what: EventDraft, reporter: EventReporter, now: datetime) -> dict[str, Any]:
    """As it is sent. Pure."""
    subject = EventSubject(_RESOURCES[what.kind], what.kind, what.name, what.uid, what.namespace)
    return events.event_body(subject, reporter, what.reason, what.message, now, warning=what.warning)
