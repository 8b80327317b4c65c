"""The watches against the real API server: every change is delivered, also after a broken connection."""

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


class AppliedState:
    """The state of a consumer that applies all batches."""

    def __init__(self) -> None:
        self.of: dict[type[Any], dict[str, Any]] = {NodeUpdate: {}, PodUpdate: {}, NodeGpusUpdate: {}}
        self.batches: list[Batch[Any]] = []
        self._lock = threading.Lock()

    def apply_batch(self, batch: Batch[Any]) -> None:
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
    """Pause a tenth as long, so that the tests take less time."""
    return stopped.wait(seconds / 10)


@contextmanager
def seeing(kube: Kube) -> Iterator[tuple[Watches, AppliedState]]:
    """Start watches; yield them with the state that their batches add up to."""
    state = AppliedState()
    watches = make_watches(kube, state.apply_batch, time.monotonic, WatchTiming(wait=impatient))
    watches.start()
    try:
        wait_for(lambda: watches.synced, "the lists")
        yield watches, state
    finally:
        before = time.monotonic()
        watches.stop()
        assert time.monotonic() - before < 1.5
        kube.close()


def opened(cluster: Cluster, folder: Path, role: Role = EXTENDER) -> Kube:
    """Return a client as a service account with the permissions of a role."""
    grant(cluster, ACCOUNT, role)
    return open_kube(cluster, ACCOUNT, role, folder)


def gpu_node(name: str, *, broken: bool = False) -> Object:
    facts = encode_topology(dgx1_link_down() if broken else dgx1())
    made = api_objects.gpu_node(name, 8, facts.labels)
    made["metadata"]["annotations"] = facts.annotations
    return made


def node_gpus(name: str, observed: str) -> Object:
    result = {"observedAt": observed, "contentHash": "1a", "agentVersion": "1"}
    return {"apiVersion": "gputopo.io/v1alpha1", "kind": "NodeGpus", "metadata": {"name": name}, **result}


def shows(condition: Callable[[], Any], what: str) -> None:
    wait_for(condition, what, 30)


def test_created_changed_and_deleted_objects_are_delivered(cluster: Cluster, tmp_path: Path) -> None:
    define_node_gpus(cluster)
    cluster.api.create("/api/v1/nodes", gpu_node("gpu-0"))
    cluster.create_pod(pod("before", gpus=2, nodeName="gpu-0"))
    with seeing(opened(cluster, tmp_path)) as (watches, state):
        assert (state.nodes, state.pods, state.observed) == ({"gpu-0"}, {"before": "gpu-0"}, {})

        cluster.api.create("/api/v1/nodes", gpu_node("gpu-1"))
        cluster.create_pod(pod("pending", gpus=4))
        cluster.create_pod(pod("web"))
        cluster.api.create(NODE_GPUS_PATH, node_gpus("gpu-0", "2026-11-21T12:00:00Z"))
        shows(lambda: state.pods == {"before": "gpu-0", "pending": None}, "the pending pod")
        shows(lambda: state.nodes == {"gpu-0", "gpu-1"}, "the second node")
        shows(lambda: state.observed == {"gpu-0": "2026-11-21T12:00:00Z"}, "the kubelet report")

        cluster.api.patch(NODE_GPUS_PATH + "/gpu-0", {"observedAt": "2026-11-21T12:05:00Z"})
        cluster.api.patch("/api/v1/nodes/gpu-1/status", {"status": {"allocatable": {WHOLE: "7"}}})
        target = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "pending"}}
        cluster.api.create(cluster.pods("pending/binding"), {**target, "target": {"kind": "Node", "name": "gpu-1"}})
        shows(lambda: state.pods["pending"] == "gpu-1", "the binding")
        shows(lambda: state.observed == {"gpu-0": "2026-11-21T12:05:00Z"}, "the heartbeat")
        shows(lambda: dict(state.of[NodeUpdate]["gpu-1"].facts.allocatable) == {WHOLE: 7}, "the unhealthy GPU")

        status = {"status": {"phase": "Succeeded"}}
        cluster.api.patch(cluster.pods("before/status"), status)
        shows(lambda: state.pods == {"pending": "gpu-1"}, "the end of a pod")
        cluster.api.delete(cluster.pods("pending"))
        cluster.api.delete("/api/v1/nodes/gpu-1")
        cluster.api.delete(NODE_GPUS_PATH + "/gpu-0")
        shows(lambda: (state.nodes, state.pods, state.observed) == ({"gpu-0"}, {}, {}), "the deletions")

        status_of = {each.kind: each for each in watches.status(time.monotonic())}
        assert {each.error for each in status_of.values()} == {None}
        assert {each.failures for each in status_of.values()} == {0}
        assert (status_of["pods"].lag_s or 99) < 30  # whole seconds, and a busy machine
        assert "web" not in str(state.batches)


def test_a_node_heartbeat_is_not_delivered(cluster: Cluster, tmp_path: Path) -> None:
    cluster.api.create("/api/v1/nodes", gpu_node("gpu-0"))
    with seeing(opened(cluster, tmp_path)) as (_, state):
        for minute in range(5):
            now = f"2026-11-21T12:0{minute}:00Z"
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "reason": "x", "message": "x"}
            cluster.api.patch("/api/v1/nodes/gpu-0/status", {"status": {"conditions": [ready]}}, "strategic")
        cluster.api.create("/api/v1/nodes", gpu_node("gpu-1"))
        shows(lambda: state.nodes == {"gpu-0", "gpu-1"}, "the second node")

        assert [[each.key for each in batch.updates] for batch in state.batches if batch.kind is NodeUpdate] == [
            ["gpu-0"],
            ["gpu-1"],
        ]


