"""Reduces the objects of a list or a watch to small values, and returns the values that changed. No I/O.

Each object is decoded, reduced and dropped before the next one: of a cluster of 100,000 pods only the values that the
caller keeps stay in memory, plus one reference to each. If an object cannot be decoded or reduced, its last value
stays, and no other object is affected.
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
_SHOWN = 200  # characters of the reason why an object cannot be decoded


class WatchSource(NamedTuple, Generic[S]):
    """A kind of object to list and watch, and how to reduce each object to a value."""

    resource: Resource
    kind: type[Any]  # the type that an object is decoded into
    key: Callable[[ObjectIdentity], str]
    value: Callable[[str, Any], S | None]  # of key and object; None: the object is not kept
    # All fields that ``value`` uses, or their hash. While it is unchanged, the value is not computed again. None: the
    # value is always computed.
    fingerprint: Callable[[Any], Hashable] | None = None
    query: ListOptions = ListOptions()


class Delta(NamedTuple, Generic[S]):
    """The changes. An object is either in ``updates`` or in ``removed``."""

    updates: tuple[S, ...] = ()
    removed: tuple[str, ...] = ()  # keys; also of objects that were never in ``updates``
    is_full_list: bool = False  # objects that are not in ``updates`` do not exist


class _Projected(NamedTuple, Generic[S]):
    value: S
    fingerprint: Hashable


class Projection(Generic[S]):
    """The last value of each object that is kept."""

    def __init__(self, source: WatchSource[S]) -> None:
        self._source = source
        self._decode = decoder(source.kind)
        self._known: dict[str, _Projected[S]] = {}
        self._unreadable: dict[str, Unreadable] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no value is kept."""
        return not self._known

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """The objects that cannot be decoded."""
        return tuple(self._unreadable.copy().values())  # a copy: any thread may read it

    def apply_list(self, objects: Iterable[msgspec.Raw]) -> Delta[S]:
        """Replace all values by those of a complete list. If ``objects`` raises, nothing changes."""
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
        """Return the changes by these events. If an object has several events, the last counts."""
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
        """Return the value of an object: the same Python object as before if it is unchanged."""
        key = self._source.key(which)
        before = self._known.get(key)
        try:
            found = self._valued(key, text, before)
        except Exception as error:  # noqa: BLE001  objects may be hostile: an error in one must not hide the others
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
