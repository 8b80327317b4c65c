"""Objects of a list or a watch -> the small values that are kept of them, and which of those are news. No I/O.

An object is decoded, reduced and dropped, one after the other: of a cluster of 100,000 pods nothing stays but what the
caller keeps, plus one reference to it. One that cannot be read, or that ``Source`` raises anything for, stays as it was
last seen; it hides no other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from gputopo.kube.client import Query
from gputopo.kube.errors import DamagedError
from gputopo.kube.objects import Unreadable
from gputopo.kube.rbac import Resource
from gputopo.kube.watch_stream import Event, Happening, Identity, identity
from gputopo.process.decoding import decoder

S = TypeVar("S")
_SHOWN = 200  # characters of why an object cannot be read


class Source(NamedTuple, Generic[S]):
    """What is listed and watched, and what is kept of it."""

    resource: Resource
    kind: type[Any]  # what an object is decoded into
    key: Callable[[Identity], str]
    value: Callable[[str, Any], S | None]  # key and object; None: nothing of it is kept
    # All that ``value`` looks at, or its hash. Where it did not change the value is not made again; None: always made.
    trace: Callable[[Any], Hashable] | None = None
    query: Query = Query()


class Delta(NamedTuple, Generic[S]):
    """What is new. A key is either in ``seen`` or in ``gone``."""

    seen: tuple[S, ...] = ()
    gone: tuple[str, ...] = ()  # whether they were ever seen or not
    complete: bool = False  # what is not in ``seen`` is gone


class _Known(NamedTuple, Generic[S]):
    value: S
    trace: Hashable


class Reduction(Generic[S]):
    """What was last told of each object that something is kept of."""

    def __init__(self, source: Source[S]) -> None:
        self._source = source
        self._decode = decoder(source.kind)
        self._known: dict[str, _Known[S]] = {}
        self._unreadable: dict[str, Unreadable] = {}

    @property
    def empty(self) -> bool:
        """Whether nothing is kept."""
        return not self._known

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """The objects that cannot be read."""
        return tuple(self._unreadable.copy().values())  # a copy: any thread may ask

    def listed(self, objects: Iterable[msgspec.Raw]) -> Delta[S]:
        """All there are. Raises what reading them on raises, and forgets nothing then."""
        known: dict[str, _Known[S]] = {}
        unreadable: dict[str, Unreadable] = {}
        for text in objects:
            try:
                which = identity(text)
            except DamagedError as error:
                unreadable[f"({len(unreadable)})"] = self._cannot_read("(unknown)", error)
                continue
            key = self._source.key(which)
            found = self._reduced(which, text, unreadable)
            if found is not None:
                known[key] = found
        self._known, self._unreadable = known, unreadable
        return Delta(tuple(each.value for each in known.values()), complete=True)

    def changed(self, events: Iterable[Event]) -> Delta[S]:
        """What is new after these events; of several of one object the last counts."""
        news: dict[str, S | None] = {}
        for event in events:
            key = self._source.key(event.identity)
            if event.type is Happening.DELETED:
                self._known.pop(key, None)
                self._unreadable.pop(key, None)
                news[key] = None
                continue
            before = self._known.get(key)
            found = self._reduced(event.identity, event.object, self._unreadable)
            if found is not None:
                self._known[key] = found
                if before is None or found.value is not before.value:
                    news[key] = found.value
            elif before is not None:
                del self._known[key]
                news[key] = None
        return Delta(
            tuple(value for value in news.values() if value is not None),
            tuple(key for key, value in news.items() if value is None),
        )

    def _reduced(self, which: Identity, text: msgspec.Raw, unreadable: dict[str, Unreadable]) -> _Known[S] | None:
        """What is kept of an object: the very same value as before where that has not changed."""
        key = self._source.key(which)
        before = self._known.get(key)
        try:
            found = self._valued(key, text, before)
        except Exception as error:  # noqa: BLE001  objects are hostile: no error of one may hide the others
            unreadable[key] = self._cannot_read(which.full_name, error)
            return before
        unreadable.pop(key, None)
        return found

    def _cannot_read(self, name: str, error: Exception) -> Unreadable:
        why = str(error) if isinstance(error, (msgspec.DecodeError, DamagedError)) else repr(error)
        return Unreadable(self._source.resource.plural, name, why[:_SHOWN])

    def _valued(self, key: str, text: msgspec.Raw, before: _Known[S] | None) -> _Known[S] | None:
        decoded = self._decode(text)
        trace = None if self._source.trace is None else self._source.trace(decoded)
        if before is not None and trace is not None and trace == before.trace:
            return before
        value = self._source.value(key, decoded)
        if value is None:
            return None
        return _Known(before.value if before is not None and before.value == value else value, trace)
