"""Records all events of some kinds of objects in their order across kinds.

All objects of a test cluster are in one etcd, and its revision is the resource version of each object. So the events of
several watches merge into one history without gaps, and invariants can be checked at every instant. (The API does not
promise that versions of different kinds are comparable; with one etcd they are.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import urllib3

from tests.api_client import ApiError, Client, Watch
from tests.api_objects import Object
from tests.e2e.cluster import wait_for

PAUSE_S = 0.2  # before a watch that ended is opened again
QUIET_S = 0.3  # without an event: what came and went is in no list, so only silence says that it was seen
PATIENCE_S = 60.0  # for an API server that is away


class Event(NamedTuple):
    """An object was added, modified or deleted."""

    version: int
    kind: str
    type: str  # "ADDED" "MODIFIED" "DELETED"
    object: Object


class History:
    """Follows collections, kind -> path."""

    def __init__(self, api: Client, collections: Mapping[str, str]) -> None:
        self._followers = [_Follower(api, kind, path) for kind, path in collections.items()]

    def events(self) -> list[Event]:
        """Return all events until now, in order. Call it while nothing changes."""
        before = -1
        while (count := sum(len(each.events) for each in self._followers)) != before:
            before = count
            for each in self._followers:
                wait_for(each.caught_up, f"the history of {each.kind}", PATIENCE_S)
            time.sleep(QUIET_S)
        return sorted((event for each in self._followers for event in each.events), key=lambda event: event.version)

    def stop(self) -> None:
        """Stop it."""
        for each in self._followers:
            each.stop()


@contextmanager
def history(api: Client, collections: Mapping[str, str]) -> Iterator[History]:
    """Follow these collections within the context."""
    with ExitStack() as ends:
        following = History(api, collections)
        ends.callback(following.stop)
        yield following


class _Follower:
    """One collection. ``events`` only grows."""

    def __init__(self, api: Client, kind: str, path: str) -> None:
        self.kind = kind
        self.events: list[Event] = []
        self._api, self._path = api, path
        self._there: dict[str, Object] = {}  # by uid
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._watch = self._relisted()
        self._thread = threading.Thread(target=self._run, name=f"history of {kind}")
        self._thread.start()

    def caught_up(self) -> bool:
        """Return whether exactly the objects of a present list have been seen."""
        if self._failure is not None:
            raise self._failure
        listed = {each["metadata"]["uid"]: _version(each) for each in self._api.items(self._path)}
        return listed == {uid: _version(each) for uid, each in list(self._there.items())}

    def stop(self) -> None:
        self._stopping.set()
        self._watch.stop()
        self._thread.join()

    def _run(self) -> None:
        """Follow the watch; after its end, continue from a new list: changes in between become one event."""
        try:
            while not self._stopping.is_set():
                for kind, each in self._watch:
                    self._note(kind, each)
                if not self._stopping.wait(PAUSE_S):
                    self._watch = self._reopened()
        except Exception as failed:  # noqa: BLE001 - a thread's failure must reach the test
            self._failure = failed

    def _reopened(self) -> Watch:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._relisted()
            except (urllib3.exceptions.HTTPError, ApiError):
                if self._stopping.wait(PAUSE_S) or time.monotonic() > deadline:
                    raise

    def _relisted(self) -> Watch:
        listed = self._api.get(self._path)
        version = listed["metadata"]["resourceVersion"]
        now = {each["metadata"]["uid"]: each for each in listed["items"]}
        for uid in self._there.keys() - now.keys():
            last = self._there[uid]
            self._note("DELETED", last | {"metadata": last["metadata"] | {"resourceVersion": version}})
        for uid, each in now.items():
            before = self._there.get(uid)
            if before is None or _version(before) != _version(each):
                self._note("ADDED" if before is None else "MODIFIED", each)
        return self._api.watch(self._path, version)

    def _note(self, kind: str, each: Object) -> None:
        self.events.append(Event(_version(each), self.kind, kind, each))
        if kind == "DELETED":
            self._there.pop(each["metadata"]["uid"], None)
        else:
            self._there[each["metadata"]["uid"]] = each


def _version(found: Object) -> int:
    return int(found["metadata"]["resourceVersion"])
