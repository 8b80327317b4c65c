"""``gputopo cleanup``: removes the labels, annotations and objects of gputopo's programs, and nothing else.

On Nodes these are the fields that our two field managers own by ``metadata.managedFields``. An empty apply gives them
up: the API server removes the fields without another owner and keeps the others. ``NodeGpus``, ledgers and
reservations are ours by their kind, heartbeats by their namespace, the Leases of leader elections by their names, NFD's
``NodeFeature`` objects where our field manager created them.

A node's own credentials can write the managed fields of its Node, so a compromised node may claim that an agent set
taints or labels of administrators. There only the keys that agents write are removed, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import KubeError, NotFoundError
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from gputopo.kube.leases import Lease
from gputopo.kube.objects import Managed, ManagedMetadata, ObjectMeta, PartialObject
from gputopo.kube.ownership import OwnedField, owned_fields, owners, owns_other_fields
from gputopo.kube.rbac import DEFINITIONS, LEASES, LEDGERS, NODE_FEATURES, NODE_GPUS, NODES, RESERVATIONS, Resource
from gputopo.labels.keys import (
    FIELD_MANAGER,
    MIRROR_FIELD_MANAGER,
    MIRRORS,
    NFD_NODE_NAME,
    SCHEDULER_NAME,
    is_node_annotation,
    is_node_label,
)
from gputopo.render.report import age_words
from gputopo.timestamps import parse_timestamp

# Leases of leader elections that no manifest contains: the programs create them, in the namespace of the installation.
LEADER_LEASES = ("gputopo-extender", "gputopo-planner", SCHEDULER_NAME)
MANAGERS = (FIELD_MANAGER, MIRROR_FIELD_MANAGER)
T = TypeVar("T")
_PARALLEL = 8  # calls; a large cluster takes minutes, at a low load on its API server


class Removal(NamedTuple):
    """The fields of a manager on a Node, or a whole object, to be removed."""

    resource: Resource
    metadata: ObjectMeta
    manager: str = ""  # of a Node's fields; "" of an object
    fields: tuple[OwnedField, ...] = ()  # to be removed
    shared: tuple[OwnedField, ...] = ()  # with other owners, so they stay
    foreign: tuple[OwnedField, ...] = ()  # no agent writes them, so they stay
    is_forged: bool = False  # the managed fields contain what no agent writes

    @property
    def is_leader_lease(self) -> bool:
        """Return whether this is the Lease of a leader election, not the heartbeat of an agent."""
        return self.resource == LEASES and self.metadata.namespace != HEARTBEAT_NAMESPACE

    def __str__(self) -> str:
        has_namespace = self.resource == RESERVATIONS or self.is_leader_lease
        within = f"{self.metadata.namespace}/" if self.metadata.namespace and has_namespace else ""
        name = f"{self.resource.plural}/{within}{self.metadata.name}"
        if not self.manager:
            return name
        removed = [f"{field.section[:-1]} {field.key}" for field in self.fields]
        return f"{name}: " + ", ".join(
            [
                *removed,
                *(f"{field.key} (others own it too: it stays)" for field in self.shared),
                *(f"{field.key} (no agent writes it: it stays)" for field in self.foreign),
            ]
        )


def find_removals(kube: Kube, node: str | None) -> list[Removal]:
    """Return what there is to remove of a node, or of all nodes. Raises ``NotFoundError`` for an unknown node."""
    metadata_only = ListOptions(metadata_only=True)
    nodes = (
        [kube.get(NODES, node, Managed, metadata_only)]
        if node is not None
        else kube.list_objects(NODES, Managed, metadata_only)
    )
    removals = [removal for each in nodes for removal in node_removals(each.metadata)]
    removals += [Removal(NODE_GPUS, each.metadata) for each in _states(kube, node)]
    lease = ListOptions(HEARTBEAT_NAMESPACE, fields="" if node is None else f"metadata.name={node}", metadata_only=True)
    removals += [Removal(LEASES, each.metadata) for each in _listed(kube, LEASES, PartialObject, lease)]
    features = _listed(
        kube,
        NODE_FEATURES,
        Managed,
        ListOptions(labels="" if node is None else f"{NFD_NODE_NAME}={node}", metadata_only=True),
    )
    return removals + [Removal(NODE_FEATURES, each.metadata) for each in features if _made_by_us(each.metadata)]


def find_planner_objects(kube: Kube) -> list[Removal]:
    """Return the planners' objects. The ledgers first: without a ledger no reservation counts."""
    query = ListOptions(metadata_only=True)
    listed = ((kind, _listed(kube, kind, PartialObject, query)) for kind in (LEDGERS, RESERVATIONS))
    return [Removal(kind, each.metadata) for kind, found in listed for each in found]


