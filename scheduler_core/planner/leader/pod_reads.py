"""Reads pods and other objects when they are needed, because no watch keeps them. Damaged objects are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar

import msgspec

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import NotFoundError
from gputopo.kube.rbac import PODS, Resource
from gputopo.process.decoding import decode

_FEW = 16  # so many pods of a namespace are read one by one


class Identity(Protocol):
    """The part of ``metadata`` that identifies a pod."""

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...


class IdentifiedPod(Protocol):
    """A pod, reduced to what a reader needs."""

    @property
    def metadata(self) -> Identity: ...


T = TypeVar("T")
P = TypeVar("P", bound=IdentifiedPod)


def read_pages(kube: Kube, resource: Resource, kind: type[T], query: ListOptions) -> Iterator[list[T | None]]:
    """Yield all objects in pages; None: it cannot be decoded. Raises ``KubeError``."""
    for page in kube.list_readable(resource, kind, query):
        yield [_decoded(each, kind) if isinstance(each, msgspec.Raw) else each for each in page.items]


def read_named_pods(kube: Kube, kind: type[P], uids: Mapping[str, str], query: ListOptions) -> dict[str, P]:
    """Return the pods of a namespace that exist, by UID. ``uids``: by name. Raises ``KubeError``."""
    found = (each for each in _named_pods(kube, kind, uids, query) if each is not None)
    return {each.metadata.uid: each for each in found if uids.get(each.metadata.name) == each.metadata.uid}


def _named_pods(kube: Kube, kind: type[P], uids: Mapping[str, str], query: ListOptions) -> Iterator[P | None]:
    if len(uids) > _FEW:
        for page in read_pages(kube, PODS, kind, query):
            yield from page
        return
    for name in uids:
        try:
            yield kube.get(PODS, name, kind, query)
        except NotFoundError:
            continue


def _decoded(text: msgspec.Raw, kind: type[T]) -> T | None:
    try:
        return decode(text, kind)
    except msgspec.DecodeError:
        return None
