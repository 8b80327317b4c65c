"""An API server of generated objects, for ``bench/watch.py``: ``python bench/watch_server.py NODES PODS``.

Prints its port. Lists have pages as large as kube-apiserver's: a Node has 10 kB, a Pod 6 kB, three of ten pods have
GPUs. A watch is silent until a request ``/go/<story>/<number>``: then it sends that many events, and finally an event
of an object whose key contains ``last``.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from gputopo.labels import encode_topology
from tests.machines import MACHINES

NODE_BYTES, POD_BYTES = 10_000, 6_000
Object = dict[str, Any]


def padded(made: Object, size: int) -> bytes:
    """Return JSON of about that size, filled up like managedFields and container statuses."""
    missing = size - len(msgspec.json.encode(made))
    names = [f"f:field-{number}" for number in range(max(0, missing) // 38)]
    field: Object = {"f:status": {name: {".": {}, "f:type": {}} for name in names}}
    managed = {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    made["metadata"]["managedFields"] = [{**managed, "fieldsV1": field}]
    return msgspec.json.encode(made)


def _node() -> bytes:
    topology = MACHINES["hgx_h100"]()
    facts = encode_topology(topology)
    conditions = [
        {"type": kind, "status": "False", "lastHeartbeatTime": "2026-11-21T08:00:00Z", "reason": "x", "message": "x"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    images = [{"names": [f"registry.example/team/image-{n}:v1.{n}"], "sizeBytes": 10**8 + n} for n in range(40)]
    allocatable = {"cpu": "192", "memory": "2113Gi", "pods": "110", "nvidia.com/gpu": "8"}
    metadata = {
        "name": "@name@",
        "uid": "uid-@name@",
        "resourceVersion": "5",
        "creationTimestamp": "2026-11-20T08:00:00Z",
        "labels": {**facts.labels, **facts.mirrors, "kubernetes.io/hostname": "@name@"},
        "annotations": facts.annotations,
    }
    status = {"allocatable": allocatable, "capacity": allocatable, "conditions": conditions, "images": images}
    text = padded({"metadata": metadata, "spec": {}, "status": status}, NODE_BYTES)
    for gpu in topology.gpus:  # each node has its own GPUs
        assert gpu.uuid is not None
        text = text.replace(gpu.uuid.encode(), b"GPU-@hex@" + gpu.uuid[12:].encode())
    return text


def _pod(gpus: int) -> bytes:
    limits = {"cpu": "8", "memory": "64Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    env = [{"name": f"SETTING_{number}", "value": "some value or other"} for number in range(20)]
    container = {"name": "main", "image": "registry.example/train:1", "env": env, "resources": {"limits": limits}}
    metadata = {
        "name": "pod-@name@",
        "namespace": "team",
        "uid": "@name@",
        "resourceVersion": "5",
        "creationTimestamp": "2026-11-21T08:00:00Z",
        "labels": {"app": "train", "accelerator.sched.io/gpu-model": "H100"},
        "annotations": {"gputopo.io/island": "required"},
    }
    spec = {"containers": [container], "nodeName": "@node@", "schedulerName": "gputopo-scheduler"}
    status = {"phase": "Running", "startTime": "2026-11-21T08:00:10Z", "podIP": "@ip@"}
    return padded({"metadata": metadata, "spec": spec, "status": status}, POD_BYTES)


NODE, PLAIN, TRAIN = _node(), _pod(0), _pod(4)


def node(number: int) -> bytes:
    """Return a Node."""
    return NODE.replace(b"@name@", b"gpu-node-%05d" % number).replace(b"@hex@", b"%08x" % number)


def pod(number: int, ip: int = 0) -> bytes:
    """Return a Pod; three of ten have GPUs."""
    text = (TRAIN if number % 10 < 3 else PLAIN).replace(b"@name@", b"uid-%08d" % number)
    return text.replace(b"@node@", b"gpu-node-%05d" % (number // 7)).replace(b"@ip@", b"10.%d" % ip)


def nodegpus(number: int) -> bytes:
    """Return a NodeGpus: eight GPUs, two pods."""
    held = [
        {"gpu": f"GPU-{number:08x}-{gpu}", "pod": {"namespace": "team", "name": f"pod-{gpu // 4}", "container": "main"}}
        for gpu in range(8)
    ]
    metadata = {"name": f"gpu-node-{number:05}", "uid": f"uid-{number}", "resourceVersion": "5"}
    observed = {"observedAt": "2026-11-21T08:00:00Z", "contentHash": "0" * 64, "agentVersion": "0.1.0"}
    return msgspec.json.encode({"metadata": metadata, **observed, "allocations": held})


def line(text: bytes) -> bytes:
    """Return an event of an object."""
    return b'{"type":"MODIFIED","object":' + text + b"}\n"


STORIES: dict[str, tuple[str, Callable[[int], bytes], bytes]] = {
    "heartbeat of a node": ("nodes", lambda number: node(number % 500), node(0).replace(b"gpu-node-00000", b"last")),
    "pod without GPUs": ("pods", lambda number: pod(number * 10 + 5), pod(0).replace(b"uid-00000000", b"last")),
    "GPU pod, nothing new": (
        "pods",
        lambda number: pod(number % 50 * 10, number),
        pod(1).replace(b"00000001", b"last"),
    ),
    "GPU pod, new": ("pods", lambda number: pod(10_000 + number * 10), pod(2).replace(b"00000002", b"last-2")),
}


class Handler(BaseHTTPRequestHandler):
    """Serves lists, watches and stories."""

    protocol_version = "HTTP/1.1"
    counts: dict[str, int] = {}  # noqa: RUF012  of the process
    watchers: dict[str, queue.SimpleQueue[Iterator[bytes]]] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        """Answer."""
        parts = urlsplit(self.path)
        asked, kind = dict(parse_qsl(parts.query)), parts.path.rsplit("/", 1)[1]
        if "watch" in asked:
            self._watch(kind)
        elif parts.path.startswith("/go/"):
            story, number = unquote(parts.path.removeprefix("/go/")).rsplit("/", 1)
            self._go(story, int(number))
        else:
            self._list(kind, asked)

    def _list(self, kind: str, asked: dict[str, str]) -> None:
        make = {"nodes": node, "pods": pod, "nodegpus": nodegpus}[kind]
        start = int(asked.get("continue") or 0)
        end = min(start + int(asked["limit"]), self.counts[kind])
        following = b"%d" % end if end < self.counts[kind] else b""
        head = (
            b'{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"%s"},"items":[' % following
        )
        self._answer(head + b",".join(map(make, range(start, end))) + b"]}")

    def _go(self, story: str, number: int) -> None:
        kind, make, last = STORIES[story]
        self.watchers[kind].put(line(each) for each in (*map(make, range(number)), last))
        self._answer(b"{}")

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, kind: str) -> None:
        stories = self.watchers[kind] = queue.SimpleQueue()
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:  # until the client is gone
            for piece in stories.get():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until killed."""
    nodes, pods = map(int, sys.argv[1:])
    Handler.counts = {"nodes": nodes, "pods": pods, "nodegpus": nodes}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