def test_lists_of_several_pages_are_complete(cluster: Cluster, tmp_path: Path) -> None:
    cluster.api.create_all([("/api/v1/nodes", api_objects.gpu_node(f"gpu-{number:04}", 8)) for number in range(1050)])
    with seeing(opened(cluster, tmp_path)) as (_, state):
        assert state.nodes == {f"gpu-{number:04}" for number in range(1050)}
        assert [len(batch.updates) for batch in state.batches if batch.kind is NodeUpdate] == [1050]


def test_no_event_is_lost_when_the_api_server_restarts(cluster: Cluster, tmp_path: Path) -> None:
    define_node_gpus(cluster)
    cluster.api.create_all([("/api/v1/nodes", gpu_node(f"gpu-{number}")) for number in range(4)])
    cluster.create_pod(pod("stays", gpus=1, nodeName="gpu-0"))
    cluster.create_pod(pod("goes", gpus=1, nodeName="gpu-0"))
    kube = opened(cluster, tmp_path)
    with seeing(kube) as (watches, state):
        cluster.plane.restart_apiserver()
        cluster.api.delete(cluster.pods("goes"))
        cluster.api.delete("/api/v1/nodes/gpu-3")
        cluster.api.create("/api/v1/nodes", gpu_node("gpu-4"))
        cluster.create_pod(pod("comes", gpus=2, nodeName="gpu-4"))
        cluster.api.create(NODE_GPUS_PATH, node_gpus("gpu-4", "2026-11-21T12:00:00Z"))

        shows(lambda: state.pods == {"stays": "gpu-0", "comes": "gpu-4"}, "the pods")
        shows(lambda: state.equals(kube), "all of it")
        shows(lambda: all(each.error is None for each in watches.status(0)), "the trouble to be over")
        assert all(each.failures for each in watches.status(0))
        assert state.nodes == {"gpu-0", "gpu-1", "gpu-2", "gpu-4"}


def test_no_event_is_lost_when_the_network_fails_for_a_while(cluster: Cluster, tmp_path: Path) -> None:
    define_node_gpus(cluster)
    grant(cluster, ACCOUNT, EXTENDER)
    with forwarder(cluster.url) as road:
        config = tmp_path / "kubeconfig"
        token = {"token": cluster.token(ACCOUNT)}
        write_kubeconfig(config, f"https://127.0.0.1:{road.port}", cluster.plane.authority.certificate, token)
        kube = from_kubeconfig(EXTENDER, str(config))
        with seeing(kube) as (watches, state):
            for number in range(5):
                cluster.api.create("/api/v1/nodes", gpu_node(f"gpu-{number}"))
                cluster.create_pod(pod(f"p{number}", gpus=1, nodeName=f"gpu-{number}"))
                road.take_down()
                cluster.api.patch(f"/api/v1/nodes/gpu-{number}", gpu_node(f"gpu-{number}", broken=True))
                cluster.create_pod(pod(f"q{number}", gpus=1, nodeName=f"gpu-{number}"))
                cluster.api.delete(cluster.pods(f"p{number}"))
                road.bring_up()
            shows(lambda: set(state.pods) == {f"q{number}" for number in range(5)}, "the pods")
            shows(lambda: state.equals(kube), "all of it")
            assert all(seen.facts.degraded for seen in state.of[NodeUpdate].values())
            # Short breaks are made up for by the watch: nothing is listed again.
            assert [each.relists for each in watches.status(0)] == [0, 0, 0]


def test_the_definition_of_node_gpus_may_be_deleted_and_created_again(cluster: Cluster, tmp_path: Path) -> None:
    with seeing(opened(cluster, tmp_path)) as (watches, state):
        *_, of_gpus = watches.status(0)
        assert of_gpus.error == "the API server does not serve nodegpus (gputopo.io/v1alpha1)"

        define_node_gpus(cluster)
        cluster.api.create(NODE_GPUS_PATH, node_gpus("gpu-0", "2026-11-21T12:00:00Z"))
        shows(lambda: state.observed == {"gpu-0": "2026-11-21T12:00:00Z"}, "the kubelet report")
        cluster.api.delete(f"{DEFINITIONS}/nodegpus.gputopo.io")
        shows(lambda: state.observed == {}, "its end")
        shows(lambda: (watches.status(0)[2].error or "").startswith("the API server does not serve"), "the word")
        assert watches.synced


def test_the_api_server_sends_bookmarks_and_ends_a_watch_at_its_timeout(cluster: Cluster, tmp_path: Path) -> None:
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


def test_the_extender_may_read_only_the_kinds_that_it_needs(cluster: Cluster, tmp_path: Path) -> None:
    opened(cluster, tmp_path).close()
    as_extender = cluster.client(cluster.token(ACCOUNT))

    for path in ("/api/v1/secrets", "/api/v1/configmaps", "/api/v1/nodes/gpu-0"):
        with pytest.raises(ApiError) as refused:
            as_extender.get(path)
        assert refused.value.status == 403
    as_extender.close()
