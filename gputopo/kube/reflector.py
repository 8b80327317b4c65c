"""Delivers the changes of all objects of one kind: list, then watch, and resume the watch when it ends.

Lists are paged and read by quorum (no resource version). A watch resumes from the last resource version, including
those of bookmarks. If nothing changes, the server may send no bookmarks either, so a silent watch is reopened: the
response shows that the server is alive. If the version is too old (410), all objects are listed again. Failed calls are
retried after an exponential back-off with full jitter; after an internal error, all objects are listed again. A kind
that the server does not serve (no CRD) counts as an empty list and is retried; so does an optional kind that this
client may not read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

from gputopo.kube.client import Kube
from gputopo.kube.errors import (
    DamagedError,
    ForbiddenError,
    GoneError,
    KubeError,
    NotFoundError,
    UnavailableError,
)
from gputopo.kube.objects import Unreadable
from gputopo.kube.projection import Delta, Projection, WatchSource
from gputopo.kube.watch_stream import WatchEvent, WatchEventType, WatchStream
from gputopo.timestamps import parse_timestamp
from gputopo.timing import MISSING_KIND_RETRY_S

S = TypeVar("S")
# The server ends a watch after a time in this range, so that watches move to API servers that started later.
MIN_WATCH_S, MAX_WATCH_S = 300.0, 600.0
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0
LONGEST_RETRY_AFTER_S = 60.0  # the limit of ``Retry-After``; it may exceed the back-off
FAILED_WATCH_S = 1.0  # a watch that ends sooner and without events has failed
STABLE_WATCH_S = 10.0  # a watch of this duration resets the back-off, because a proxy may cut every watch
_log = logging.getLogger(__name__)
_GENERATOR = Random()  # noqa: S311  spreads load; not for security


class WatchTiming(NamedTuple):
    """Clocks, random numbers and waiting."""

    clock: Callable[[], float] = time.monotonic  # seconds; monotonic
    wall: Callable[[], float] = time.time  # seconds since 1970, to compare with times of the API server
    wait: Callable[[threading.Event, float], object] = threading.Event.wait  # for seconds, or until the event is set
    random: Random = _GENERATOR
    pause: Callable[[], None] = lambda: None  # called before an object is decoded, for more urgent work


class ReflectorStatus(NamedTuple):
    """The status of a reflector."""

    synced: bool = False  # a complete list was delivered
    last_event_at: float | None = None  # time of the last page, opened watch or event, by the clock
    relists: int = 0  # lists after the first
    failures: int = 0  # failed calls and broken streams
    error: str | None = None  # the current error
    is_unavailable: bool = False  # it is that the server does not answer, or is busy
    served: bool = True  # the server serves the kind
    lag_s: float | None = None  # from creation to arrival, of the last object that was created during a watch
    unreadable: int = 0  # objects that cannot be decoded
    moved: float | None = None  # time of the last activity of its thread, by the clock; None: not started


class Reflector(Generic[S]):
    """The list and watch of one kind. ``run`` needs its own thread; ``stop`` and ``status`` are for other threads."""

    def __init__(
        self, kube: Kube, source: WatchSource[S], deliver: Callable[[Delta[S]], None], timing: WatchTiming
    ) -> None:
        self._kube = kube
        self._source = source
        self._deliver = deliver
        self._timing = timing
        self._projection = Projection(source)
        self._stopped = threading.Event()
        self._watch: WatchStream | None = None
        self._version: str | None = None  # the last one received; None: list
        self._damaged_version: str | None = None  # a watch from this version was damaged
        self._consecutive_failures = 0  # since the last event of a watch
        self._list_count = 0
        self._status = ReflectorStatus()

    @property
    def status(self) -> ReflectorStatus:
        """Return the status."""
        unreadable = self._projection.unreadable
        return self._status._replace(
            relists=max(0, self._list_count - 1),
            error=self._status.error or _unreadable_error(unreadable),
            unreadable=len(unreadable),
        )

    def run(self) -> None:
        """List and watch until ``stop`` is called. Errors, also those of ``deliver``, are in ``status``."""
        self._update_status()
        try:
            while not self._stopped.is_set():
                self._list_or_watch()
        except BaseException as error:
            self._update_status(error=f"the watch of {self._source.resource.plural} ended: {error!r}")
            raise

    def stop(self) -> None:
        """Stop: no more changes are delivered. A call in progress ends by its own timeout."""
        self._stopped.set()
        if self._watch is not None:
            self._watch.close()

    def _list_or_watch(self) -> None:
        try:
            if self._version is None:
                self._list()
            else:
                self._follow_watch(self._version)
        except NotFoundError as missing:
            self._version = None
            if missing.kind_missing:
                resource = self._source.resource
                self._handle_missing_kind(f"the API server does not serve {resource.plural} ({resource.api_version})")
            else:
                self._back_off(missing)
        except ForbiddenError as forbidden:
            if self._source.optional:
                self._version = None
                self._handle_missing_kind(str(forbidden))
            else:
                self._back_off(forbidden)
        except GoneError as gone:
            self._version = None
            self._back_off(gone)
        except DamagedError as damaged:
            if self._version == self._damaged_version:  # damaged twice: a list skips the damaged event
                self._version = None
            self._damaged_version = self._version
            self._back_off(damaged)
        except KubeError as error:
            self._back_off(error)
        except Exception as error:  # noqa: BLE001  without the watch the whole cluster is unknown
            plural = self._source.resource.plural
            if self._stopped.is_set():
                return
            _log.exception("watch", extra={"fields": {"kind": plural, "error": repr(error)}})
            self._version = None  # the last changes may have been delivered in part
            self._back_off(KubeError(f"the watch of {plural} failed, so all objects are listed again: {error!r}"))

    def _list(self) -> None:
        self._list_count += 1
        versions = [""]
        delta = self._projection.apply_list(self._objects(versions))
        if not self._stopped.is_set():
            self._deliver(delta)
            self._version = versions[-1]
            self._update_status(synced=True, served=True, error=None, is_unavailable=False)

    def _objects(self, versions: list[str]) -> Iterator[Any]:
        kind = self._projection.listed_kind
        for page in self._kube.list_readable(self._source.resource, kind, self._source.query):
            self._update_status(last_event_at=self._timing.clock())
            versions.append(page.metadata.resource_version)
            for each in page.items:
                self._timing.pause()
                yield each
            if self._stopped.is_set():
                return

    def _follow_watch(self, version: str) -> None:
        seconds = self._timing.random.uniform(MIN_WATCH_S, MAX_WATCH_S)
        watch = self._kube.watch(self._source.resource, self._source.query, version, seconds)
        self._watch = watch
        if self._stopped.is_set():  # stopped while the watch was being opened
            watch.close()
        opened = self._timing.clock()
        self._update_status(last_event_at=opened, error=None, is_unavailable=False)
        is_empty = True
        try:
            for events in watch:
                is_empty = False
                self._apply_events(events)
                self._consecutive_failures = 0
        finally:
            duration_s = self._timing.clock() - opened
            if duration_s >= STABLE_WATCH_S:
                self._consecutive_failures = 0
        if is_empty and duration_s < FAILED_WATCH_S and not self._stopped.is_set():
            raise UnavailableError(f"watch {self._source.resource.path()}: it ended at once, without an event")

    def _apply_events(self, events: tuple[WatchEvent, ...]) -> None:
        self._update_status(last_event_at=self._timing.clock())
        if self._stopped.is_set() or not events:
            return
        for event in events:
            if event.type is WatchEventType.ADDED and event.identity.creation_timestamp is not None:
                self._measure_lag(event.identity.creation_timestamp)
        for delta in self._projection.apply_events(self._changes(events)):
            self._deliver(delta)
        self._version = events[-1].identity.resource_version

    def _changes(self, events: tuple[WatchEvent, ...]) -> Iterator[WatchEvent]:
        for event in events:
            if event.type is not WatchEventType.BOOKMARK:
                self._timing.pause()
                yield event

    def _measure_lag(self, timestamp: str) -> None:
        created = parse_timestamp(timestamp)
        if created is not None:
            self._update_status(lag_s=max(0.0, self._timing.wall() - created))

    def _handle_missing_kind(self, error: str) -> None:
        """Deliver an empty list and wait: the kind may be served, or permitted, later."""
        if not self._stopped.is_set() and not (self._status.synced and self._projection.is_empty):
            self._deliver(self._projection.apply_list(()))
        self._consecutive_failures = 0
        now = self._timing.clock()
        self._update_status(last_event_at=now, synced=True, served=False, error=error, is_unavailable=False)
        self._timing.wait(self._stopped, MISSING_KIND_RETRY_S)

    def _back_off(self, error: KubeError) -> None:
        self._consecutive_failures += 1
        unavailable = isinstance(error, UnavailableError)
        self._update_status(failures=self._status.failures + 1, error=str(error), is_unavailable=unavailable)
        longest = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(self._consecutive_failures - 1, 10))
        asked = error.retry_after if isinstance(error, UnavailableError) else None
        pause_s = max(min(asked or 0.0, LONGEST_RETRY_AFTER_S), self._timing.random.uniform(0, longest))
        self._timing.wait(self._stopped, pause_s)

    def _update_status(self, **changes: Any) -> None:
        self._status = self._status._replace(moved=self._timing.clock(), **changes)


def _unreadable_error(unreadable: tuple[Unreadable, ...]) -> str | None:
    """Return the number of objects that cannot be decoded, and the error of the first one."""
    if not unreadable:
        return None
    more = f" (and {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
    first = unreadable[0]
    return f"{first.plural} {first.name}{more} cannot be read: {first.why}"
