"""Pods per second of a real kube-scheduler, with the extender and without, as ratios measured side by side in one run.

1,000 and 5,000 fake nodes with labels, topology annotation and ``NodeGpus``; etcd, API server, kube-scheduler and
extender share the machine, as do all rows of a table. All pods are there before the scheduler starts; its client limits
are raised. The rate is that between the first and the last tenth of the pods; the CPU time per pod, of kube-scheduler
and extender together, says more where other work shares the machine. There are no kubelets and agents: the
GPUs of bound pods are never reported, which is harder for the extender than a real cluster.

    default sampling     no extender; kube-scheduler samples the nodes (percentageOfNodesToScore unset)
    all nodes            no extender; percentageOfNodesToScore: 100
    all, one by one      the same without OpportunisticBatching, which reuses results for equal pods; every extender
                         disables it
    no-op extender       the same server; it passes every node with the same score; all nodes
    gputopo              the extender as shipped; all nodes

The storm: 200 additional pods for which every node is rejected. kube-scheduler retries each of them after every event.
The extender rejects their nodes; the no-op extender recognises them by an annotation.

Run: make bench-scheduler (20 minutes; the control plane of docs/testing.md). --rounds, --sizes, --pods and --workloads
for less.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import urllib3
import uvloop
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gputopo.crd.nodegpus import content_hash
from gputopo.kube.rbac import NODE_GPUS
from gputopo.labels import encode_topology, keys
from gputopo.labels.reasons import Reason
from gputopo.process.daemon import bind_socket
from scheduler_core.cache.staleness import MAX_CLOCK_AHEAD_S
from scheduler_core.extender import scheduler_config
from scheduler_core.extender.http import Handler, Reply, extender_app
from scheduler_core.extender.wire import filter_result, host_priorities, parse_extender_args
from scheduler_core.runtime.http_server import Listener, serve_listeners
from tests.api_objects import GPU, Object, gpu_node
from tests.e2e import binaries, servers
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.process import Server
from tests.e2e.scheduler import running
from tests.ports import free_port
from tests.simulated_node.shapes import SHAPES, on_node

SIZES = (1_000, 5_000)
PODS = {1_000: 1_000, 5_000: 600}
ROUNDS = 3
STORM = 200
REFUSED = "bench/refused"
POLL_S = 0.1
PATIENCE_S = 300.0


class Setup(NamedTuple):
    """A configuration to measure."""

    title: str
    all_nodes: bool
    extender: str | None = None  # "no-op", "gputopo"
    flags: tuple[str, ...] = ()  # of kube-scheduler


SETUPS = (
    Setup("default sampling", all_nodes=False),
    Setup("all nodes", all_nodes=True),
    Setup("all, one by one", all_nodes=True, flags=("--feature-gates=OpportunisticBatching=false",)),
    Setup("no-op extender", all_nodes=True, extender="no-op"),
    Setup("gputopo", all_nodes=True, extender="gputopo"),
)


class Rate(NamedTuple):
    """The results of a scheduler."""

    pods_s: float
    cpu_ms: float  # of kube-scheduler and extender, per pod


class Sample(NamedTuple):
    """A measurement."""

    at: float  # seconds
    bound: float  # pods
    cpu: float  # seconds that kube-scheduler and extender have used


# The requests of pods: GPUs and annotations.
WORKLOADS: dict[str, tuple[tuple[int, dict[str, str]], ...]] = {
    "1 GPU each": ((1, {}),),
    "half of them require an island": ((1, {}), (2, {"island": "required"}), (1, {}), (4, {"island": "required"})),
    f"1 GPU each, beside {STORM} that wait": ((1, {}),),
}
YARDSTICK = "no-op extender"


def main() -> None:
    """Print a table per number of nodes and workload."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options.add_argument("--pods", type=int)
    options.add_argument("--workloads", type=int, nargs="+", default=range(len(WORKLOADS)), help="by number, from 0")
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--no-op", type=int, metavar="PORT", help="be the no-op extender")
    asked = options.parse_args()
    if asked.no_op is not None:
        serve_no_op(asked.no_op)
        return
    found = binaries.find(os.environ)
    for size in asked.sizes:
        with tempfile.TemporaryDirectory() as folder, servers.control_plane(found, Path(folder)) as plane:
            cluster = Cluster(plane, plane.client(), "bench")
            populate(cluster, size)
            for workload, asks in (list(WORKLOADS.items())[number] for number in asked.workloads):
                measure(cluster, f"{size:,} nodes, {workload}", asks, asked.pods or PODS.get(size, size), asked.rounds)
            cluster.api.close()


