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
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, cycle
from random import Random
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from filter_reservations import Containers, Event, Reservations, pod_object

from gputopo.crd.nodegpus import content_hash
from gputopo.crd.reservations import LEDGERS, RESERVATIONS
from gputopo.labels import encode_topology, keys
from gputopo.labels.keys import GPU_RESOURCES
from gputopo.model import NodeTopology
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
KINDS = ("nodegpus", "pods", "nodes")  # of which a watch falls behind
_TICK_S = 0.01
_RELIST_S = 15.0
Object = dict[str, Any]
_GONE = b'{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Expired","code":410}}\n'


class Fleet:
    """The nodes, and what runs on them. ``lock`` guards them."""

    def __init__(
        self, count: int, machines: Sequence[NodeTopology] = (), kubelets: Sequence[Object | None] = (None,)
    ) -> None:
        """Create nodes with these machines, by default those above, and these settings of kubelets, in turns."""
        self._random = Random(count)
        facts = [(each, encode_topology(each)) for each in machines or _default_machines()]
        self._machines = [facts[at % len(facts)] for at in range(count)]
        self._kubelets = [kubelets[at // len(facts) % len(kubelets)] for at in range(count)]
        self._uuids = [[gpu.uuid for gpu in machine.gpus] for machine, _ in self._machines]
        self._observed = [_now()] * count
        self.count, self.lock = count, threading.Lock()
        self.held: list[dict[str, tuple[Containers, list[int]]]] = []  # by node: pod -> containers, and reported GPUs
        self.late: list[dict[str, Containers]] = []  # by node: pods whose GPUs are not reported
        self.reserved = [0] * count  # by node: GPUs of members that are not bound
        for at in range(count):
            busy = self._random.sample(range(self.size(at)), self._random.randint(0, self.size(at) // 2))
            self.held.append({f"busy-{at}": ((len(busy),), busy)} if busy else {})
            many = 3 if self.size(at) > 8 and self._random.random() < 0.1 else self._random.random() < 0.2
            self.late.append({f"late-{at}-{n}": self._containers(self._random.choice((1, 1, 2))) for n in range(many)})
            while self.free(at) < 0:  # on small machines
                self.late[at].popitem()
        self._reports = [self.report(at) for at in range(count)]

    def _containers(self, gpus: int) -> Containers:
        return (gpus - 1, 1) if gpus > 1 and self._random.random() < 0.3 else (gpus,)

    def size(self, at: int) -> int:
        """Return the number of GPUs of a node."""
        return len(self._uuids[at])

    def free(self, at: int) -> int:
        """Return the number of GPUs of a node that no pod and no member has."""
        taken = sum(len(gpus) for _, gpus in self.held[at].values()) + sum(map(sum, self.late[at].values()))
        return self.size(at) - taken - self.reserved[at]

    def report_pod(self, at: int, pod: str) -> None:
        """The kubelet reports the GPUs of a pod: any free ones."""
        taken = {gpu for _, held in self.held[at].values() for gpu in held}
        free = [gpu for gpu in range(self.size(at)) if gpu not in taken]
        containers = self.late[at].pop(pod)
        self.held[at][pod] = containers, self._random.sample(free, sum(containers))

    def node(self, at: int) -> bytes:
        """Return a Node."""
        machine, facts = self._machines[at]
        metadata = {
            "name": name(at),
            "uid": f"uid-{at}",
            "resourceVersion": "5",
            "labels": {**facts.labels, **facts.mirrors},
            "annotations": facts.annotations,
        }
        allocatable = {GPU_RESOURCES[0]: str(len(machine.gpus))}
        return msgspec.json.encode({"metadata": metadata, "status": {"allocatable": allocatable}})

    def report(self, at: int) -> bytes:
        """Return the NodeGpus of a node. Its ``agentVersion`` is the time at which it was made, monotonic seconds."""
        allocations = [
            {"gpu": self._uuids[at][gpu], "pod": {"namespace": "team", "name": pod, "container": f"c{container}"}}
            for pod, (containers, taken) in self.held[at].items()
            for container, gpu in zip(_container_of_each(containers), taken, strict=True)
        ]
        self._observed[at] = _now()
        report: Object = {
            "observedAt": self._observed[at],
            "contentHash": content_hash(self._machines[at][1].annotations[keys.TOPOLOGY.key]),
            "agentVersion": f"{time.monotonic():.4f}",
        }
        if (kubelet := self._kubelets[at]) is not None:
            report["kubelet"] = kubelet
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
            nodes = range(start, min(end, self.count))
            if kind == "nodes":
                return [self.node(at) for at in nodes]
            if kind == "nodegpus":
                return self._reports[start:end]
            if kind == "leases":
                return [self.heartbeat(at) for at in nodes]
            return [pod for at in nodes for pod in self.pods(at)]

    def pods(self, at: int) -> list[bytes]:
        """Return the pods of a node."""
        held = [(pod, containers) for pod, (containers, _) in self.held[at].items()]
        return [pod_object(pod, name(at), *containers) for pod, containers in (*held, *self.late[at].items())]

    def changed_report(self, at: int) -> Event:
        """Return the event of a report, which lists show from now on."""
        self._reports[at] = self.report(at)
        return "nodegpus", "MODIFIED", self._reports[at]

    def events(self) -> Iterator[Event]:
        """Yield kind, type and object of events without end."""
        for serial in range(10**12):
            at, pod = self._random.randrange(self.count), f"new-{serial}"
            containers = self._containers(self._random.choice((1, 1, 2, 4)))
            yield "nodes", "MODIFIED", self.node(at)
            yield "pods", "MODIFIED", pod_object(f"web-{at}", name(at), 0)
            yield "leases", "MODIFIED", self.heartbeat(at)
            if sum(containers) > self.free(at):
                yield self.changed_report(at)
                continue
            self.late[at][pod] = containers
            yield "pods", "ADDED", pod_object(pod, name(at), *containers)
            self.report_pod(at, pod)
            yield self.changed_report(at)
            yield "nodes", "MODIFIED", self.node(at)
            yield "pods", "MODIFIED", pod_object(f"web-{at}", name(at), 0)
            del self.held[at][pod]
            yield "pods", "DELETED", pod_object(pod, name(at), *containers)
            yield self.changed_report(at)


def name(at: int) -> str:
    """Return the name of a node."""
    return f"gpu-node-{at:05}-pool-a1b2c3"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _default_machines() -> list[NodeTopology]:
    """Return a sequence of machines in which a seventh has 16 GPUs."""
    eights, sixteens = [make() for make in SHAPES_8], [make() for make in SHAPES_16]
    return [machine for sixteen in sixteens for machine in (*eights, sixteen)]


def _container_of_each(containers: Containers) -> list[int]:
    """Return the container of each GPU of a pod."""
    return [number for number, gpus in enumerate(containers) for _ in range(gpus)]


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
