"""The cost of gangs and planned pods in a real control plane: kube-scheduler with and without the planner.

Fake nodes with labels, topology annotation and ``NodeGpus``; etcd, API server, kube-scheduler and planner share the
machine. There are no kubelets. ``--pool gated``: no extender needs to acknowledge, and kube-scheduler calls none.

    single pods     planned pods, compared with the same pods ungated and with kube-scheduler alone: with all nodes
                    scored and with its default sampling, in turns in one run (see ``bench/scheduler.py``). All pods
                    exist before the first pod is bound
    patches         planned pods, compared with the same pods ungated by a controller that sends the same patch and does
                    nothing else, and by one that also watches pods (``bench/bare_controller.py``), in turns in one run
    small gangs     gangs of 4 pods with 1 GPU, a number per minute; the oldest complete gangs are deleted. Measured are
                    the waiting time of each gang, and the planner's writes, from the API server's audit log

Run: make bench-planner (15 minutes; the control plane of docs/testing.md). --only, --nodes, --pods, --rounds, --minutes
for less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from scheduler import Rate, Sample, Setup, bound_pods, configuration, populate, slope

from gputopo.labels import keys
from tests.api_objects import Object
from tests.e2e import audit, binaries, servers
from tests.e2e.agent.access import user
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.credentials import write_kubeconfig
from tests.e2e.gangs import members
from tests.e2e.gangs import running as planners
from tests.e2e.process import Server
from tests.e2e.scheduler.running import gpu_pod

NODES, PODS, ROUNDS = 5_000, 600, 3
GANG_NODES, A_MINUTE, MINUTES = 1_000, 200, 2
SMALL = members.Asked(4, 1)
KEPT = 20  # gangs that stay before the oldest is deleted
POLL_S = 0.1
PATIENCE_S = 300.0
ALL, SAMPLED, PLANNED = "all nodes", "default sampling", "planned"
PATCHES, WATCHING = "patches only", "patches and watch"
WORKLOADS = {"1 GPU each": (1,), "1, 2, 1 and 4 GPUs in turn": (1, 2, 1, 4)}


def main() -> None:
    """Print the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=("single", "patches", "gangs"))
    options.add_argument("--nodes", type=int, default=NODES)
    options.add_argument("--gang-nodes", type=int, default=GANG_NODES)
    options.add_argument("--pods", type=int, default=PODS)
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--minutes", type=float, default=MINUTES)
    asked = options.parse_args()
    if asked.only != "gangs":
        with populated(asked.nodes) as cluster:
            ways = (PATCHES, WATCHING, PLANNED) if asked.only == "patches" else (ALL, SAMPLED, PLANNED, PATCHES)
            for title, sizes in WORKLOADS.items():
                rates = measure(cluster, ways, sizes, asked.pods, asked.rounds)
                show(f"{asked.nodes:,} nodes, {title}", rates)
    if asked.only in (None, "gangs"):
        with populated(asked.gang_nodes) as cluster:
            sustain(cluster, asked.minutes)


@contextmanager
def populated(size: int) -> Iterator[Cluster]:
    """Start a control plane with a number of nodes."""
    found = binaries.find(os.environ)
    with tempfile.TemporaryDirectory() as folder, servers.control_plane(found, Path(folder)) as plane:
        cluster = Cluster(plane, plane.client(), "bench")
        planners.prepare(cluster)
        populate(cluster, size)
        yield cluster
        cluster.api.close()


# -- single pods ------------------------------------------------------------------------------------------------------


def measure(
    cluster: Cluster, ways: Sequence[str], sizes: tuple[int, ...], pods: int, rounds: int
) -> dict[str, list[Rate]]:
    """Return the rates of all rounds: all ways in turns, so that other load on the machine affects all of them."""
    rates: dict[str, list[Rate]] = {way: [] for way in ways}
    for _ in range(rounds):
        for name, found in rates.items():
            create_singles(cluster, sizes, pods, gated=name in (PLANNED, PATCHES, WATCHING))
            found.append(rate(cluster, name, pods))
            cluster.api.delete(cluster.pods())
            wait_for(lambda: not cluster.api.items(cluster.pods(), limit="1"), "the pods to go", PATIENCE_S)
    return rates


def show(title: str, rates: dict[str, list[Rate]]) -> None:
    """Print a table: medians, and ratios to each other way."""
    medians = {name: statistics.median(each.pods_s for each in found) for name, found in rates.items()}
    others = [name for name in rates if name != PLANNED]
    heads = "".join(f"{'of ' + name:>20}" for name in others)
    print(f"\n{title}\n{'':<18} {'pods/s':>7} {heads} {'CPU ms/pod':>11}   pods/s of each round")
    for name, found in rates.items():
        cpu = statistics.median(each.cpu_ms for each in found)
        ratios = "".join(f"{medians[name] / medians[other]:19.2f}x" for other in others)
        each_round = ", ".join(f"{each.pods_s:.0f}" for each in found)
        print(f"{name:<18} {medians[name]:7.0f} {ratios} {cpu:11.1f}   {each_round}", flush=True)


def create_singles(cluster: Cluster, sizes: tuple[int, ...], pods: int, *, gated: bool) -> None:
    """Create the pods."""
    wanted = (single(at, sizes[at % len(sizes)], gated=gated) for at in range(pods))
    cluster.api.create_all([(cluster.pods(), each) for each in wanted])


def single(number: int, gpus: int, *, gated: bool) -> Object:
    """Return a pod."""
    gates = {"schedulingGates": members.GATES} if gated else {}
    return gpu_pod(f"train-{number}", gpus, {keys.POD_PLANNED.key: "true"} if gated else {}, **gates)


