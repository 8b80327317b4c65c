"""A planner whose watches stay open without data: real threads and sockets, and an API server over HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from gputopo.crd.reservations import POOL
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import LEDGERS, NODES, PLANNER, PODS, RESERVATIONS
from gputopo.labels import keys
from scheduler_core.cache.watch import RESERVATION_SOURCES, Watches, make_watches
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.pod_source import planner_sources
from scheduler_core.planner.leader.context import PlannerConfig
from scheduler_core.planner.leader.freshness import Freshness
from scheduler_core.planner.leader.queue import DEFAULT_TIMING
from scheduler_core.planner.leader.writer import ActionExecutor
from scheduler_core.planner.metrics import PlannerMetrics
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.service import PlannerService, ServiceParts
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.pod_request import parse_request
from scheduler_core.runtime.event_loop import Deliver
from tests.api_server import Answer, Asked, Stream, api_server
from tests.gputopo.kube.serving import bookmark
from tests.scheduler_core.planner.serving_planner import Elected, Watch, until

SILENT_S, AWAKE_S = 0.5, 0.2
Object = dict[str, Any]


def node(name: str) -> Object:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "status": {"allocatable": {WHOLE: "8"}}}


def member(gang: str) -> Object:
    """Return the only member of a gang."""
    said = {keys.POD_GANG.key: gang, keys.POD_GANG_SIZE.key: "1"}
    made = {"uid": f"uid-{gang}", "resourceVersion": "1", "creationTimestamp": "2026-11-21T12:00:00Z"}
    return {
        "metadata": {"name": gang, "namespace": "team", "annotations": said, **made},
        "spec": {
            "schedulingGates": [{"name": keys.GATE}],
            "containers": [{"name": "c", "resources": {"limits": {WHOLE: "8"}}}],
        },
        "status": {"phase": "Pending"},
    }


class Cluster:
    """Two nodes, and an API server that accepts every write; kinds in ``silent`` get no events and no bookmarks."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self._versions = count(10)
        self._objects: dict[str, Object] = {NODES.path(name): node(name) for name in ("n0", "n1")}  # by path
        self._streams: dict[str, Stream] = {}

    @property
    def planned(self) -> list[str]:
        """Return the gangs with a reservation."""
        return [each["spec"]["gang"] for path, each in self._objects.items() if f"/{RESERVATIONS.plural}/" in path]

    def create(self, path: str, what: Object) -> None:
        """Create an object."""
        self._objects[f"{path}/{what['metadata']['name']}"] = what
        self._tell(path, "ADDED", what)

    def speak(self) -> None:
        """Send a bookmark on every watch that is not silent."""
        for kind, stream in list(self._streams.items()):
            if kind not in self.silent:
                stream.send(bookmark(next(self._versions)))

    def answer(self, asked: Asked) -> Answer:
        path = asked.path.removesuffix("/status")
        if "watch" in asked.query:
            stream = self._streams[path.rsplit("/", 1)[1]] = Stream()
            return Answer(stream)
        if asked.method in ("POST", "PUT", "PATCH"):
            return Answer(self._written(asked.method, path, asked.body), 201)
        if path in self._objects:
            return Answer(self._objects[path])
        if path == LEDGERS.path(POOL):
            return Answer({"kind": "Status", "message": "not found", "details": {"name": POOL}}, 404)
        items = [each for there, each in self._objects.items() if there.rpartition("/")[0] == path]
        return Answer({"metadata": {"resourceVersion": "1"}, "items": items})

    def _written(self, method: str, path: str, body: Object) -> Object:
        version = next(self._versions)
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
        before = self._objects.get(path, {"metadata": {"uid": f"uid-{version}"}})
        now = {"resourceVersion": str(version), "generation": version}
        made = {**before, **body, "metadata": {**before["metadata"], **body["metadata"], **now}}
        self._objects[path] = made
        self._tell(path.rpartition("/")[0], "ADDED" if method == "POST" else "MODIFIED", made)
        return made

    def _tell(self, path: str, happening: str, what: Object) -> None:
        kind = path.rsplit("/", 1)[1]
        if kind in self._streams and kind not in self.silent:
            self._streams[kind].send({"type": happening, "object": what})


@contextmanager
def speaking(cluster: Cluster) -> Iterator[None]:
    """Send many bookmarks a second within this context."""
    ended = threading.Event()

    def speak() -> None:
        while not ended.wait(0.02):
            cluster.speak()

    thread = threading.Thread(target=speak)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def planner(cluster: Cluster, folder: Path) -> Iterator[PlannerService]:
    """Run a planner in a pool where every pod is gated."""
    with api_server(cluster.answer) as server:
        kube = from_kubeconfig(PLANNER, server.kubeconfig(folder / "config"))
        sources = {**planner_sources(parse_request), **RESERVATION_SOURCES}

        def watch(deliver: Deliver) -> Watches:
            return make_watches(kube, deliver, time.monotonic, sources=sources)

        writer = ActionExecutor(kube, lambda: True, time.monotonic)
        parts = ServiceParts(
            "me", writer, Elected(), PolicyReload(None), watch, lambda _: None, PlannerMetrics(),
            lambda: Freshness(SILENT_S, AWAKE_S),
        )  # fmt: skip
        with speaking(cluster):
            yield PlannerService(PlannerConfig(POOL, "gputopo", CommitTerms(gated=True), DEFAULT_TIMING, LEVELS), parts)
        kube.close()


async def ticking(service: PlannerService) -> None:
    while True:
        service.tick()
        await asyncio.sleep(0.02)


def test_a_planner_with_a_silent_node_watch_plans_nothing_until_an_event_arrives(tmp_path: Path) -> None:
    cluster = Cluster()

    def unready(service: PlannerService, beginning: str) -> Callable[[], bool]:
        return lambda: (service.not_ready_reason() or "").startswith(beginning)

    async def follow(service: PlannerService) -> None:
        with service.running_watches(Watch()):
            ticks = asyncio.create_task(ticking(service))
            await until(lambda: service.not_ready_reason() is None)
            cluster.create(PODS.path(namespace="team"), member("one"))
            await until(lambda: cluster.planned == ["one"])

            cluster.silent.add(NODES.plural)
            stale = "nothing is planned, because the cluster cache is stale: gputopo has received nothing about "
            await until(unready(service, stale))
            cluster.create(PODS.path(namespace="team"), member("two"))
            await until(lambda: len(service.status().gangs) == 2)
            await asyncio.sleep(0.5)  # many rounds
            assert (cluster.planned, service.status().is_stale) == (["one"], True)

            cluster.silent.clear()
            await until(lambda: cluster.planned == ["one", "two"])
            await until(lambda: (service.not_ready_reason(), service.status().is_stale) == (None, False))
            ticks.cancel()

    with planner(cluster, tmp_path) as service:
        asyncio.run(follow(service))
        assert service.fatal_error is None
