"""A cluster as kubectl prints it, see ``EXPECTED``.

``FileKube`` answers lists from such a file as the API server answered them, so that every command reads a file by the
code that reads a cluster. No I/O.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from gputopo.cluster_kinds import CLUSTER_FILE_KINDS
from gputopo.kube.client import Kube
from gputopo.kube.errors import ForbiddenError, NotFoundError
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from gputopo.kube.rbac import LEASES, NODE_GPUS, NODES, Resource, Role
from gputopo.kube.selectors import parse_selector
from gputopo.kube.watch_stream import name_of
from gputopo.process.decoding import decode
from gputopo.timestamps import parse_timestamp

EXPECTED = f"kubectl get {CLUSTER_FILE_KINDS} -A -o json"
_AHEAD_S = 600.0  # a report further ahead of our clock says nothing about the time of the file


class ClusterFileError(ValueError):
    """The file is not what kubectl prints."""


class NotInFileError(ForbiddenError):
    """The file contains no objects of the requested kind: unknown, and not none."""


class _List(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _ObjectKind(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""


class _SelectedMetadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    renew_time: str | None = None
    unschedulable: object = False


class _SelectedStatus(msgspec.Struct):
    phase: str = ""
    conditions: object = None

    @property
    def heartbeats(self) -> list[str]:
        """Return the times at which the kubelet reported the conditions of a Node."""
        conditions = self.conditions if isinstance(self.conditions, list) else []
        times = (each.get("lastHeartbeatTime") for each in conditions if isinstance(each, dict))
        return [each for each in times if isinstance(each, str)]


class _Selected(msgspec.Struct, rename="camel"):
    """The fields of an object that lists select by."""

    metadata: _SelectedMetadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _SelectedStatus = msgspec.field(default_factory=_SelectedStatus)
    observed_at: str | None = None

    @property
    def fields(self) -> dict[str, str]:
        return {
            "metadata.name": self.metadata.name,
            "spec.nodeName": self.spec.node_name,
            "spec.unschedulable": "true" if self.spec.unschedulable is True else "false",
            "status.phase": self.status.phase,
        }


class _Item(msgspec.Struct):
    raw: msgspec.Raw
    kind: _ObjectKind
    selected: _Selected | None  # None: the object is damaged; the reader of the list reports it
    full_name: str = ""  # of a damaged object: NAMESPACE/NAME, as far as it can be read


class FileKube(Kube):
    """The cluster of a file. It permits what the role permits, and only lists and gets have an answer."""

    from_file = True

    def __init__(self, text: bytes, role: Role) -> None:
        """Read the file. Raises ``ClusterFileError``."""
        super().__init__(cast("Any", None), role)
        self._items = _without_duplicates(_item(raw) for raw in _raw_items(text))
        if not any(_is_of(each, NODES) for each in self._items):
            raise ClusterFileError(f"no Node found; print the file with: {EXPECTED}")

    def lists(self, resource: Resource) -> bool:
        """Return whether the file has objects of a kind."""
        return any(_is_of(each, resource) for each in self._items)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def now(self) -> float:
        """Return the time of the file; if it is unknown, our time."""
        found = self.recorded_at()
        return time.time() if found is None else found

    def recorded_at(self) -> float | None:
        """Return about the time of the file: of the newest heartbeat of an agent or a kubelet; None without any."""
        now = time.time()
        reports = [each.selected for each in self._items if _is_of(each, NODE_GPUS)]
        leases = [
            each.selected for each in self._items if _is_of(each, LEASES) and _in_namespace(each, HEARTBEAT_NAMESPACE)
        ]
        times = [parse_timestamp(each.observed_at) for each in reports if each is not None]
        times += [parse_timestamp(each.spec.renew_time) for each in leases if each is not None]
        nodes = [each.selected for each in self._items if _is_of(each, NODES)]
        times += [parse_timestamp(text) for each in nodes if each is not None for text in each.status.heartbeats]
        return max((each for each in times if each is not None and each <= now + _AHEAD_S), default=None)

    def _read_page(
        self,
        path: str,
        parameters: Mapping[str, str],
        headers: Mapping[str, str],
        size: int,
        most: int | None,  # noqa: ARG002  a file has no pages
    ) -> tuple[bytes, int]:
        """Return the whole list as one page."""
        return self._call("GET", path, parameters, dict(headers)), size

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: dict[str, str],  # noqa: ARG002  the whole object is the answer, also where only metadata is requested
        body: dict[str, Any] | None = None,  # noqa: ARG002  nothing is written
    ) -> bytes:
        call = f"{method} {path}"
        group, version, namespace, plural, name = _parse_path(path)
        resource = Resource(plural, group, version)
        if method != "GET" or not plural:
            raise NotInFileError(f"{call}: a file has no answer to this")
        found = [each for each in self._items if _is_of(each, resource) and _in_namespace(each, namespace)]
        if name is not None:
            one = [each for each in found if each.selected is not None and each.selected.metadata.name == name]
            if one:
                return bytes(one[0].raw)
            if not found:
                raise NotInFileError(f"{call}: the file has no {plural}")
            raise NotFoundError(f"there is no {plural.removesuffix('s')} {name} in the file", kind_missing=False)
        listed = b",".join(bytes(each.raw) for each in _selected(found, query))
        return b'{"metadata":{},"items":[%b]}' % listed


def _raw_items(text: bytes) -> Iterator[msgspec.Raw]:
    try:
        found = decode(text, _List)
    except msgspec.MsgspecError as error:
        raise ClusterFileError(f"invalid JSON, or not printed by kubectl: {error}; expected: {EXPECTED}") from None
    return iter([msgspec.Raw(text)] if found.items is None else found.items)


def _item(raw: msgspec.Raw) -> _Item:
    try:
        kind = decode(raw, _ObjectKind)
    except msgspec.MsgspecError as error:
        raise ClusterFileError(
            f"an item is not a Kubernetes object: {error}; print the file with: {EXPECTED}"
        ) from None
    try:
        return _Item(raw, kind, decode(raw, _Selected))
    except msgspec.MsgspecError:
        return _Item(raw, kind, None, name_of(raw))


def _without_duplicates(items: Iterable[_Item]) -> list[_Item]:
    """Return the items; of an object that is listed twice, as by `kubectl get node,nodes`, only the first."""
    found: dict[object, _Item] = {}
    for number, item in enumerate(items):
        about = None if item.selected is None else item.selected.metadata
        identity = number if about is None else (item.kind.kind, item.kind.api_version, about.namespace, about.name)
        found.setdefault(identity, item)
    return list(found.values())


def _is_of(item: _Item, resource: Resource) -> bool:
    """Return whether an object is of a kind; one without an apiVersion, as in a hand-made file, is by its kind."""
    kind, version = item.kind.kind.lower(), item.kind.api_version
    return resource.plural in (f"{kind}s", f"{kind}es", kind) and version in ("", resource.api_version)


def _in_namespace(item: _Item, namespace: str | None) -> bool:
    return namespace is None or item.selected is None or item.selected.metadata.namespace == namespace


def _selected(items: list[_Item], query: Mapping[str, str]) -> list[_Item]:
    """Return the objects that match the selectors of a list; a damaged object matches all but the name of another."""
    label_selector, field_selector = query.get("labelSelector", ""), query.get("fieldSelector", "")
    labels, fields = parse_selector(label_selector), parse_selector(field_selector)
    _, _, name = field_selector.partition("metadata.name=")
    return [
        each
        for each in items
        if (
            name in ("", each.full_name.rpartition("/")[2])
            if each.selected is None
            else labels(each.selected.metadata.labels or {}) and fields(each.selected.fields)
        )
    ]


def _parse_path(path: str) -> tuple[str, str, str | None, str, str | None]:
    """Return group, version, namespace, plural and name of a path of ``Resource.path``."""
    root, *parts = path.strip("/").split("/")
    group = parts.pop(0) if root == "apis" else ""
    version = parts.pop(0)
    namespace = None
    if parts[0] == "namespaces" and len(parts) > 2:
        _, namespace, *parts = parts
    return group, version, namespace, parts[0], parts[1] if len(parts) > 1 else None
