"""Objects of a list or a watch -> the small values that are kept of them, and which of those are news. No I/O.

An object is decoded, reduced and dropped, one after the other: of a cluster of 100,000 pods nothing stays but what the
caller keeps, plus one reference to it. One that cannot be read, or that ``Source`` raises anything for, stays as it was
last seen; it hides no other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from gputopo.kube.client import ListOptions
from gputopo.kube.errors import DamagedError
from gputopo.kube.objects import Unreadable
from gputopo.kube.rbac import Resource
from gputopo.kube.watch_stream import ObjectIdentity, WatchEvent, WatchEventType, parse_identity
from gputopo.process.decoding import decoder

S = TypeVar("S")
_SHOWN = 200  # characters of why an object cannot be read


class WatchSource(NamedTuple, Generic[S]):
    """What is listed and watched, and what is kept of it."""

    resource: Resource
    kind: type[Any]  # what an object is decoded into
    key: Callable[[ObjectIdentity], str]
    value: Callable[[str, Any], S | None]  # key and object; None: nothing of it is kept
    # All that ``value`` looks at, or its hash. Where it did not change the value is not made again; None: always made.
    fingerprint: Callable[[Any], Hashable] | None = None
    query: ListOptions = ListOptions()


class Delta(NamedTuple, Generic[S]):
    """What is new. A key is either in ``seen`` or in ``gone``."""

    updates: tuple[S, ...] = ()
    removed: tuple[str, ...] = ()  # whether they were ever seen or not
    is_full_list: bool = False  # what is not in ``seen`` is gone


class _Projected(NamedTuple, Generic[S]):
    value: S
    fingerprint: Hashable


class Projection(Generic[S]):
    """What was last told of each object that something is kept of."""

    def __init__(self, source: WatchSource[S]) -> None:
        self._source = source
        self._decode = decoder(source.kind)
        self._known: dict[str, _Projected[S]] = {}
        self._unreadable: dict[str, Unreadable] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not self._known

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """The objects that cannot be read."""
        return tuple(self._unreadable.copy().values())  # a copy: any thread may ask

    def apply_list(self, objects: Iterable[msgspec.Raw]) -> Delta[S]:
        """All there are. Raises what reading them on raises, and forgets nothing then."""
        known: dict[str, _Projected[S]] = {}
        unreadable: dict[str, Unreadable] = {}
        for text in objects:
            try:
                which = parse_identity(text)
            except DamagedError as error:
                unreadable[f"({len(unreadable)})"] = self._cannot_read("(unknown)", error)
                continue
            key = self._source.key(which)
            found = self._reduced(which, text, unreadable)
            if found is not None:
                known[key] = found
        self._known, self._unreadable = known, unreadable
        return Delta(tuple(each.value for each in known.values()), is_full_list=True)

    def apply_events(self, events: Iterable[WatchEvent]) -> Delta[S]:
        """What is new after these events; of several of one object the last counts."""
        news: dict[str, S | None] = {}
        for event in events:
            key = self._source.key(event.identity)
            if event.type is WatchEventType.DELETED:
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

    def _reduced(
        self, which: ObjectIdentity, text: msgspec.Raw, unreadable: dict[str, Unreadable]
    ) -> _Projected[S] | None:
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

    def _valued(self, key: str, text: msgspec.Raw, before: _Projected[S] | None) -> _Projected[S] | None:
        decoded = self._decode(text)
        trace = None if self._source.fingerprint is None else self._source.fingerprint(decoded)
        if before is not None and trace is not None and trace == before.fingerprint:
            return before
        value = self._source.value(key, decoded)
        if value is None:
            return None
        return _Projected(before.value if before is not None and before.value == value else value, trace)
