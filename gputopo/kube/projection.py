"""Objects of a list or a watch -> the small values that are kept of them, and the changed values. No I/O.

Objects are decoded, projected and dropped one at a time: of a cluster of 100,000 pods only the values that the caller
keeps stay in memory, plus one reference to each. If an object cannot be decoded, or ``WatchSource`` raises an error for
it, its last value stays; other objects are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from gputopo.kube.client import ListOptions
from gputopo.kube.errors import DamagedError
from gputopo.kube.objects import Unreadable
from gputopo.kube.rbac import Resource
from gputopo.kube.watch_stream import ObjectIdentity, WatchEvent, WatchEventType, parse_identity
from gputopo.process.decoding import decoder

S = TypeVar("S")
_REASON_LENGTH = 200  # characters
_IDENTITY = {"name", "uid", "namespace"}  # of an object's metadata


class WatchSource(NamedTuple, Generic[S]):
    """The objects to list and watch, and the function that projects them."""

    resource: Resource
    kind: type[Any]  # the type that an object is decoded into
    key: Callable[[ObjectIdentity], str]
    value: Callable[[str, Any], S | None]  # of key and object; None: no value is kept
    # Everything that ``value`` reads, or its hash: if unchanged, ``value`` is not called; None: always call it.
    fingerprint: Callable[[Any], Hashable] | None = None
    query: ListOptions = ListOptions()
    optional: bool = False  # without the right to read the objects, there are none


class Delta(NamedTuple, Generic[S]):
    """Changed and removed values. A key is never in both."""

    updates: tuple[S, ...] = ()
    removed: tuple[str, ...] = ()  # keys, including keys that never had a value
    is_full_list: bool = False  # all values that are not in ``updates`` are removed


class _Projected(msgspec.Struct, Generic[S], frozen=True, gc=False):
    value: S
    fingerprint: Hashable


class Projection(Generic[S]):
    """The last value of each object that has one."""

    def __init__(self, source: WatchSource[S]) -> None:
        self._source = source
        self._decode = decoder(source.kind)
        self._projected: dict[str, _Projected[S]] = {}
        self._unreadable: dict[str, Unreadable] = {}

    @property
    def is_empty(self) -> bool:
        """Return whether there are no values."""
        return not self._projected

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """Return the objects that cannot be decoded."""
        return tuple(self._unreadable.copy().values())  # a copy, because any thread may call this

    @property
    def listed_kind(self) -> type[Any]:
        """Return the type to decode listed objects into: that of the source, if it contains an object's identity."""
        kind = self._source.kind
        metadata = next((each.type for each in msgspec.structs.fields(kind) if each.name == "metadata"), None)
        return kind if set(getattr(metadata, "__struct_fields__", ())) >= _IDENTITY else msgspec.Raw

    def apply_list(self, objects: Iterable[Any]) -> Delta[S]:
        """Replace all values. If iterating ``objects`` raises an error, it is passed on and nothing changes.

        ``objects``: decoded into ``listed_kind``, or undecoded (``msgspec.Raw``).
        """
        projected: dict[str, _Projected[S]] = {}
        unreadable: dict[str, Unreadable] = {}
        key_of = self._source.key
        for each in objects:
            try:
                identity = parse_identity(each) if isinstance(each, msgspec.Raw) else _identity(each.metadata)
            except DamagedError as error:
                unreadable[f"({len(unreadable)})"] = self._make_unreadable("(unknown)", error)
                continue
            key = key_of(identity)
            found = self._project_or_keep(key, identity, each, unreadable)
            if found is not None:
                projected[key] = found
        self._projected, self._unreadable = projected, unreadable
        return Delta(tuple(each.value for each in projected.values()), is_full_list=True)

    def apply_events(self, events: Iterable[WatchEvent]) -> list[Delta[S]]:
        """Apply the events. Return the changes, most often all in one ``Delta``.

        If an object has several events, the last one counts. But a change is delivered before the end of its object: a
        pod that was bound and deleted since the last call has used its GPUs.
        """
        deltas: list[Delta[S]] = []
        changes: dict[str, S | None] = {}
        for event in events:
            key = self._source.key(event.identity)
            if event.type is WatchEventType.DELETED:
                if changes.get(key) is not None:
                    deltas.append(_delta(changes))
                    changes = {}
                self._projected.pop(key, None)
                self._unreadable.pop(key, None)
                changes[key] = None
                continue
            before = self._projected.get(key)
            found = self._project_or_keep(key, event.identity, event.object, self._unreadable)
            if found is not None:
                self._projected[key] = found
                if before is None or found.value is not before.value:
                    changes[key] = found.value
            elif before is not None:
                del self._projected[key]
                changes[key] = None
        if changes:
            deltas.append(_delta(changes))
        return deltas

    def _project_or_keep(
        self, key: str, identity: ObjectIdentity, listed: Any, unreadable: dict[str, Unreadable]
    ) -> _Projected[S] | None:
        """Return the value of an object: the last one (the same Python object) if it is equal, or after an error."""
        before = self._projected.get(key)
        try:
            found = self._project(key, listed, before)
        except Exception as error:  # noqa: BLE001  hostile input: an error in an object must not hide the others
            unreadable[key] = self._make_unreadable(identity.full_name, error)
            return before
        if unreadable:
            unreadable.pop(key, None)
        return found

    def _make_unreadable(self, name: str, error: Exception) -> Unreadable:
        reason = str(error) if isinstance(error, (msgspec.DecodeError, DamagedError)) else repr(error)
        return Unreadable(self._source.resource.plural, name, reason[:_REASON_LENGTH])

    def _project(self, key: str, listed: Any, before: _Projected[S] | None) -> _Projected[S] | None:
        decoded = self._decode(listed) if isinstance(listed, msgspec.Raw) else listed
        fingerprint = None if self._source.fingerprint is None else self._source.fingerprint(decoded)
        if before is not None and fingerprint is not None and fingerprint == before.fingerprint:
            return before
        value = self._source.value(key, decoded)
        if value is None:
            return None
        return _Projected(before.value if before is not None and before.value == value else value, fingerprint)


def _delta(changes: Mapping[str, S | None]) -> Delta[S]:
    return Delta(
        tuple(value for value in changes.values() if value is not None),
        tuple(key for key, value in changes.items() if value is None),
    )


def _identity(metadata: Any) -> ObjectIdentity:
    if not metadata.name:
        raise DamagedError("an object without a name")
    return ObjectIdentity(name=metadata.name, uid=metadata.uid, namespace=metadata.namespace)
