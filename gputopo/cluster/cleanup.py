"""``gputopo cleanup``: takes away what gputopo's agents left in a cluster, and nothing else.

On Nodes that is what ``metadata.managedFields`` says our two field managers own. An apply of nothing gives all of it
up: the API server removes what nobody else owns, and leaves what somebody else has set too. ``NodeGpus`` objects and
what planners wrote down are ours by their kind, NFD's ``NodeFeature`` objects where our field manager made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, TypeVar

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import KubeError, NotFoundError
from gputopo.kube.objects import Managed, ManagedMetadata, ObjectMeta, PartialObject
from gputopo.kube.ownership import OwnedField, owned_fields, owners
from gputopo.kube.rbac import DEFINITIONS, LEDGERS, NODE_FEATURES, NODE_GPUS, NODES, RESERVATIONS, Resource
from gputopo.labels.keys import FIELD_MANAGER, MIRROR_FIELD_MANAGER, NFD_NODE_NAME

MANAGERS = (FIELD_MANAGER, MIRROR_FIELD_MANAGER)
T = TypeVar("T")
_AT_ONCE = 8  # calls; a large cluster is done in minutes without being a burden to its API server


class Removal(NamedTuple):
    """One thing to remove: the fields of a manager on a Node, or an object as a whole."""

    resource: Resource
    metadata: ObjectMeta
    manager: str = ""  # of a Node's fields; "" for an object
    fields: tuple[OwnedField, ...] = ()  # that go
    shared: tuple[OwnedField, ...] = ()  # that we give up and others keep

    def __str__(self) -> str:
        within = f"{self.metadata.namespace}/" if self.metadata.namespace and self.resource == RESERVATIONS else ""
        name = f"{self.resource.plural}/{within}{self.metadata.name}"
        if not self.manager:
            return name
        went = [f"{field.section[:-1]} {field.key}" for field in self.fields]
        return f"{name}: " + ", ".join(
            [*went, *(f"{field.key} (others own it too: it stays)" for field in self.shared)]
        )


def find_removals(kube: Kube, node: str | None) -> list[Removal]:
    """What there is to remove of one node, or of all. Raises ``NotFoundError`` where there is no such node."""
    metadata_only = ListOptions(metadata_only=True)
    nodes = (
        [kube.get(NODES, node, Managed, metadata_only)]
        if node is not None
        else kube.list_objects(NODES, Managed, metadata_only)
    )
    removals = [removal for each in nodes for removal in node_removals(each.metadata)]
    removals += [Removal(NODE_GPUS, each.metadata) for each in _states(kube, node)]
    features = _listed(
        kube,
        NODE_FEATURES,
        Managed,
        ListOptions(labels="" if node is None else f"{NFD_NODE_NAME}={node}", metadata_only=True),
    )
    return removals + [Removal(NODE_FEATURES, each.metadata) for each in features if _made_by_us(each.metadata)]


def find_planner_objects(kube: Kube) -> list[Removal]:
    """What planners wrote down. The ledgers first: without one no reservation counts."""
    query = ListOptions(metadata_only=True)
    listed = ((kind, _listed(kube, kind, PartialObject, query)) for kind in (LEDGERS, RESERVATIONS))
    return [Removal(kind, each.metadata) for kind, found in listed for each in found]


def find_definitions(kube: Kube) -> list[Removal]:
    """The CustomResourceDefinitions of ours that are there. Without them no object of these kinds can be."""
    names = (f"{kind.plural}.{kind.group}" for kind in (LEDGERS, RESERVATIONS, NODE_GPUS))
    return [removal for name in names for removal in _definition(kube, name)]


def _definition(kube: Kube, name: str) -> Iterator[Removal]:
    with suppress(NotFoundError):
        yield Removal(DEFINITIONS, kube.get(DEFINITIONS, name, PartialObject, ListOptions(metadata_only=True)).metadata)


def node_removals(metadata: ManagedMetadata) -> Iterator[Removal]:
    """What our field managers own on a Node."""
    for manager in MANAGERS:
        mine = sorted(owned_fields(metadata, manager))
        theirs = owners(metadata, besides=manager)
        if mine:
            goes = tuple(field for field in mine if field not in theirs)
            yield Removal(NODES, metadata, manager, goes, tuple(field for field in mine if field in theirs))


def apply_removals(kube: Kube, removals: Iterable[Removal]) -> Iterator[tuple[Removal, KubeError | None]]:
    """Remove each, and say what became of it: None is done. What is gone already is done."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(lambda removal: (removal, _removed(kube, removal)), removals)


def _removed(kube: Kube, removal: Removal) -> KubeError | None:
    try:
        if removal.manager:
            name, uid = removal.metadata.name, removal.metadata.uid
            nothing = {"apiVersion": NODES.api_version, "kind": "Node", "metadata": {"name": name, "uid": uid}}
            kube.apply(NODES, removal.manager, nothing)
        else:
            kube.delete(removal.resource, removal.metadata)
    except NotFoundError:
        return None
    except KubeError as error:
        return error
    return None


def _states(kube: Kube, node: str | None) -> list[PartialObject]:
    if node is None:
        return _listed(kube, NODE_GPUS, PartialObject, ListOptions(metadata_only=True))
    try:
        return [kube.get(NODE_GPUS, node, PartialObject, ListOptions(metadata_only=True))]
    except NotFoundError:
        return []


def _listed(kube: Kube, resource: Resource, kind: type[T], query: ListOptions) -> list[T]:
    """All objects of a kind, none where the cluster does not have that kind."""
    try:
        return kube.list_objects(resource, kind, query)
    except NotFoundError:
        return []


def _made_by_us(metadata: ManagedMetadata) -> bool:
    return any(entry.manager == FIELD_MANAGER and entry.operation == "Apply" for entry in metadata.managed_fields)