def measure(cluster: Cluster, title: str, asks: tuple[tuple[int, dict[str, str]], ...], pods: int, rounds: int) -> None:
    """Print a table: all set-ups in turns, so that other load on the machine affects all of them."""
    storm = STORM if str(STORM) in title else 0
    setups = [each for each in SETUPS if not storm or each.extender is not None]
    rates: dict[str, list[Rate]] = {each.title: [] for each in setups}
    for _ in range(rounds):
        for setup in setups:
            create(cluster, asks, pods, storm)
            rates[setup.title].append(rate(cluster, setup, pods))
            cluster.api.delete(cluster.pods())
            wait_for(lambda: not cluster.api.items(cluster.pods(), limit="1"), "the pods to go", PATIENCE_S)
    print(f"\n{title}\n{'':<20} {'pods/s':>7} {'of no-op':>9} {'CPU ms/pod':>11}   pods/s of each round")
    yardstick = statistics.median(each.pods_s for each in rates[YARDSTICK])
    for name, found in rates.items():
        median = statistics.median(each.pods_s for each in found)
        cpu = statistics.median(each.cpu_ms for each in found)
        rounds_of = ", ".join(f"{each.pods_s:.0f}" for each in found)
        print(f"{name:<20} {median:7.0f} {median / yardstick:8.2f}x {cpu:11.1f}   {rounds_of}", flush=True)


def rate(cluster: Cluster, setup: Setup, pods: int) -> Rate:
    """Run a scheduler with a set-up."""
    with ExitStack() as parts:
        extender = None if setup.extender is None else parts.enter_context(EXTENDERS[setup.extender](cluster))
        text = configuration(setup, None if extender is None else extender.prefix)
        scheduler = parts.enter_context(servers.scheduler(cluster.plane, text, "bench-scheduler", setup.flags))
        processes = [psutil.Process(scheduler.pid)]
        if extender is not None:
            processes.append(psutil.Process(extender.server.pid))
        samples = [Sample(time.perf_counter(), 0.0, 0.0)]
        deadline = time.monotonic() + PATIENCE_S
        while samples[-1].bound < pods:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{setup.title}: {samples[-1].bound:.0f} of {pods} pods bound\n{scheduler.tail()}")
            time.sleep(POLL_S)
            cpu = sum(sum(each.cpu_times()[:2]) for each in processes)
            samples.append(Sample(time.perf_counter(), bound_pods(cluster, scheduler), cpu))
        return slope(samples, pods)


def slope(samples: list[Sample], pods: int) -> Rate:
    """Return the rate between a tenth and nine tenths of the pods."""
    low, high = (next(at for at, each in enumerate(samples) if each.bound >= pods * part) for part in (0.1, 0.9))
    first, last = samples[low], samples[max(high, low + 1)]
    bound_between = last.bound - first.bound
    return Rate(bound_between / (last.at - first.at), 1000 * (last.cpu - first.cpu) / bound_between)


def bound_pods(cluster: Cluster, scheduler: Server) -> float:
    """Return the number of bound pods, from the scheduler's metrics."""
    with urllib3.PoolManager(retries=False, timeout=10.0, ca_certs=str(cluster.plane.authority.certificate)) as pool:
        text = pool.request("GET", f"{scheduler.url}/metrics").data.decode()
    name = "scheduler_schedule_attempts_total"
    lines = "\n".join(line for line in text.splitlines() if name in line) + "\n"
    families = text_string_to_metric_families(lines)
    samples = [each for family in families for each in family.samples]
    return sum(each.value for each in samples if each.labels["result"] == "scheduled")


def configuration(setup: Setup, prefix: str | None) -> str:
    """Return the shipped configuration with the changes of the set-up."""
    document: Object = yaml.safe_load(scheduler_config.render_configuration([GPU]))
    document["leaderElection"] = {"leaderElect": False}
    document["clientConnection"] = {"qps": 5000, "burst": 10000}
    if not setup.all_nodes:
        del document["percentageOfNodesToScore"]
    if prefix is None:
        del document["extenders"]
    else:
        document["extenders"][0]["urlPrefix"] = prefix
    return yaml.safe_dump(document)