def held_words(lease: Lease, now: float) -> str | None:
    """Return who holds a Lease, and when it was renewed; None: it was released or has expired."""
    holder, renewed = lease.spec.holder_identity, parse_timestamp(lease.spec.renew_time)
    if not holder or renewed is None or lease.spec.has_expired(now) is not False:
        return None
    return f"{holder} renewed it {age_words(max(0.0, now - renewed))} ago"


def find_leader_leases(kube: Kube) -> list[Lease]:
    """Return the Leases of the leader elections of gputopo's programs, of all namespaces."""
    queries = (ListOptions(fields=f"metadata.name={name}") for name in LEADER_LEASES)
    found = (each for query in queries for each in _listed(kube, LEASES, Lease, query))
    return [each for each in found if each.metadata.namespace != HEARTBEAT_NAMESPACE]


def find_definitions(kube: Kube) -> list[Removal]:
    """Return our CustomResourceDefinitions that exist; with them all objects of these kinds go."""
    names = (f"{kind.plural}.{kind.group}" for kind in (LEDGERS, RESERVATIONS, NODE_GPUS))
    return [removal for name in names for removal in _definition(kube, name)]


def _definition(kube: Kube, name: str) -> Iterator[Removal]:
    with suppress(NotFoundError):
        yield Removal(DEFINITIONS, kube.get(DEFINITIONS, name, PartialObject, ListOptions(metadata_only=True)).metadata)


def node_removals(metadata: ManagedMetadata) -> Iterator[Removal]:
    """Yield the fields that our field managers own on a Node."""
    for manager in MANAGERS:
        own = sorted(owned_fields(metadata, manager))
        others = owners(metadata, besides=manager)
        if own:
            foreign = tuple(field for field in own if not _is_written_by_agents(field))
            ours = [field for field in own if field not in foreign]
            yield Removal(
                NODES,
                metadata,
                manager,
                fields=tuple(field for field in ours if field not in others),
                shared=tuple(field for field in ours if field in others),
                foreign=foreign,
                is_forged=bool(foreign) or owns_other_fields(metadata, manager),
            )


def _is_written_by_agents(field: OwnedField) -> bool:
    if field.section == "annotations":
        return is_node_annotation(field.key)
    return is_node_label(field.key) or any(field.key == mirror.key for mirror in MIRRORS)


def apply_removals(kube: Kube, removals: Iterable[Removal]) -> Iterator[tuple[Removal, KubeError | None]]:
    """Remove each. Yield it with its error; None if it is removed or was already gone."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        yield from pool.map(lambda removal: (removal, _removed(kube, removal)), removals)


def _removed(kube: Kube, removal: Removal) -> KubeError | None:
    try:
        if removal.is_forged:
            if removal.fields:
                kube.patch(NODES, _without_fields(removal))
        elif removal.manager:
            name, uid = removal.metadata.name, removal.metadata.uid
            nothing = {"apiVersion": NODES.api_version, "kind": "Node", "metadata": {"name": name, "uid": uid}}
            kube.apply(NODES, removal.manager, nothing)
        else:
            # A program that has started since the list has changed its Lease, which then stays.
            kube.delete(removal.resource, removal.metadata, unchanged=removal.is_leader_lease)
    except NotFoundError:
        return None
    except KubeError as error:
        return error
    return None


def _without_fields(removal: Removal) -> dict[str, Any]:
    """Return the merge patch that removes the fields and nothing else."""
    metadata: dict[str, Any] = {
        "name": removal.metadata.name,
        "uid": removal.metadata.uid,
        "resourceVersion": removal.metadata.resource_version,
    }
    for field in removal.fields:
        metadata.setdefault(field.section, {})[field.key] = None
    return {"metadata": metadata}


def _states(kube: Kube, node: str | None) -> list[PartialObject]:
    if node is None:
        return _listed(kube, NODE_GPUS, PartialObject, ListOptions(metadata_only=True))
    try:
        return [kube.get(NODE_GPUS, node, PartialObject, ListOptions(metadata_only=True))]
    except NotFoundError:
        return []


def _listed(kube: Kube, resource: Resource, kind: type[T], query: ListOptions) -> list[T]:
    """Return all objects of a kind, none where the cluster does not serve that kind."""
    try:
        return kube.list_objects(resource, kind, query)
    except NotFoundError:
        return []


def _made_by_us(metadata: ManagedMetadata) -> bool:
    return any(entry.manager == FIELD_MANAGER and entry.operation == "Apply" for entry in metadata.managed_fields)
