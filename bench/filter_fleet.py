"""An API server of a busy fleet, for ``bench/filter_latency.py``: ``python bench/filter_fleet.py NODES EVENTS_PER_S``.

Prints its port. A seventh of the nodes has 16 GPUs. A tenth of these and a fifth of the others have pods whose GPUs the
kubelet has not reported. Half of the events change a node: a pod is bound, reported, deleted, and no longer reported.
The others are heartbeats of nodes and pods without GPUs. Every 15 seconds a watch, of another kind each time, is told
that it fell behind, and lists all objects again.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from random import Random
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from gputopo.crd.nodegpus import content_hash
from gputopo.labels import encode_topology, keys
from tests.machines import MACHINES

SHAPES = ("hgx_h100", "hgx_b200", "dgx1", "a100_bridged", "dgx_a100", "rtx4090", "dgx2")
_TICK_S = 0.01
_RELIST_S = 15.0
_GONE = b'{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Expired","code":410}}\n'
Object = dict[str, Any]


class Fleet:
    """The objects."""

    def __init__(self, count: int) -> None:
        self._random = Random(count)
        self._machines = [(each.gpus, encode_topology(each)) for each in (MACHINES[name]() for name in SHAPES)]
        self.count, self._serial = count, 0
        self.held: list[dict[str, list[int]]] = []  # by node: pod -> GPUs as reported
        self.late: list[dict[str, int]] = []  # by node: pod -> number of GPUs, not reported
        for at in range(count):
            size = len(self._machines[at % len(SHAPES)][0])
            busy = self._random.sample(range(size), self._random.randint(0, size // 2))
            self.held.append({f"busy-{at}": busy} if busy else {})
            many = 3 if size > 8 and self._random.random() < 0.1 else self._random.random() < 0.2
            self.late.append({f"late-{at}-{n}": self._random.choice((1, 1, 2)) for n in range(many)})

    def node(self, at: int) -> bytes:
        """Return a Node."""
        gpus, facts = self._machines[at % len(SHAPES)]
        metadata = {
            "name": name(at),
            "uid": f"uid-{at}",
            "resourceVersion": "5",
            "labels": {**facts.labels, **facts.mirrors},
            "annotations": facts.annotations,
        }
        return msgspec.json.encode(
            {"metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": str(len(gpus))}}}
        )

    def pods(self, at: int) -> list[bytes]:
        """Return the pods of a node."""
        held = [(pod, len(gpus)) for pod, gpus in self.held[at].items()]
        return [pod_object(pod, at, gpus) for pod, gpus in (*held, *self.late[at].items())]

    def report(self, at: int) -> bytes:
        """Return the NodeGpus of a node."""
        gpus, facts = self._machines[at % len(SHAPES)]
        allocations = [
            {"gpu": gpus[gpu].uuid, "pod": {"namespace": "team", "name": pod, "container": "c"}}
            for pod, taken in self.held[at].items()
            for gpu in taken
        ]
        self._serial += 1
        report = {
            "observedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "contentHash": content_hash(facts.annotations[keys.TOPOLOGY.key]),
            "agentVersion": "1",
        }
        metadata = {"name": name(at), "uid": f"uid-g-{at}", "resourceVersion": str(self._serial)}
        return msgspec.json.encode({"metadata": metadata, **report, "allocations": allocations})

    def events(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield kind, type and object of events without end."""
        for serial in range(10**12):
            at = self._random.randrange(self.count)
            size, pod = len(self._machines[at % len(SHAPES)][0]), f"new-{serial}"
            free = sorted(set(range(size)) - {gpu for gpus in self.held[at].values() for gpu in gpus})
            gpus = self._random.choice((1, 1, 2, 4))
            yield "nodes", "MODIFIED", self.node(at)
            yield "pods", "MODIFIED", pod_object(f"web-{at}", at, 0)
            if gpus > len(free) - sum(self.late[at].values()):
                yield "nodegpus", "MODIFIED", self.report(at)
                continue
            yield "pods", "ADDED", pod_object(pod, at, gpus)
            self.held[at][pod] = self._random.sample(free, gpus)
            yield "nodegpus", "MODIFIED", self.report(at)
            yield "nodes", "MODIFIED", self.node(at)
            yield "pods", "MODIFIED", pod_object(f"web-{at}", at, 0)
            yield "pods", "DELETED", pod_object(pod, at, gpus)
            del self.held[at][pod]
            yield "nodegpus", "MODIFIED", self.report(at)


def name(at: int) -> str:
    """Return the name of a node."""
    return f"gpu-node-{at:05}-pool-a1b2c3"


def pod_object(pod: str, at: int, gpus: int) -> bytes:
    """Return a Pod that is bound to a node."""
    limits = {"cpu": "8"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    metadata = {"name": pod, "namespace": "team", "uid": f"uid-{pod}", "resourceVersion": "5"}
    spec = {"nodeName": name(at), "containers": [{"name": "c", "resources": {"limits": limits}}]}
    return msgspec.json.encode({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})


class Handler(BaseHTTPRequestHandler):
    """Serves lists and watches."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, list[bytes]] = {}  # noqa: RUF012  of the process
    watchers: dict[str, queue.SimpleQueue[bytes]] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        """Answer."""
        parts = urlsplit(self.path)
        asked, kind = dict(parse_qsl(parts.query)), parts.path.rsplit("/", 1)[1]
        if kind not in self.objects:
            self.send_error(404)
        elif "watch" in asked:
            self._watch(kind)
        else:
            start = int(asked.get("continue") or 0)
            end = min(start + int(asked["limit"]), len(self.objects[kind]))
            following = str(end) if end < len(self.objects[kind]) else ""
            head = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "continue": following}}
            body = msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(self.objects[kind][start:end]) + b"]}"
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _watch(self, kind: str) -> None:
        events = self.watchers[kind] = queue.SimpleQueue()
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:  # until the client is gone
            piece = events.get()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def send_events(fleet: Fleet, per_s: int) -> None:
    """Send events to the watches at a steady rate."""
    events = fleet.events()
    while len(Handler.watchers) < len(Handler.objects):
        time.sleep(0.1)
    started, sent = time.monotonic(), 0
    kinds, relist_at = cycle(("nodegpus", "pods", "nodes")), started + _RELIST_S
    while True:
        if time.monotonic() > relist_at:
            Handler.watchers[next(kinds)].put(_GONE)
            relist_at += _RELIST_S
        while sent < (time.monotonic() - started) * per_s:
            kind, what, text = next(events)
            Handler.watchers[kind].put(b'{"type":"%s","object":%s}\n' % (what.encode(), text))
            sent += 1
        time.sleep(_TICK_S)


def main() -> None:
    """Serve until killed."""
    count, per_s = map(int, sys.argv[1:])
    fleet = Fleet(count)
    Handler.objects = {
        "nodes": [fleet.node(at) for at in range(count)],
        "pods": [pod for at in range(count) for pod in fleet.pods(at)],
        "nodegpus": [fleet.report(at) for at in range(count)],
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=send_events, args=(fleet, per_s), daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
