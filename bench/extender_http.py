"""Latency of a request of kube-scheduler, from its first byte to the last of the response, as ratios to a baseline.

The baseline is the same server, but it only decodes the body and encodes a response of the same size. Real processes, a
keep-alive connection to each, requests in turns, medians (p50); on a busy machine compare the server's CPU time. Aim:
p50 within 2.5 times the baseline. The nodes are those of bench/evaluate.py, with some hundred states. Run: make bench
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import uvloop
from evaluate import NOW, POLICY, fleet

from gputopo.crd.nodegpus import PodRef
from gputopo.labels.reasons import Reason
from gputopo.process.daemon import bind_socket
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.extender.decision_log import DecisionLog
from scheduler_core.extender.extender import DecisionRecord, Extender
from scheduler_core.extender.handlers import handlers
from scheduler_core.extender.http import Handler, Reply, extender_app
from scheduler_core.extender.metrics import ExtenderMetrics
from scheduler_core.extender.wire import filter_result, host_priorities, parse_extender_args
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.pod import Pod
from scheduler_core.runtime.http_server import Listener, serve_listeners

SIZES = (500, 5_000, 15_000)
ROUNDS = 160
REASON = Reason.ISLAND.value
PODS = 16  # requests are for these in turn; a repeated request replaces the assumed pod


class Case(NamedTuple):
    """A kind of request."""

    title: str
    verb: str
    gpus: int
    wishes: tuple[tuple[str, str], ...] = ()
    names: int | None = None  # number of node names; None: all
    soft: bool = False  # with preferences for nodes: all nodes that pass are in the response


CASES = (
    Case("filter, 1 GPU: the best 48", "filter", 1),
    Case("filter, 4 GPUs in an island: one", "filter", 4, (("island", "required"),)),
    Case("filter, refused by all: try again", "filter", 1, (("min-vram", "9999Gi"),)),
    Case("filter, all that pass", "filter", 1, soft=True),
    Case("prioritize, 48 names", "prioritize", 1, names=48),
    Case("prioritize, all names", "prioritize", 1),
)


def main() -> None:
    """Print a row per number of names and case."""
    columns = f"{'baseline':>8} {'ours':>8} {'ratio':>6}"
    print(f"\n{'microseconds':<41} {'p50 of the whole call':^24} {'CPU of the server':^24}")
    print(f"{'names':>6} {'call':<34} {columns} {columns}")
    for size in SIZES:
        with Peer("baseline", size) as baseline, Peer("ours", size) as ours:
            for case in CASES:
                answered = json.loads(ours.ask(case.verb, body(case, size, 0, "0")))
                answer = "0"
                if case.verb == "filter":
                    refused = answered.get("FailedAndUnresolvableNodes")  # none if the response is an error, and short
                    answer = f"{len(refused)} refused" if refused else f"{len(answered.get('NodeNames', ()))} passed"
                bodies = [body(case, size, number, answer) for number in range(PODS)]
                row(f"{size:>6} {case.title:<34}", case.verb, {"baseline": baseline, "ours": ours}, bodies)


def row(title: str, verb: str, peers: dict[str, Peer], bodies: list[bytes]) -> None:
    """Print a row."""
    times: dict[str, list[float]] = {name: [] for name in peers}
    before = [peer.cpu_us() for peer in peers.values()]
    for number in range(ROUNDS):
        for name, peer in peers.items():
            begun = time.perf_counter_ns()
            peer.ask(verb, bodies[number % PODS])
            times[name].append((time.perf_counter_ns() - begun) / 1000)
    baseline, ours = (statistics.median(times[name]) for name in peers)
    cpu = [(peer.cpu_us() - since) / ROUNDS for peer, since in zip(peers.values(), before, strict=True)]
    print(
        f"{title} {baseline:8.0f} {ours:8.0f} {ours / baseline:6.2f} {cpu[0]:8.0f} {cpu[1]:8.0f} {cpu[1] / cpu[0]:6.2f}"
    )


def body(case: Case, size: int, number: int, answer: str) -> bytes:
    """Return kube-scheduler's body: the pod as in the API server, and node names."""
    annotations = {f"gputopo.io/{key}": value for key, value in case.wishes} | {"bench/answer": answer}
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}
    pod: dict[str, Any] = {
        "metadata": {
            "name": f"train-{number}",
            "namespace": "team",
            "uid": f"54e2072e-cb21-4fee-aa96-{number:012}",
            "annotations": annotations,
            "labels": {f"app.kubernetes.io/label-{at}": "value" * 4 for at in range(20)},
        },
        "spec": {
            "containers": [
                {
                    "name": "train",
                    "image": "registry.example/train:1",
                    "resources": {"limits": {WHOLE: str(case.gpus)}, "requests": {WHOLE: str(case.gpus), "cpu": "8"}},
                    "env": [{"name": f"VARIABLE_{at}", "value": "some value " * 3} for at in range(30)],
                }
            ],
            "schedulerName": "gputopo-scheduler",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }
    if case.soft:
        pod["spec"]["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    names = [f"gpu-node-{at:05}-pool-a1b2c3" for at in range(case.names or size)]
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


class Peer:
    """A server process, and a connection to it."""

    def __init__(self, kind: str, size: int) -> None:
        command = [sys.executable, __file__, kind, str(size)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.wait()

    def cpu_us(self) -> float:
        """Return the CPU time of its main thread, which does all the work."""
        return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0]) / 1000

    def ask(self, verb: str, sent: bytes) -> bytes:
        """Send a request and return the response."""
        head = f"POST /{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n\r\n".encode()
        self._connection.sendall(head + sent)
        received = self._connection.recv(1 << 18)
        while b"\r\n\r\n" not in received:
            received += self._connection.recv(1 << 18)
        head, _, rest = received.partition(b"\r\n\r\n")
        left = int(head.lower().partition(b"content-length: ")[2].split()[0]) - len(rest)
        parts = [rest]
        while left:
            parts.append(self._connection.recv(1 << 18))
            left -= len(parts[-1])
        assert head.startswith(b"HTTP/1.1 200 ")
        return b"".join(parts)


def baseline_verbs() -> dict[str, Handler]:
    """Decode, and encode as much as the extender does."""

    async def filter_(sent: bytes, _: float) -> Reply:
        asked = parse_extender_args(sent)
        count, refused = wanted(asked.pod)
        names = islice(asked.names, count)
        return Reply(
            200, filter_result((), dict.fromkeys(names, REASON)) if refused else filter_result(list(names), {})
        )

    async def prioritize(sent: bytes, _: float) -> Reply:
        return Reply(200, host_priorities([(name, 5) for name in parse_extender_args(sent).names]))

    return {"filter": filter_, "prioritize": prioritize}


def wanted(pod: Pod) -> tuple[int, bool]:
    """The number of names in the baseline's response, and whether they are rejected."""
    count, _, kind = (pod.metadata.annotations or {})["bench/answer"].partition(" ")
    return int(count), kind == "refused"


def our_verbs(table: ClusterSnapshot) -> dict[str, Handler]:
    """Return the extender's handlers, with the nodes in its cache."""
    cache = ClusterCache(POLICY)
    for batch in batches(table):
        cache.apply_batch(batch, NOW)
    metrics, decisions = ExtenderMetrics(), DecisionLog(256)

    def record(made: DecisionRecord) -> None:
        metrics.count_decision(made)
        decisions.add_decision(made)

    return handlers(Extender(cache, POLICY, lambda: NOW, record), metrics, time.monotonic)


def batches(table: ClusterSnapshot) -> Iterator[Batch[Any]]:
    """Return the updates of the watches."""
    nodes, pods, reports = [], [], []
    for name, record in table.records.items():
        nodes.append(NodeUpdate(name, record.machine))
        for pod in record.pods:
            own = pod._replace(uid=f"{pod.uid}-{name}", name=f"{pod.name}-{name}")
            pods.append(PodUpdate(own.uid, own, name))
        if record.gpus is not None:
            allocations = tuple(
                msgspec.structs.replace(each, pod=PodRef(each.pod.namespace, f"{each.pod.name}-{name}", "c"))
                for each in record.gpus.allocations or ()
            )
            reports.append(NodeGpusUpdate(name, msgspec.structs.replace(record.gpus, allocations=allocations)))
    yield Batch(NodeUpdate, tuple(nodes), is_full_list=True)
    yield Batch(PodUpdate, tuple(pods), is_full_list=True)
    yield Batch(NodeGpusUpdate, tuple(reports), is_full_list=True)


def serve_one(kind: str, size: int) -> None:
    """Serve the baseline or the extender; print the port."""
    answers = baseline_verbs() if kind == "baseline" else our_verbs(fleet(size))
    listener = Listener(extender_app(answers, lambda: None, 1 << 26, "", time.monotonic), bind_socket(("127.0.0.1", 0)))
    gc.collect()
    gc.freeze()

    async def main() -> None:
        await serve_listeners([listener], asyncio.Event(), lambda: print(listener.port, flush=True))

    uvloop.run(main())


if __name__ == "__main__":
    if len(sys.argv) == 3:
        serve_one(sys.argv[1], int(sys.argv[2]))
    else:
        main()
