"""A cluster as ``kubectl get nodes,pods,nodegpus,placementreservations,placementledgers -A -o json`` prints it. Pure.

It is read by the conversions of the watches, so a page of a file shows what a page of that cluster showed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from gputopo.kube.objects import Unreadable
from gputopo.kube.projection import Projection
from gputopo.process.decoding import decode
from scheduler_core.cache.events import Batch
from scheduler_core.cache.watch import Sources

EXPECTED = "kubectl get nodes,pods,nodegpus,placementreservations,placementledgers -A -o json"


class ClusterFileError(ValueError):
    """The file is not what kubectl prints."""


class _Item(msgspec.Struct):
    kind: str = ""


class _List(msgspec.Struct):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


def read_cluster_file(text: bytes, sources: Sources) -> tuple[list[Batch[object]], list[Unreadable]]:
    """Return a full list of each kind, and the objects that cannot be read. Raises ``ClusterFileError``."""
    known = {source.resource.plural for source in sources.values()}
    by_plural: dict[str, list[msgspec.Raw]] = {}
    for raw in _items(text):
        try:
            kind = decode(raw, _Item).kind
        except msgspec.MsgspecError as error:
            raise ClusterFileError(
                f"an item is no Kubernetes object: {error}; print the file with: {EXPECTED}"
            ) from None
        by_plural.setdefault(_plural(kind, known), []).append(raw)
    if "nodes" not in by_plural:
        raise ClusterFileError(f"no Node found; print the file with: {EXPECTED}")
    batches: list[Batch[object]] = []
    unreadable: list[Unreadable] = []
    for update, source in sources.items():
        projection = Projection(source)
        delta = projection.apply_list(by_plural.get(source.resource.plural, ()))
        batches.append(Batch(update, *delta))
        unreadable += projection.unreadable
    return batches, unreadable


def _plural(kind: str, known: Collection[str]) -> str:
    """Return the plural of a kind, as in URLs; "" if it is none of these."""
    return next((name for end in ("s", "es", "") if (name := f"{kind.lower()}{end}") in known), "")


def _items(text: bytes) -> Iterator[msgspec.Raw]:
    try:
        found = decode(text, _List)
    except msgspec.MsgspecError as error:
        raise ClusterFileError(f"invalid JSON, or not printed by kubectl: {error}; expected: {EXPECTED}") from None
    return iter([msgspec.Raw(text)] if found.items is None else found.items)
