"""The tools of the crash tests on a real API server: the proxy and the history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import urllib3

from gputopo.kube.rbac import LEASES, Resource, Role
from tests.api_client import ApiError, Client
from tests.api_objects import Object
from tests.e2e.agent.access import grant
from tests.e2e.cluster import Cluster
from tests.e2e.gangs.history import history
from tests.e2e.gangs.proxy import Proxy, proxy

pytestmark = pytest.mark.e2e
CONFIG_MAPS = Resource("configmaps", namespaced=True)
MAPS = "/api/v1/namespaces/{}/configmaps"


def config_map(name: str) -> Object:
    """Return an object to write."""
    return {"metadata": {"name": name}}


@pytest.fixture
def between(cluster: Cluster) -> Iterator[Proxy]:
    with proxy(cluster.plane) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster, between: Proxy) -> Iterator[Client]:
    """Return a client that uses the proxy."""
    grant(cluster, "writer", Role("writer", {CONFIG_MAPS: ("create", "get", "watch"), LEASES: ("create",)}))
    opened = Client(between.url, cluster.plane.authority.certificate, token=cluster.token("writer"))
    yield opened
    opened.close()


def names(cluster: Cluster) -> list[str]:
    """Return the names of written objects."""
    return sorted(each["metadata"]["name"] for each in cluster.api.items(MAPS.format(cluster.namespace)))


def test_the_proxy_counts_writes(cluster: Cluster, client: Client, between: Proxy) -> None:
    maps = MAPS.format(cluster.namespace)
    client.create(maps, config_map("one"))
    client.get(f"{maps}/one")
    client.create(LEASES.path(namespace=cluster.namespace), config_map("uncounted"))
    with pytest.raises(ApiError):
        client.create(maps, config_map("one"))

    assert between.writes == [f"POST {maps} 201", f"POST {maps} 409"]


@pytest.mark.parametrize("answered", [True, False])
def test_the_proxy_blocks_everything_after_the_chosen_write(
    cluster: Cluster, client: Client, between: Proxy, *, answered: bool
) -> None:
    def callback() -> bool:
        between.close()
        return answered

    maps = MAPS.format(cluster.namespace)
    between.call_after(2, callback)
    client.create(maps, config_map("one"))
    with nullcontext() if answered else pytest.raises(urllib3.exceptions.HTTPError):
        client.create(maps, config_map("two"))
    with pytest.raises(urllib3.exceptions.HTTPError):
        client.create(maps, config_map("three"))
    with pytest.raises(urllib3.exceptions.HTTPError):
        client.get(maps)

    assert names(cluster) == ["one", "two"]


def test_a_watch_works_through_the_proxy(cluster: Cluster, client: Client) -> None:
    maps = MAPS.format(cluster.namespace)
    watch = client.watch(maps, cluster.api.get(maps)["metadata"]["resourceVersion"])
    cluster.api.create(maps, config_map("one"))

    kind, found = next(iter(watch))
    watch.stop()
    assert (kind, found["metadata"]["name"]) == ("ADDED", "one")


def test_the_history_has_all_events_in_order_across_kinds(cluster: Cluster) -> None:
    maps = MAPS.format(cluster.namespace)
    secrets = maps.replace("configmaps", "secrets")
    with history(cluster.api, {"map": maps, "secret": secrets}) as past:
        cluster.api.create(maps, config_map("first"))
        cluster.api.create(secrets, config_map("second"))
        cluster.api.patch(f"{maps}/first", {"data": {"third": ""}})
        cluster.api.delete(f"{secrets}/second")
        cluster.api.delete(f"{maps}/first")
        events = past.events()

    assert [(each.kind, each.type, each.object["metadata"]["name"]) for each in events] == [
        ("map", "ADDED", "first"),
        ("secret", "ADDED", "second"),
        ("map", "MODIFIED", "first"),
        ("secret", "DELETED", "second"),
        ("map", "DELETED", "first"),
    ]


def test_the_history_continues_after_the_api_server_was_unavailable(cluster: Cluster) -> None:
    maps = MAPS.format(cluster.namespace)
    with history(cluster.api, {"map": maps}) as past:
        cluster.api.create(maps, config_map("before"))
        cluster.plane.restart_apiserver()
        cluster.api.create(maps, config_map("after"))
        events = past.events()

    assert [each.object["metadata"]["name"] for each in events] == ["before", "after"]
