"""A clean slate between tests: whatever was not there when the API server started is deleted, of every kind.

Found by asking the server for all its kinds, so that objects which a scheduler, a controller or a pod made are found
as well as those of the test. Changes to objects that the server itself made (say, labels of ``kube-system``) stay.

    LeftoversError(Exception)    something resisted; the message names it
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from tests.api_client import ApiError, Client
from tests.api_objects import Object

DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
# Deleted by the dozen, one by one costs less; above that the server does it in one call.
COLLECTION = 24
# First, for what they deny includes our deletions.
GUARDS = "admissionregistration.k8s.io"
GUARD_LAG_S = 1.5  # the API server looks once a second which policies there are, and goes by that until then
TIMEOUT_S = 30.0  # without any progress


class LeftoversError(Exception):
    """Some objects of a test could not be deleted."""


class Kind(NamedTuple):
    """A kind that can be listed and deleted."""

    root: str  # "/api/v1", "/apis/apps/v1"
    resource: str  # "pods"
    namespaced: bool
    collection: bool  # may be deleted as a collection

    def path(self, namespace: str = "", name: str = "") -> str:
        """Path of an object, or of the collection in a namespace or everywhere."""
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.root}{within}/{self.resource}" + (f"/{name}" if name else "")


class Found(NamedTuple):
    """One object."""

    kind: Kind
    namespace: str
    name: str
    held: bool  # by finalizers


def inventory(client: Client, kinds: Iterable[Kind] | None = None) -> set[Found]:
    """Every object of these kinds, by default of all kinds, as they are now."""
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda kind: _list(client, kind), _kinds(client) if kinds is None else kinds)
        return {each for of_kind in found for each in of_kind}


def clean(client: Client, baseline: set[Found]) -> None:
    """Delete everything but the baseline. Raises ``LeftoversError`` where that goes on no more."""
    kept = {(found.kind.root, found.kind.resource, found.namespace, found.name) for found in baseline}

    def new(found: Found) -> bool:
        return (found.kind.root, found.kind.resource, found.namespace, found.name) not in kept

    extra = {found for found in inventory(client) if new(found)}
    guarded = any(GUARDS in found.kind.root for found in extra)
    deadline = time.monotonic() + TIMEOUT_S
    fewest = len(extra)
    while extra:
        if len(extra) < fewest:
            fewest, deadline = len(extra), time.monotonic() + TIMEOUT_S
        if time.monotonic() > deadline:
            raise LeftoversError(f"still there after {TIMEOUT_S:g} s: {sorted(extra)[:5]} ({len(extra)} in all)")
        for batch in _batches(extra):
            _delete(client, batch, kept)
        time.sleep(0.02)
        extra = {found for found in inventory(client, {found.kind for found in extra}) if new(found)}
    if guarded:
        time.sleep(GUARD_LAG_S)


def _kinds(client: Client) -> list[Kind]:
    """All kinds, each in its preferred version. Events are there under two groups; one of them will do."""
    kinds = []
    for root in ("/api", "/apis"):
        for group in client.request("GET", root, headers={"Accept": DISCOVERY})["items"]:
            name = group["metadata"].get("name", "")
            version = group["versions"][0]
            path = f"/apis/{name}/{version['version']}" if name else f"/api/{version['version']}"
            kinds += [_kind(path, each) for each in version["resources"] if _ours(name, each)]
    return kinds


def _ours(group: str, resource: Object) -> bool:
    return {"list", "delete"} <= set(resource["verbs"]) and (group, resource["resource"]) != ("events.k8s.io", "events")


def _kind(root: str, resource: Object) -> Kind:
    collection = "deletecollection" in resource["verbs"]
    return Kind(root, resource["resource"], resource["scope"] == "Namespaced", collection)


def _list(client: Client, kind: Kind) -> list[Found]:
    try:
        listed = client.request("GET", kind.path(), headers={"Accept": METADATA_ONLY})
    except ApiError as refused:
        if refused.status in {404, 405, 503}:  # a custom resource that goes just now
            return []
        raise
    metadata = [item["metadata"] for item in listed["items"] or ()]
    return [Found(kind, each.get("namespace", ""), each["name"], bool(each.get("finalizers"))) for each in metadata]


def _batches(found: set[Found]) -> list[list[Found]]:
    """Guards first, then what runs, namespaces last."""

    def order(each: Found) -> int:
        if GUARDS in each.kind.root:
            return 0
        return 2 if each.kind.resource in {"namespaces", "customresourcedefinitions"} else 1

    return [[each for each in found if order(each) == turn] for turn in range(3)]


def _delete(client: Client, found: list[Found], kept: set[tuple[str, str, str, str]]) -> None:
    groups: dict[tuple[Kind, str], list[Found]] = {}
    for each in found:
        groups.setdefault((each.kind, each.namespace), []).append(each)
    shared = {(root, resource, namespace) for root, resource, namespace, _ in kept}
    calls: list[Callable[[], None]] = []
    for (kind, namespace), members in groups.items():
        alone = (kind.root, kind.resource, namespace) not in shared
        if kind.collection and alone and len(members) > COLLECTION and not any(each.held for each in members):
            calls.append(partial(client.delete, kind.path(namespace)))
        else:
            calls += [partial(_delete_one, client, each) for each in members]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(_tolerated, calls))


def _delete_one(client: Client, found: Found) -> None:
    path = found.kind.path(found.namespace, found.name)
    if found.kind.resource == "namespaces":  # its finalizer is the namespace controller's, which may not run
        client.replace(f"{path}/finalize", {"metadata": {"name": found.name}, "spec": {"finalizers": []}})
    elif found.held and found.kind.resource != "customresourcedefinitions":  # the API server's own finalizer
        client.patch(path, {"metadata": {"finalizers": None}})
    client.delete(path)


def _tolerated(call: Callable[[], None]) -> None:
    try:
        call()
    except ApiError as refused:
        if refused.status not in {403, 404, 409, 422}:  # gone, changed, or denied by a policy that goes: next round
            raise
