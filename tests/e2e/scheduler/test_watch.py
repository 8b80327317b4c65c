"""The watch against the real API server: what happens shows up, whatever becomes of the connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.objects import PartialObject
from gputopo.kube.rbac import EXTENDER, NODES, OBSERVER, Role
from gputopo.kube.reflector import WatchTiming
from gputopo.kube.watch_stream import WatchEventType
from gputopo.labels import encode_topology
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.watch import Watches, list_all, make_watches
from scheduler_core.request.device_request import WHOLE
from tests import api_objects
from tests.api_client import ApiError
from tests.api_objects import Object, pod
from tests.e2e.agent.access import DEFINITIONS, define_node_gpus, grant, open_kube
from tests.e2e.agent.forwarder import forwarder
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.credentials import write_kubeconfig
from tests.machines import dgx1, dgx1_link_down

pytestmark = pytest.mark.e2e
ACCOUNT = "extender"
NODE_GPUS_PATH = "/apis/gputopo.io/v1alpha1/nodegpus"


class Picture:
    """The state of a consumer that applies all batches."""

    def __init__(self) -> None:
        self.of: dict[type[Any], dict[str, Any]] = {NodeUpdate: {}, PodUpdate: {}, NodeGpusUpdate: {}}
        self.batches: list[Batch[Any]] = []
        self._lock = threading.Lock()

    def take(self, batch: Batch[Any]) -> None:
        with self._lock:
            self.batches.append(batch)
            known = {} if batch.is_full_list else {**self.of[batch.kind]}
            known |= {each.key: each for each in batch.updates}
            self.of[batch.kind] = {key: each for key, each in known.items() if key not in batch.removed}

    @property
    def nodes(self) -> set[str]:
        return set(self.of[NodeUpdate])

    @property
    def pods(self) -> dict[str, str | None]:
        return {each.occupant.name: each.node for each in self.of[PodUpdate].values()}

    @property
    def observed(self) -> dict[str, str]:
        return {name: each.gpus.observed_at for name, each in self.of[NodeGpusUpdate].items()}

    def equals(self, kube: Kube) -> bool:
        """Return whether the state equals a fresh list."""
        return self.of == {batch.kind: {each.key: each for each in batch.updates} for batch in list_all(kube)}


def impatient(stopped: threading.Event, seconds: float) -> object:
    """Pauses a tenth as long: tests are not as patient as a cluster."""
    return stopped.wait(seconds / 10)


@contextmanager
def seeing(kube: Kube) -> Iterator[tuple[Watches, Picture]]:
    """Watches and what they tell."""
    picture = Picture()
    watches = make_watches(kube, picture.take, time.monotonic, WatchTiming(wait=impatient))
    watches.start()
    try:
        wait_for(lambda: watches.synced, "the lists")
        yield watches, picture
    finally:
        before = time.monotonic()
        watches.stop()
        assert time.monotonic() - before < 1.5
        kube.close()


def opened(cluster: Cluster, folder: Path, role: Role = EXTENDER) -> Kube:
    """A connection as a service account that may do what a role lists, and no more."""
    grant(cluster, ACCOUNT, role)
    return open_kube(cluster, ACCOUNT, role, folder)


def gpu_node(name: str, *, broken: bool = False) -> Object:
    facts = encode_topology(dgx1_link_down() if broken else dgx1())
    made = api_objects.gpu_node(name, 8, facts.labels)
    made["metadata"]["annotations"] = facts.annotations
    return made


def node_gpus(name: str, observed: str) -> Object:
    told = {"observedAt": observed, "contentHash": "1a", "agentVersion": "1"}
    return {"apiVersion": "gputopo.io/v1alpha1", "kind": "NodeGpus", "metadata": {"name": name}, **told}


def shows(condition: Callable[[], Any], what: str) -> None:
    wait_for(condition, what, 30)


def test_what_is_created_changed_and_deleted_shows(cluster: Cluster, tmp_path: Path) -> None:
    define_node_gpus(cluster)
    cluster.api.create("/api/v1/nodes", gpu_node("gpu-0"))
    cluster.create_pod(pod("before", gpus=2, nodeName="gpu-0"))
    with seeing(opened(cluster, tmp_path)) as (watches, picture):
        assert (picture.nodes, picture.pods, picture.observed) == ({"gpu-0"}, {"before": "gpu-0"}, {})

        cluster.api.create("/api/v1/nodes", gpu_node("gpu-1"))
        cluster.create_pod(pod("pending", gpus=4))
        cluster.create_pod(pod("web"))
        cluster.api.create(NODE_GPUS_PATH, node_gpus("gpu-0", "2026-11-21T12:00:00Z"))
        shows(lambda: picture.pods == {"before": "gpu-0", "pending": None}, "the pending pod")
        shows(lambda: picture.nodes == {"gpu-0", "gpu-1"}, "the second node")
        shows(lambda: picture.observed == {"gpu-0": "2026-11-21T12:00:00Z"}, "the kubelet's word")

        cluster.api.patch(NODE_GPUS_PATH + "/gpu-0", {"observedAt": "2026-11-21T12:05:00Z"})
        cluster.api.patch("/api/v1/nodes/gpu-1/status", {"status": {"allocatable": {WHOLE: "7"}}})
        target = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "pending"}}
        cluster.api.create(cluster.pods("pending/binding"), {**target, "target": {"kind": "Node", "name": "gpu-1"}})
        shows(lambda: picture.pods["pending"] == "gpu-1", "the binding")
        shows(lambda: picture.observed == {"gpu-0": "2026-11-21T12:05:00Z"}, "the heartbeat")
        shows(lambda: dict(picture.of[NodeUpdate]["gpu-1"].facts.allocatable) == {WHOLE: 7}, "the sick GPU")

        status = {"status": {"phase": "Succeeded"}}
        cluster.api.patch(cluster.pods("before/status"), status)
        shows(lambda: picture.pods == {"pending": "gpu-1"}, "the end of a pod")
        cluster.api.delete(cluster.pods("pending"))
        cluster.api.delete("/api/v1/nodes/gpu-1")
        cluster.api.delete(NODE_GPUS_PATH + "/gpu-0")
        shows(lambda: (picture.nodes, picture.pods, picture.observed) == ({"gpu-0"}, {}, {}), "the deletions")

        status_of = {each.kind: each for each in watches.status(time.monotonic())}
        assert {each.error for each in status_of.values()} == {None}
        assert {each.failures for each in status_of.values()} == {0}
        assert (status_of["pods"].lag_s or 99) < 30  # whole seconds, and a busy machine
        assert "web" not in str(picture.batches)


def test_a_heartbeat_of_a_node_is_not_news(cluster: Cluster, tmp_path: Path) -> None:
    cluster.api.create("/api/v1/nodes", gpu_node("gpu-0"))
    with seeing(opened(cluster, tmp_path)) as (_, picture):
        for minute in range(5):
            now = f"2026-11-21T12:0{minute}:00Z"
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "reason": "x", "message": "x"}
            cluster.api.patch("/api/v1/nodes/gpu-0/status", {"status": {"conditions": [ready]}}, "strategic")
        cluster.api.create("/api/v1/nodes", gpu_node("gpu-1"))
        shows(lambda: picture.nodes == {"gpu-0", "gpu-1"}, "the second node")

        assert [[each.key for each in batch.updates] for batch in picture.batches if batch.kind is NodeUpdate] == [
            ["gpu-0"],
            ["gpu-1"],
        ]


def test_more_objects_than_a_page_holds(cluster: Cluster, tmp_path: Path) -> None:
    cluster.api.create_all([("/api/v1/nodes", api_objects.gpu_node(f"gpu-{number:04}", 8)) for number in range(1050)])
    with seeing(opened(cluster, tmp_path)) as (_, picture):
        assert picture.nodes == {f"gpu-{number:04}" for number in range(1050)}
        assert [len(batch.updates) for batch in picture.batches if batch.kind is NodeUpdate] == [1050]


def test_an_api_server_that_restarts_costs_no_event(cluster: Cluster, tmp_path: Path) -> None:
    define_node_gpus(cluster)
    cluster.api.create_all([("/api/v1/nodes", gpu_node(f"gpu-{number}")) for number in range(4)])
    cluster.create_pod(pod("stays", gpus=1, nodeName="gpu-0"))
    cluster.create_pod(pod("goes", gpus=1, nodeName="gpu-0"))
    kube = opened(cluster, tmp_path)
    with seeing(kube) as (watches, picture):
        cluster.plane.restart_apiserver()
        cluster.api.delete(cluster.pods("goes"))
        cluster.api.delete("/api/v1/nodes/gpu-3")
        cluster.api.create("/api/v1/nodes", gpu_node("gpu-4"))
        cluster.create_pod(pod("comes", gpus=2, nodeName="gpu-4"))
        cluster.api.create(NODE_GPUS_PATH, node_gpus("gpu-4", "2026-11-21T12:00:00Z"))

        shows(lambda: picture.pods == {"stays": "gpu-0", "comes": "gpu-4"}, "the pods")
        shows(lambda: picture.equals(kube), "all of it")
        shows(lambda: all(each.error is None for each in watches.status(0)), "the trouble to be over")
        assert all(each.failures for each in watches.status(0))
        assert picture.nodes == {"gpu-0", "gpu-1", "gpu-2", "gpu-4"}


def test_a_network_that_comes_and_goes_costs_no_event(cluster: Cluster, tmp_path: Path) -> None:
    define_node_gpus(cluster)
    grant(cluster, ACCOUNT, EXTENDER)
    with forwarder(cluster.url) as road:
        config = tmp_path / "kubeconfig"
        token = {"token": cluster.token(ACCOUNT)}
        write_kubeconfig(config, f"https://127.0.0.1:{road.port}", cluster.plane.authority.certificate, token)
        kube = from_kubeconfig(EXTENDER, str(config))
        with seeing(kube) as (watches, picture):
            for number in range(5):
                cluster.api.create("/api/v1/nodes", gpu_node(f"gpu-{number}"))
                cluster.create_pod(pod(f"p{number}", gpus=1, nodeName=f"gpu-{number}"))
                road.take_down()
                cluster.api.patch(f"/api/v1/nodes/gpu-{number}", gpu_node(f"gpu-{number}", broken=True))
                cluster.create_pod(pod(f"q{number}", gpus=1, nodeName=f"gpu-{number}"))
                cluster.api.delete(cluster.pods(f"p{number}"))
                road.bring_up()
            shows(lambda: set(picture.pods) == {f"q{number}" for number in range(5)}, "the pods")
            shows(lambda: picture.equals(kube), "all of it")
            assert all(seen.facts.degraded for seen in picture.of[NodeUpdate].values())
            # Short breaks are made up for by the watch: nothing is listed again.
            assert [each.relists for each in watches.status(0)] == [0, 0, 0]


def test_the_agents_kind_may_come_and_go(cluster: Cluster, tmp_path: Path) -> None:
    with seeing(opened(cluster, tmp_path)) as (watches, picture):
        *_, of_gpus = watches.status(0)
        assert of_gpus.error == "the API server does not serve nodegpus (gputopo.io/v1alpha1)"

        define_node_gpus(cluster)
        cluster.api.create(NODE_GPUS_PATH, node_gpus("gpu-0", "2026-11-21T12:00:00Z"))
        shows(lambda: picture.observed == {"gpu-0": "2026-11-21T12:00:00Z"}, "the kubelet's word")
        cluster.api.delete(f"{DEFINITIONS}/nodegpus.gputopo.io")
        shows(lambda: picture.observed == {}, "its end")
        shows(lambda: (watches.status(0)[2].error or "").startswith("the API server does not serve"), "the word")
        assert watches.synced


def test_bookmarks_come_and_the_watch_ends_when_it_was_asked_to(cluster: Cluster, tmp_path: Path) -> None:
    kube = opened(cluster, tmp_path, OBSERVER)
    (page,) = kube.list_pages(NODES, PartialObject)

    before = time.monotonic()
    watch = kube.watch(NODES, ListOptions(), page.metadata.resource_version, 5)
    cluster.api.create("/api/v1/nodes", gpu_node("gpu-0"))  # without news of the kind there is no bookmark
    events = [event for group in watch for event in group]
    lasted = time.monotonic() - before
    kube.close()

    added, *bookmarks = events
    assert (added.type, added.identity.name) == (WatchEventType.ADDED, "gpu-0")
    assert {event.type for event in bookmarks} == {WatchEventType.BOOKMARK}
    assert int(bookmarks[-1].identity.resource_version) >= int(added.identity.resource_version)
    assert 3 < lasted < 20


def test_the_extender_may_not_read_what_it_does_not_need(cluster: Cluster, tmp_path: Path) -> None:
    opened(cluster, tmp_path).close()
    as_extender = cluster.client(cluster.token(ACCOUNT))

    for path in ("/api/v1/secrets", "/api/v1/configmaps", "/api/v1/nodes/gpu-0"):
        with pytest.raises(ApiError) as refused:
            as_extender.get(path)
        assert refused.value.status == 403
    as_extender.close()
