"""An API server of a busy fleet, for ``bench/filter_latency.py``: ``python bench/filter_fleet.py NODES EVENTS_PER_S``.

Prints its port. A seventh of the nodes has 16 GPUs, of seven shapes: from all pairs alike to no two GPUs alike. A tenth
of these and a fifth of the others have pods whose GPUs the kubelet has not reported; some pods have two containers.
Half of the events change a node: a pod is bound, reported, deleted, and no longer reported. The others are heartbeats
of nodes and agents, and pods without GPUs. A planner holds capacity and places a gang each second
(``filter_reservations.py``). Every 15 seconds a watch, of another kind each time, is told that it fell behind, and
lists all objects again.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, cycle
from random import Random
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from filter_reservations import Event, Reservations, pod_object

from gputopo.crd.nodegpus import content_hash
from gputopo.crd.reservations import LEDGERS, RESERVATIONS
from gputopo.labels import encode_topology, keys
from tests.machines import MACHINES
from tests.scheduler_core.allocation import machines16

SHAPES_8 = tuple(MACHINES[name] for name in ("hgx_h100", "hgx_b200", "dgx1", "a100_bridged", "dgx_a100", "rtx4090"))
SHAPES_16 = (
    MACHINES["dgx2"],
    machines16.two_baseboards,
    machines16.pcie_only,
    machines16.bridged_pairs,
    machines16.weak_uplink,
    machines16.two_cube_meshes,
    machines16.uneven,
)
BLOCK = len(SHAPES_8) + 1  # nodes: one of each shape with 8 GPUs, and one with 16
KINDS = ("nodegpus", "pods", "nodes")  # of which a watch falls behind
_TICK_S = 0.01
_RELIST_S = 15.0
_GONE = b'{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Expired","code":410}}\n'


class Fleet:
    """The nodes, and what runs on them. ``lock`` guards them."""

    def __init__(self, count: int) -> None:
        self._random = Random(count)
        eights, sixteens = ([(each.gpus, encode_topology(each)) for each in (make() for make in shapes)]
                            for shapes in (SHAPES_8, SHAPES_16))  # fmt: skip
        machines = [eights[at % BLOCK] if at % BLOCK < 6 else sixteens[at // BLOCK % 7] for at in range(count)]
        self._uuids = [[gpu.uuid for gpu in gpus] for gpus, _ in machines]
        self._hashes = [content_hash(facts.annotations[keys.TOPOLOGY.key]) for _, facts in machines]
        self._observed = [_now()] * count
        self.count, self.lock = count, threading.Lock()
        self.held: list[dict[str, tuple[int, list[int]]]] = []  # by node: pod -> containers, and GPUs as reported
        self.late: list[dict[str, tuple[int, int]]] = []  # by node: pod -> containers, and number of GPUs
        self.reserved = [0] * count  # by node: GPUs of members that are not bound
        for at, uuids in enumerate(self._uuids):
            busy = self._random.sample(range(len(uuids)), self._random.randint(0, len(uuids) // 2))
            self.held.append({f"busy-{at}": (1, busy)} if busy else {})
            many = 3 if len(uuids) > 8 and self._random.random() < 0.1 else self._random.random() < 0.2
            self.late.append({f"late-{at}-{n}": self._containers(self._random.choice((1, 1, 2))) for n in range(many)})
        self._nodes = [_node(at, len(gpus), facts) for at, (gpus, facts) in enumerate(machines)]
        self._reports = [self.report(at) for at in range(count)]

    def _containers(self, gpus: int) -> tuple[int, int]:
        return (2 if gpus > 1 and self._random.random() < 0.3 else 1), gpus

    def free(self, at: int) -> int:
        """Return the number of GPUs of a node that no pod and no member has."""
        taken = sum(len(gpus) for _, gpus in self.held[at].values()) + sum(gpus for _, gpus in self.late[at].values())
        return len(self._uuids[at]) - taken - self.reserved[at]

    def report_pod(self, at: int, pod: str, containers: int, gpus: int) -> None:
        """The kubelet reports the GPUs of a pod: any free ones."""
        taken = {gpu for _, held in self.held[at].values() for gpu in held}
        free = [gpu for gpu in range(len(self._uuids[at])) if gpu not in taken]
        self.held[at][pod] = containers, self._random.sample(free, gpus)

    def report(self, at: int) -> bytes:
        """Return the NodeGpus of a node. Its ``agentVersion`` is the time at which it was made, monotonic seconds."""
        allocations = [
            {"gpu": self._uuids[at][gpu], "pod": {"namespace": "team", "name": pod, "container": f"c{n % containers}"}}
            for pod, (containers, taken) in self.held[at].items()
            for n, gpu in enumerate(sorted(taken))
        ]
        self._observed[at] = _now()
        report = {
            "observedAt": self._observed[at],
            "contentHash": self._hashes[at],
            "agentVersion": f"{time.monotonic():.4f}",
        }
        metadata = {"name": name(at), "uid": f"uid-g-{at}", "resourceVersion": "5"}
        return msgspec.json.encode({"metadata": metadata, **report, "allocations": allocations})

    def heartbeat(self, at: int) -> bytes:
        """Return the Lease of an agent."""
        metadata = {"name": name(at), "uid": f"uid-l-{at}", "resourceVersion": "5"}
        spec = {"holderIdentity": self._observed[at], "renewTime": _now()}
        return msgspec.json.encode({"metadata": metadata, "spec": spec})

    def list_objects(self, kind: str, start: int, end: int) -> list[bytes]:
        """Return the objects of some nodes."""
        with self.lock:
            if kind == "nodes":
                return self._nodes[start:end]
            if kind == "nodegpus":
                return self._reports[start:end]
            if kind == "leases":
                return [self.heartbeat(at) for at in range(start, min(end, self.count))]
            return [pod for at in range(start, min(end, self.count)) for pod in self._pods(at)]

    def _pods(self, at: int) -> Iterator[bytes]:
        for pod, (containers, gpus) in self.held[at].items():
            yield pod_object(pod, name(at), len(gpus), containers)
        for pod, (containers, number) in self.late[at].items():
            yield pod_object(pod, name(at), number, containers)

    def changed_report(self, at: int) -> Event:
        """Return the event of a report, which lists show from now on."""
        self._reports[at] = self.report(at)
        return "nodegpus", "MODIFIED", self._reports[at]

    def events(self) -> Iterator[Event]:
        """Yield kind, type and object of events without end."""
        for serial in range(10**12):
            at, pod = self._random.randrange(self.count), f"new-{serial}"
            containers, gpus = self._containers(self._random.choice((1, 1, 2, 4)))
            yield "nodes", "MODIFIED", self._nodes[at]
            yield "pods", "MODIFIED", pod_object(f"web-{at}", name(at), 0)
            yield "leases", "MODIFIED", self.heartbeat(at)
            if gpus > self.free(at):
                yield self.changed_report(at)
                continue
            self.late[at][pod] = containers, gpus
            yield "pods", "ADDED", pod_object(pod, name(at), gpus, containers)
            self.report_pod(at, pod, containers, gpus)
            del self.late[at][pod]
            yield self.changed_report(at)
            yield "nodes", "MODIFIED", self._nodes[at]
            yield "pods", "MODIFIED", pod_object(f"web-{at}", name(at), 0)
            del self.held[at][pod]
            yield "pods", "DELETED", pod_object(pod, name(at), gpus, containers)
            yield self.changed_report(at)


def name(at: int) -> str:
    """Return the name of a node."""
    return f"gpu-node-{at:05}-pool-a1b2c3"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _node(at: int, gpus: int, facts: Any) -> bytes:
    metadata = {
        "name": name(at),
        "uid": f"uid-{at}",
        "resourceVersion": "5",
        "labels": {**facts.labels, **facts.mirrors},
        "annotations": facts.annotations,
    }
    return msgspec.json.encode({"metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}})


class Handler(BaseHTTPRequestHandler):
    """Serves lists and watches, and takes the acknowledgements of the extender."""

    protocol_version = "HTTP/1.1"
    fleet: Fleet
    planner: Reservations
    watchers: dict[str, queue.SimpleQueue[bytes]] = {}  # noqa: RUF012  of the process

    def do_GET(self) -> None:
        """Answer."""
        parts = urlsplit(self.path)
        asked, kind = dict(parse_qsl(parts.query)), parts.path.rsplit("/", 1)[1]
        if kind not in (*KINDS, "leases", RESERVATIONS, LEDGERS):
            self.send_error(404)
        elif "watch" in asked:
            self._watch(kind)
        elif kind in (RESERVATIONS, LEDGERS):
            with self.fleet.lock:
                objects = self.planner.list_objects(kind)
            self._answer(objects, "")
        else:
            start = int(asked.get("continue") or 0)
            end = start + int(asked["limit"])
            self._answer(self.fleet.list_objects(kind, start, end), str(end) if end < self.fleet.count else "")

    def _answer(self, objects: list[bytes], following: str) -> None:
        head = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "continue": following}}
        self._send(msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(objects) + b"]}")

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PATCH(self) -> None:
        """Take the status of a ledger."""
        applied = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
        self.planner.applied.put(applied)
        self._send(msgspec.json.encode(applied))

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


def send_events(fleet: Fleet, planner: Reservations, per_s: int) -> None:
    """Send events to the watches at a steady rate."""
    while len(Handler.watchers) < len(KINDS) + 3:
        time.sleep(0.1)
    events, started, sent = fleet.events(), time.monotonic(), 0
    kinds, relist_at = cycle(KINDS), started + _RELIST_S
    while True:
        if time.monotonic() > relist_at:
            Handler.watchers[next(kinds)].put(_GONE)
            relist_at += _RELIST_S
        with fleet.lock:
            due = max(0, int((time.monotonic() - started) * per_s) - sent)
            for kind, what, text in chain(planner.events(time.monotonic()), (next(events) for _ in range(due))):
                Handler.watchers[kind].put(b'{"type":"%s","object":%s}\n' % (what.encode(), text))
                sent += 1
        time.sleep(_TICK_S)


def main() -> None:
    """Serve until killed."""
    count, per_s = map(int, sys.argv[1:])
    Handler.fleet = Fleet(count)
    Handler.planner = Reservations(Handler.fleet, name)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=send_events, args=(Handler.fleet, Handler.planner, per_s), daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
