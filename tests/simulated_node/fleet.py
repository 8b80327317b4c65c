"""Many simulated GPU nodes in one process: they register, admit what is bound to them, and let it run and finish.

One thread runs an asyncio loop that owns all nodes and serves their sockets; one thread follows the pods; a few write
to the API server, each call as the kubelet of the node concerned (impersonated, so the audit log names it).
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Self, TypeVar

from tests.api_client import Client, Watch
from tests.api_objects import Object
from tests.simulated_node import lifecycle, podresources
from tests.simulated_node.kubelets import Kubelets, outlasting_restarts
from tests.simulated_node.node import NodeSpec, SimulatedNode

T = TypeVar("T")
PODS = "/api/v1/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
ASSIGNED = "spec.nodeName!="
# pod -> seconds that it runs; None: until it is finished or deleted
Lifetime = Callable[[Object], float | None]


class Fleet:
    """Simulated nodes of one cluster. Ends with the ``with`` block; ``failures`` says what went wrong meanwhile."""

    def __init__(
        self, api: Client, seed: int = 0, lifetime: Lifetime = lambda _: None, heartbeat_s: float | None = None
    ) -> None:
        self._api = api
        self._heartbeat_s = heartbeat_s  # only where a node lifecycle controller watches: it taints silent nodes
        self._random = Random(seed)
        self._lifetime = lifetime
        self._nodes: dict[str, SimulatedNode] = {}
        self._held: dict[str, Object] | None = None  # bound pods that wait for admission, by uid
        self._kept: set[str] = set()  # UIDs of pods whose containers do not end
        self._given: dict[str, tuple[int, ...]] = {}
        self._stopping = False
        self._watch: Watch | None = None
        self._kubelets = Kubelets(api)
        # Not a test's own folder: the path of a unix socket is 107 characters at most.
        self.folder = Path(tempfile.mkdtemp(prefix="gputopo-"))

    def __enter__(self) -> Self:
        _allow_open_files(8192)  # a socket per node; 1,024 is the usual limit
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self.failures.append(_error(context)))
        self._threads = [
            threading.Thread(target=self._loop.run_forever, name="fleet"),
            threading.Thread(target=self._follow_pods, name="fleet-pods"),
        ]
        self._sockets: list[podresources.Socket] = []
        version = self._api.get(PODS, limit="1")["metadata"]["resourceVersion"]
        self._watch = self._api.watch(PODS, version, fieldSelector=ASSIGNED)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._call(lambda: setattr(self, "_stopping", True))
        if self._watch is not None:
            self._watch.stop()
        self._threads[1].join()
        self._kubelets.close()
        asyncio.run_coroutine_threadsafe(self._close_sockets(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()
        self._loop.close()
        shutil.rmtree(self.folder)

    def __getitem__(self, name: str) -> SimulatedNode:
        return self._nodes[name]

    @property
    def names(self) -> list[str]:
        """The names of the nodes, in the order in which they were added."""
        return list(self._nodes)

    @property
    def failures(self) -> list[Exception]:
        """The errors on the fleet's own threads."""
        return self._kubelets.failures

    @property
    def held(self) -> int:
        """The number of bound pods that wait for admission."""
        return len(self._held or ())

    def add(self, *specs: NodeSpec) -> list[SimulatedNode]:
        """Register nodes; when this returns their sockets answer and the API server has them."""
        nodes = asyncio.run_coroutine_threadsafe(self._add(specs), self._loop).result()
        for done in [self._kubelets.write(node.name, "POST", "/api/v1/nodes", node.node_object()) for node in nodes]:
            done.result()
        self._kubelets.check()
        for node in nodes if self._heartbeat_s is not None else ():
            self._loop.call_soon_threadsafe(self._beat, node)
        bound_before = self._api.items(PODS, fieldSelector=ASSIGNED)
        self._call(lambda: self._see_all(bound_before))
        return nodes

    def unregister(self) -> None:
        """Delete the Nodes. What runs on them is for the cluster's garbage collector."""
        for name in self.names:
            self._api.delete(f"/api/v1/nodes/{name}")

    def gpus_of(self, pod: Object) -> tuple[int, ...]:
        """Indices of the GPUs that a pod's node gave it."""
        node, uid = self._nodes[pod["spec"]["nodeName"]], pod["metadata"]["uid"]
        return self._call(lambda: node.gpus_of(uid))

    def given(self) -> dict[str, tuple[int, ...]]:
        """The GPU indices of every pod that was ever admitted, by UID; deleted pods included."""
        return self._call(lambda: dict(self._given))

    def kill_gpu(self, node: str, gpu: int, *, lost: bool = True) -> None:
        """A GPU dies: it falls off the bus, or (not lost) only the device plugin turns away from it."""
        machine = self._nodes[node].machine
        self._change(node, lambda: (machine.lost if lost else machine.sick).add(gpu))

    def revive_gpu(self, node: str, gpu: int) -> None:
        """A GPU is well again, as after a reboot: the device plugin itself never takes one back."""
        machine = self._nodes[node].machine

        def revive() -> None:
            machine.lost.discard(gpu)
            machine.sick.discard(gpu)

        self._change(node, revive)

    def kill_link(self, node: str, *gpus: int) -> None:
        """The NVLinks between two GPUs, or from one into its switch, go down."""
        machine = self._nodes[node].machine
        self._change(node, lambda: machine.dead_links.add(frozenset(gpus)))

    def revive_link(self, node: str, *gpus: int) -> None:
        """Restore NVLinks."""
        machine = self._nodes[node].machine
        self._change(node, lambda: machine.dead_links.discard(frozenset(gpus)))

    def finish(self, pod: Object, exit_code: int = 0) -> None:
        """The containers of a pod end; its GPUs are free, and its status says so, when this returns."""
        node, uid = self._nodes[pod["spec"]["nodeName"]], pod["metadata"]["uid"]
        if (written := self._call(lambda: self._finish(node, uid, exit_code))) is None:
            raise ValueError(f"pod {pod['metadata']['name']} does not run on {node.name}")
        written.result()
        self._kubelets.check()

    @contextmanager
    def admissions_held(self, order: Callable[[list[Object]], list[Object]] | None = None) -> Iterator[None]:
        """Within, bound pods wait; at the end their kubelets admit them in a random order, or in ``order``'s.

        Pods that a scheduler bound within milliseconds reach a kubelet in one batch, in whatever order.
        """
        self._call(lambda: setattr(self, "_held", {}))
        try:
            yield
        finally:
            self._call(lambda: self._release(order))

    def keep_running(self, pod: Object) -> None:
        """The containers of a pod ignore its deletion, as on a node whose kubelet hangs, until ``let_end``."""
        self._call(lambda: self._kept.add(pod["metadata"]["uid"]))

    def let_end(self, pod: Object) -> None:
        """The containers of a terminating pod end."""
        node, uid = self._nodes[pod["spec"]["nodeName"]], pod["metadata"]["uid"]
        self._call(lambda: self._kept.discard(uid))
        self._call(lambda: self._see("MODIFIED", node.pods[uid]))

    # -- on the loop's thread -----------------------------------------------------------------------------------

    async def _add(self, specs: tuple[NodeSpec, ...]) -> list[SimulatedNode]:
        added = []
        for spec in specs:
            # A generator each: what one node does must not depend on what happens on the others.
            random = Random(self._random.random())
            node = SimulatedNode(spec, self.folder / str(len(self._nodes)), random)
            self._sockets.append(await podresources.serve(node.devices, node.socket))
            self._nodes[spec.name] = node
            added.append(node)
        return added

    async def _close_sockets(self) -> None:
        for socket in self._sockets:
            await socket.stop()
        await asyncio.sleep(0.01)  # transports close in a later turn of the loop

    def _beat(self, node: SimulatedNode) -> None:
        """Renew a node's lease, again and again."""
        if self._stopping or self._heartbeat_s is None:
            return
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": node.name},
            "spec": {"holderIdentity": node.name, "leaseDurationSeconds": 40, "renewTime": _now_micro()},
        }
        self._kubelets.write(node.name, "APPLY", f"{LEASES}/{node.name}", lease)
        self._loop.call_later(self._heartbeat_s, self._beat, node)

    def _see(self, kind: str, pod: Object) -> None:
        """One event of a pod that is assigned to a node."""
        if (node := self._nodes.get(pod["spec"]["nodeName"])) is None:
            return
        uid, metadata = pod["metadata"]["uid"], pod["metadata"]
        if kind == "DELETED":
            self._settle(node, uid)
            node.settled.discard(uid)
        elif uid in node.settled:
            return
        elif "deletionTimestamp" in metadata and uid in self._kept:
            node.pods[uid] = pod
        elif "deletionTimestamp" in metadata:
            self._settle(node, uid)
            if metadata.get("finalizers"):  # the pod stays: kubelets report that its containers have ended
                self._write_status(node, pod, lifecycle.finished(pod, lifecycle.KILLED, _now()))
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            self._kubelets.write(node.name, "DELETE", path, options)
        elif uid in node.pods:
            node.pods[uid] = pod
        elif pod["status"].get("phase") in lifecycle.FINISHED:
            node.settled.add(uid)
        elif self._held is not None:
            self._held[uid] = pod
        else:
            self._admit(node, pod)

    def _admit(self, node: SimulatedNode, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        rejection = node.devices.admit(lifecycle.kubelet_pod(pod))
        if rejection is not None:
            node.settled.add(uid)
            self._write_status(node, pod, lifecycle.rejected(rejection))
            return
        node.pods[uid] = pod
        self._given[uid] = node.gpus_of(uid)
        self._write_status(node, pod, lifecycle.running(pod, _now()))
        if (seconds := self._lifetime(pod)) is not None:
            self._loop.call_later(seconds, self._finish, node, uid, 0)
        if (deadline := pod["spec"].get("activeDeadlineSeconds")) is not None:
            self._loop.call_later(deadline, self._finish, node, uid, lifecycle.KILLED, lifecycle.LATE)

    def _finish(
        self, node: SimulatedNode, uid: str, exit_code: int, more: Mapping[str, str] = MappingProxyType({})
    ) -> Future[None] | None:
        if (pod := node.pods.get(uid)) is None:
            return None
        self._settle(node, uid)
        return self._write_status(node, pod, {**lifecycle.finished(pod, exit_code, _now()), **more})

    def _settle(self, node: SimulatedNode, uid: str) -> None:
        """A pod is over: its devices are free, and no event changes that."""
        node.pods.pop(uid, None)
        node.devices.remove(uid)
        node.settled.add(uid)
        if self._held is not None:
            self._held.pop(uid, None)

    def _release(self, order: Callable[[list[Object]], list[Object]] | None) -> None:
        held, self._held = list((self._held or {}).values()), None
        if order is None:
            self._random.shuffle(held)
        for pod in held if order is None else order(held):
            self._admit(self._nodes[pod["spec"]["nodeName"]], pod)

    # -- to and from the API server -----------------------------------------------------------------------------

    def _follow_pods(self) -> None:
        """Hand every event to the loop; when a watch ends, take up from a fresh list."""
        while not self._stopping:
            try:
                for kind, pod in self._watch or ():
                    self._loop.call_soon_threadsafe(self._see, kind, pod)
                if not self._stopping:
                    self._watch = outlasting_restarts(self._relisted)
            except Exception as failed:  # noqa: BLE001 - a thread's failure must reach the test
                self._kubelets.failures.append(failed)
                return

    def _relisted(self) -> Watch:
        listed = self._api.get(PODS, fieldSelector=ASSIGNED)
        self._loop.call_soon_threadsafe(self._reconcile, listed["items"])
        return self._api.watch(PODS, listed["metadata"]["resourceVersion"], fieldSelector=ASSIGNED)

    def _reconcile(self, pods: list[Object]) -> None:
        there = {pod["metadata"]["uid"] for pod in pods}
        for node in self._nodes.values():
            for uid in set(node.pods) - there:
                self._settle(node, uid)
        self._see_all(pods)

    def _see_all(self, pods: list[Object]) -> None:
        for pod in pods:
            self._see("MODIFIED", pod)

    def _change(self, name: str, change: Callable[[], object]) -> None:
        """Change a machine; its snapshot file and its Node are as it is now when this returns."""
        node = self._nodes[name]

        def apply() -> None:
            change()
            node.record()

        self._call(apply)
        status = node.status({"capacity": {}, "allocatable": {}})
        self._kubelets.write(node.name, "PATCH", f"/api/v1/nodes/{name}/status", {"status": status}).result()
        self._kubelets.check()

    def _write_status(self, node: SimulatedNode, pod: Object, status: Object) -> Future[None]:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        return self._kubelets.write(node.name, "PATCH", path, {"metadata": {"uid": metadata["uid"]}, "status": status})

    def _call(self, call: Callable[[], T]) -> T:
        async def run() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()


def _error(context: Mapping[str, Any]) -> Exception:
    """Return the exception of an asyncio callback, or else asyncio's message as an exception."""
    raised = context.get("exception")
    return raised if isinstance(raised, Exception) else RuntimeError(context["message"])


def _allow_open_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


def _now_micro() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