def rate(cluster: Cluster, name: str, pods: int) -> Rate:
    """Measure how fast kube-scheduler binds, with the planner or alone, and the CPU time of both."""
    with ExitStack() as parts:
        text = configuration(Setup(name, all_nodes=name == ALL), None)
        scheduler = parts.enter_context(servers.scheduler(cluster.plane, text, "bench-scheduler"))
        processes = [psutil.Process(scheduler.pid)]
        if name == PLANNED:
            planner = parts.enter_context(planners.running(cluster, *planners.GATED))
            parts.callback(planners.expire_lease, cluster)
            processes.append(psutil.Process(planner.server.pid))
        if name in (PATCHES, WATCHING):
            bare = bare_controller(cluster, *(["watch"] if name == WATCHING else []))
            processes.append(psutil.Process(parts.enter_context(bare).pid))
        return slope(list(samples(cluster, scheduler, processes, pods)), pods)


@contextmanager
def bare_controller(cluster: Cluster, *arguments: str) -> Iterator[Server]:
    """Start a controller that patches all pods and waits."""
    folder = cluster.plane.folder
    token = {"token": cluster.token(planners.ACCOUNT)}
    kubeconfig = write_kubeconfig(folder / "bare.kubeconfig", cluster.url, cluster.plane.authority.certificate, token)
    program = [sys.executable, str(Path(__file__).with_name("bare_controller.py")), *arguments]
    server = Server(
        "bare controller",
        program,
        folder / "logs" / "bare.log",
        os.environ | {"KUBECONFIG": str(kubeconfig)},
    )
    try:
        yield server
    finally:
        server.stop()


def samples(cluster: Cluster, scheduler: Server, processes: list[psutil.Process], pods: int) -> Iterator[Sample]:
    """Wait until all pods are bound."""
    deadline = time.monotonic() + PATIENCE_S
    bound = 0.0
    while bound < pods:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{bound:.0f} of {pods} pods bound\n{scheduler.tail()}")
        time.sleep(POLL_S)
        bound = bound_pods(cluster, scheduler)
        yield Sample(time.perf_counter(), bound, sum(sum(each.cpu_times()[:2]) for each in processes))


# -- small gangs ------------------------------------------------------------------------------------------------------


class Bound:
    """The times when the last member of each gang was bound, from a watch."""

    def __init__(self, cluster: Cluster, size: int = SMALL.size) -> None:
        """``size``: members of each gang."""
        self._size = size
        self.whole: dict[str, float] = {}
        self._nodes: dict[str, set[str]] = {}  # names of bound members
        version = cluster.api.get(cluster.pods(), limit="1")["metadata"]["resourceVersion"]
        self._watch = cluster.api.watch(cluster.pods(), version)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
        self._watch.stop()
        self._thread.join()

    def _run(self) -> None:
        for _, each in self._watch:
            gang = members.gang_of(each)
            if gang is not None and members.node_of(each):
                bound = self._nodes.setdefault(gang, set())
                bound.add(each["metadata"]["name"])
                if len(bound) == self._size:
                    self.whole.setdefault(gang, time.perf_counter())


def sustain(cluster: Cluster, minutes: float) -> None:
    """Create gangs at a fixed rate; delete the oldest."""
    text = configuration(Setup("gangs", all_nodes=True), None)
    with ExitStack() as parts:
        parts.enter_context(servers.scheduler(cluster.plane, text, "bench-scheduler"))
        planner = parts.enter_context(planners.running(cluster, *planners.GATED))
        planner.wait_until_ready()
        bound = Bound(cluster)
        parts.callback(bound.stop)
        count = round(minutes * A_MINUTE)
        offset = cluster.plane.audit_log.stat().st_size
        came = arrive(cluster, count, bound)
        backlog = len(came) - len(bound.whole)
        wait_for(lambda: len(bound.whole) == count, "the last gang to be whole", PATIENCE_S)
        time.sleep(2.0)  # for the planner's last writes
        report([bound.whole[name] - at for name, at in came.items()], backlog, writes(cluster, offset))


def arrive(cluster: Cluster, count: int, bound: Bound) -> dict[str, float]:
    """Create the gangs and return their creation times. Only complete gangs are deleted."""
    began, came, left = time.perf_counter(), dict[str, float](), 0
    for number in range(count):
        time.sleep(max(0.0, began + number * 60 / A_MINUTE - time.perf_counter()))
        name = f"gang-{number}"
        cluster.api.create_all([(cluster.pods(), each) for each in members.gang(name, SMALL)], SMALL.size)
        came[name] = time.perf_counter()
        for gone in list(bound.whole)[left : max(0, len(bound.whole) - KEPT)]:
            left += 1
            for at in range(SMALL.size):
                cluster.api.delete(cluster.pods(f"{gone}-{at}"))
    return came


def writes(cluster: Cluster, offset: int) -> Counter[str]:
    """Return the planner's writes since a time."""
    mine = user(cluster, planners.ACCOUNT)
    found = (each for each in audit.read_writes(cluster.plane.audit_log, offset) if each.user == mine)
    return Counter(f"{each.verb} {each.resource} {each.status}" for each in found)


def report(waits: list[float], backlog: int, written: Counter[str]) -> None:
    """Print the results of the gangs."""
    ordered, count = sorted(waits), len(waits)
    print(f"\n{count} gangs of {SMALL.size}, {A_MINUTE} a minute: all complete, {backlog} after the last was created")
    for title, part in (("p50", 0.5), ("p95", 0.95), ("most", 1.0)):
        print(f"  waited, {title:<5} {ordered[min(count - 1, int(part * count))]:6.2f} s")
    print(f"  writes of the planner: {sum(written.values()) / count:.2f} for each gang")
    for name, times in written.most_common():
        print(f"    {name:<40} {times / count:6.2f}")


if __name__ == "__main__":
    main()