def populate(cluster: Cluster, size: int) -> None:
    """Create nodes of the simulated shapes in turn, as published by agents."""
    running.prepare(cluster)
    shapes = [make() for make in SHAPES.values()]
    nodes, words = [], []
    # No agent confirms it meanwhile, and reports that are too old or too far in the future are not trusted.
    observed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + MAX_CLOCK_AHEAD_S - 60.0))
    for at in range(size):
        name = f"gpu-node-{at:05}-pool-a1b2c3"
        facts = encode_topology(on_node(shapes[at % len(shapes)], name))
        node = gpu_node(name, 8, {**facts.labels, **facts.mirrors})
        node["metadata"]["annotations"] = dict(facts.annotations)
        nodes.append(("/api/v1/nodes", node))
        word = {
            "apiVersion": NODE_GPUS.api_version,
            "kind": "NodeGpus",
            "metadata": {"name": name},
            "observedAt": observed,
            "contentHash": content_hash(facts.annotations[keys.TOPOLOGY.key]),
            "agentVersion": "0.1.0",
            "allocations": [],
        }
        words.append((NODE_GPUS.path(), word))
    cluster.api.create_all(nodes)
    cluster.api.create_all(words)


def create(cluster: Cluster, asks: tuple[tuple[int, dict[str, str]], ...], pods: int, storm: int) -> None:
    """Create the pods, first the pods of the storm."""
    waiting = [running.gpu_pod(f"gang-{at}", 8, {"min-bandwidth": "99999", REFUSED: "true"}) for at in range(storm)]
    cluster.api.create_all([(cluster.pods(), each) for each in waiting])
    others = (running.gpu_pod(f"train-{at}", *asks[at % len(asks)]) for at in range(pods))
    cluster.api.create_all([(cluster.pods(), each) for each in others])


class Called(NamedTuple):
    """A running extender."""

    prefix: str
    server: Server


@contextmanager
def gputopo(cluster: Cluster) -> Iterator[Called]:
    """Start the shipped extender."""
    with running.running(cluster) as extender:
        extender.wait_until_ready()
        yield Called(extender.prefix, extender.server)


@contextmanager
def no_op(cluster: Cluster) -> Iterator[Called]:
    """Start an extender on the same server that only decodes and encodes."""
    port = free_port()
    log = cluster.plane.folder / "logs" / "no-op.log"
    process = Server("no-op extender", [sys.executable, __file__, "--no-op", str(port)], log, dict(os.environ))
    prefix = f"http://127.0.0.1:{port}"
    try:
        process.wait_until(lambda: _listens(prefix))
        yield Called(prefix, process)
    finally:
        process.stop()


EXTENDERS: dict[str, Callable[[Cluster], Any]] = {"no-op": no_op, "gputopo": gputopo}


def _listens(prefix: str) -> bool:
    with urllib3.PoolManager(retries=False, timeout=2.0) as pool:
        try:
            return pool.request("GET", prefix).status == 404
        except urllib3.exceptions.HTTPError as nobody:
            raise OSError(prefix) from nobody


def serve_no_op(port: int) -> None:
    """Run the no-op extender."""
    listener = Listener(
        extender_app(no_op_verbs(), lambda: None, 1 << 26, "", time.monotonic), bind_socket(("127.0.0.1", port))
    )
    uvloop.run(serve_listeners([listener], asyncio.Event()))


def no_op_verbs() -> dict[str, Handler]:
    """Pass every node with the same score; reject the nodes of marked pods."""

    async def filter_(sent: bytes, _: float) -> Reply:
        asked = parse_extender_args(sent)
        if REFUSED in (asked.pod.metadata.annotations or {}):
            return Reply(200, filter_result((), dict.fromkeys(asked.names, Reason.BANDWIDTH.value)))
        return Reply(200, filter_result(list(asked.names), {}))

    async def prioritize(sent: bytes, _: float) -> Reply:
        return Reply(200, host_priorities([(name, 5) for name in parse_extender_args(sent).names]))

    return {"filter": filter_, "prioritize": prioritize}


if __name__ == "__main__":
    main()
