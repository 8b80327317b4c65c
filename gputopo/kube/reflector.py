"""Delivers all objects of one kind and their changes: list, then watch, then resume where the watch ended.

A list is read in pages, with quorum (no resource version). A watch resumes from the last version that it delivered,
bookmarks included. The API server sends no bookmarks while nothing changes, so a silent watch is opened again: if the
server accepts it, the server is alive. If the version is too old (410), the reflector lists again. Failed calls are
retried after an exponential back-off with full jitter. After an exception in our own code, everything is listed again.
A kind that the server does not serve (no CRD) counts as an empty list, and is listed again later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from gputopo.kube.client import Kube
from gputopo.kube.errors import DamagedError, GoneError, KubeError, NotFoundError, UnavailableError
from gputopo.kube.objects import Unreadable
from gputopo.kube.projection import Delta, Projection, WatchSource
from gputopo.kube.watch_stream import WatchEvent, WatchEventType, WatchStream
from gputopo.timestamps import parse_timestamp
from gputopo.timing import MISSING_KIND_RETRY_S

S = TypeVar("S")
# The server ends a watch after about this time, so that watches also move to API servers that started later.
SHORTEST_WATCH_S, LONGEST_WATCH_S = 300.0, 600.0
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0
LONGEST_RETRY_AFTER_S = 60.0  # the longest Retry-After of a server that is respected
AT_ONCE_S = 1.0  # a watch that delivered nothing and ended sooner counts as failed
STEADY_S = 10.0  # a watch that lasted this long resets the back-off: a proxy may cut every watch
_log = logging.getLogger(__name__)
_GENERATOR = Random()  # noqa: S311  spreads load; not used for security


class WatchTiming(NamedTuple):
    """The clocks, the random generator and the wait function."""

    clock: Callable[[], float] = time.monotonic  # in seconds, for ages
    wall: Callable[[], float] = time.time  # seconds since 1970, to compare with the API server's
    wait: Callable[[threading.Event, float], object] = threading.Event.wait  # or until the event is set
    random: Random = _GENERATOR


class ReflectorStatus(NamedTuple):
    """The status of a reflector."""

    synced: bool = False  # a complete list was delivered
    last_event_at: float | None = None  # by ``clock``: the last page, accepted watch or event of the server
    relists: int = 0  # lists after the first
    failures: int = 0  # calls that failed and streams that broke
    error: str | None = None  # the current error
    served: bool = True  # the server serves this kind
    lag_s: float | None = None  # from creation to delivery, of the last object that was created during a watch
    unreadable: int = 0  # objects that cannot be decoded
    moved: float | None = None  # by ``clock``: the last activity of its thread; None: not started


class Reflector(Generic[S]):
    """Lists and watches one kind. ``run`` blocks its thread; ``stop`` and ``status`` are for other threads."""

    def __init__(
        self, kube: Kube, source: WatchSource[S], deliver: Callable[[Delta[S]], None], timing: WatchTiming
    ) -> None:
        self._kube = kube
        self._source = source
        self._deliver = deliver
        self._timing = timing
        self._reduction = Projection(source)
        self._stopped = threading.Event()
        self._watch: WatchStream | None = None
        self._version: str | None = None  # the last version that was delivered; None: list first
        self._damaged: str | None = None  # the version from which a watch was damaged
        self._in_a_row = 0  # failures since a watch last delivered something
        self._lists = 0
        self._condition = ReflectorStatus()

    @property
    def status(self) -> ReflectorStatus:
        """The current status."""
        unreadable = self._reduction.unreadable
        return self._condition._replace(
            relists=max(0, self._lists - 1),
            error=self._condition.error or _unreadable_error(unreadable),
            unreadable=len(unreadable),
        )

    def run(self) -> None:
        """List and watch until ``stop``, also after exceptions of ``deliver`` or our own code."""
        self._note()
        try:
            while not self._stopped.is_set():
                self._turn()
        except BaseException as error:
            self._note(error=f"the watch of {self._source.resource.plural} ended: {error!r}")
            raise

    def stop(self) -> None:
        """Stop: nothing more is delivered. A call that waits for an answer ends by its own timeout."""
        self._stopped.set()
        if self._watch is not None:
            self._watch.close()

    def _turn(self) -> None:
        try:
            if self._version is None:
                self._list()
            else:
                self._follow(self._version)
        except NotFoundError as missing:
            self._version = None
            if missing.kind_missing:
                self._missing()
            else:
                self._failed(missing)
        except GoneError as gone:
            self._version = None
            self._failed(gone)
        except DamagedError as damaged:
            if self._version == self._damaged:  # damaged again at this version: a list avoids the damaged event
                self._version = None
            self._damaged = self._version
            self._failed(damaged)
        except KubeError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001  without its watch, the cache would never change again
            plural = self._source.resource.plural
            if self._stopped.is_set():
                return  # nothing more is delivered
            _log.exception("watch", extra={"fields": {"kind": plural, "error": repr(error)}})
            self._version = None  # it is unknown which of the last changes were delivered
            self._failed(KubeError(f"the watch of {plural} failed, and lists again: {error!r}"))

    def _list(self) -> None:
        self._lists += 1
        versions = [""]
        delta = self._reduction.apply_list(self._objects(versions))
        if not self._stopped.is_set():
            self._deliver(delta)
            self._version = versions[-1]
            self._note(synced=True, served=True, error=None)

    def _objects(self, versions: list[str]) -> Iterator[msgspec.Raw]:
        for page in self._kube.list_pages(self._source.resource, msgspec.Raw, self._source.query):
            self._note(last_event_at=self._timing.clock())
            versions.append(page.metadata.resource_version)
            yield from page.items
            if self._stopped.is_set():
                return

    def _follow(self, version: str) -> None:
        seconds = self._timing.random.uniform(SHORTEST_WATCH_S, LONGEST_WATCH_S)
        watch = self._kube.watch(self._source.resource, self._source.query, version, seconds)
        self._watch = watch
        if self._stopped.is_set():  # stopped while the watch was being opened
            watch.close()
        opened = self._timing.clock()
        self._note(last_event_at=opened, error=None)
        quiet = True
        try:
            for events in watch:
                quiet = False
                self._take(events)
                self._in_a_row = 0
        finally:
            lasted = self._timing.clock() - opened
            if lasted >= STEADY_S:
                self._in_a_row = 0
        if quiet and lasted < AT_ONCE_S and not self._stopped.is_set():
            raise UnavailableError(f"watch {self._source.resource.path()}: it ended at once, and brought nothing")

    def _take(self, events: tuple[WatchEvent, ...]) -> None:
        self._note(last_event_at=self._timing.clock())
        if self._stopped.is_set() or not events:
            return
        for event in events:
            if event.type is WatchEventType.ADDED and event.identity.creation_timestamp is not None:
                self._created(event.identity.creation_timestamp)
        delta = self._reduction.apply_events(event for event in events if event.type is not WatchEventType.BOOKMARK)
        if delta.updates or delta.removed:
            self._deliver(delta)
        self._version = events[-1].identity.resource_version

    def _created(self, timestamp: str) -> None:
        created = parse_timestamp(timestamp)
        if created is not None:
            self._note(lag_s=max(0.0, self._timing.wall() - created))

    def _missing(self) -> None:
        """Deliver an empty list, because the server does not serve the kind. It may serve the kind later."""
        told = f"the API server does not serve {self._source.resource.plural} ({self._source.resource.api_version})"
        if not self._stopped.is_set() and not (self._condition.synced and self._reduction.is_empty):
            self._deliver(self._reduction.apply_list(()))
        self._in_a_row = 0
        self._note(last_event_at=self._timing.clock(), synced=True, served=False, error=told)
        self._timing.wait(self._stopped, MISSING_KIND_RETRY_S)

    def _failed(self, error: KubeError) -> None:
        self._in_a_row += 1
        self._note(failures=self._condition.failures + 1, error=str(error))
        longest = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(self._in_a_row - 1, 10))
        asked = error.retry_after if isinstance(error, UnavailableError) else None
        pause = max(min(asked or 0.0, LONGEST_RETRY_AFTER_S), self._timing.random.uniform(0, longest))
        self._timing.wait(self._stopped, pause)

    def _note(self, **changes: Any) -> None:
        self._condition = self._condition._replace(moved=self._timing.clock(), **changes)


def _unreadable_error(unreadable: tuple[Unreadable, ...]) -> str | None:
    """Return the first object that cannot be decoded, with the reason, and the number of other such objects."""
    if not unreadable:
        return None
    more = f" (nor can {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
    first = unreadable[0]
    return f"{first.plural} {first.name} cannot be read{more}: {first.why}"
