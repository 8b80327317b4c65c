"""Memory and latency of planner and extender over a long time, in a real control plane.

Fake nodes as published by agents; kube-scheduler with the extender, and the planner, in a pool where ungated pods land
too. All the time gangs and single pods of changing requests arrive, are bound, live for ``LIFE_S`` and end. Some gangs
never fit. A thread does the API writes of all agents: a heartbeat of each node per five minutes, and the allocation of
a node after each change of its pods. There are no kubelets.

    memory    resident memory of a process; its slope after the first third of the time, the warm-up: least squares
    waits     from the creation of the last member of a gang to the binding of its last member
    filter    mean duration of a Filter call, from the extender's metrics

Run: make soak
`make` sets MALLOC_ARENA_MAX as the image does. The benchmark needs the control plane of docs/testing.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import NamedTuple

import psutil
from scheduler import populate

from gputopo.kube.rbac import NODE_GPUS
from gputopo.labels import keys
from gputopo.model import NodeTopology
from gputopo.timestamps import format_timestamp
from tests.api_client import Watch
from tests.api_objects import Object
from tests.e2e import binaries, servers
from tests.e2e.background import BackgroundWork
from tests.e2e.cluster import Cluster
from tests.e2e.gangs import members
from tests.e2e.gangs import running as planners
from tests.e2e.scheduler import running as extenders
from tests.simulated_node.shapes import SHAPES, on_node

NODES, MINUTES = 1_000, 30.0
GANG_S, POD_S = 1.0, 1.0  # between two gangs, and between two single pods
LIFE_S = 20.0  # of a bound gang or pod
HEARTBEAT_S = 300.0
SAMPLE_S = 10.0
UNFIT = 20  # gangs that never fit
GANGS = (members.Asked(4, 1), members.Asked(2, 8), members.Asked(4, 2, {"island": "required"}), members.Asked(8, 4))
PODS: tuple[tuple[int, dict[str, str]], ...] = ((1, {}), (2, {"island": "required"}), (1, {}), (4, {}))


class Sample(NamedTuple):
    """One measurement."""

    minute: float
    mib: dict[str, float]  # resident memory by process
    filter_ms: float  # mean since the last sample
    waits: list[float]  # of gangs that were bound since the last sample, seconds


def main() -> None:
    """Print the samples, and what they amount to."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=NODES)
    options.add_argument("--minutes", type=float, default=MINUTES)
    asked = options.parse_args()
    found = binaries.find(os.environ)
    with tempfile.TemporaryDirectory() as folder, servers.control_plane(found, Path(folder)) as plane:
        cluster = Cluster(plane, plane.client(), "bench")
        planners.prepare(cluster)
        populate(cluster, asked.nodes)
        report(soak(cluster, asked.nodes, asked.minutes))
        cluster.api.close()


def soak(cluster: Cluster, nodes: int, minutes: float) -> list[Sample]:
    """Run everything for this time, and measure."""
    with ExitStack() as parts:
        extender = parts.enter_context(extenders.running(cluster))
        planner = parts.enter_context(planners.running(cluster))
        extender.wait_until_ready()
        parts.enter_context(servers.scheduler(cluster.plane, extender.configuration(), "soak-scheduler"))
        planner.wait_until_ready()
        processes = {
            name: psutil.Process(each.server.pid) for name, each in (("planner", planner), ("extender", extender))
        }
        arrivals = Arrivals(cluster)
        parts.callback(arrivals.stop)
        parts.enter_context(Agents(cluster, nodes, arrivals))
        parts.enter_context(arrivals)
        samples, began, before = list[Sample](), time.monotonic(), (0.0, 0.0)
        print(
            f"{nodes:,} nodes\n{'minute':>7} {'planner MiB':>12} {'extender MiB':>13} {'filter ms':>10} {'wait s':>11}"
        )
        while time.monotonic() - began < 60 * minutes:
            time.sleep(SAMPLE_S)
            name, verb = "gputopo_extender_call_duration_seconds", {"verb": "filter"}
            total = extender.count(f"{name}_sum", **verb), extender.count(f"{name}_count", **verb)
            filter_ms = 1000 * (total[0] - before[0]) / max(1.0, total[1] - before[1])
            before = total
            mib = {name: each.memory_info().rss / 2**20 for name, each in processes.items()}
            samples.append(Sample((time.monotonic() - began) / 60, mib, filter_ms, arrivals.take_waits()))
            if len(samples) % 6 == 0:
                show(samples[-6:])
        return samples


def show(some: Sequence[Sample]) -> None:
    """Print one row for these samples."""
    waits = [each for sample in some for each in sample.waits] or [float("nan")]
    filter_ms = statistics.fmean(each.filter_ms for each in some)
    mib = some[-1].mib
    print(
        f"{some[-1].minute:7.1f} {mib['planner']:12.1f} {mib['extender']:13.1f} {filter_ms:10.2f} "
        f"{statistics.median(waits):11.2f}",
        flush=True,
    )


def report(samples: Sequence[Sample]) -> None:
    """Print slopes and drifts after the warm-up."""
    warm = samples[len(samples) // 3 :]
    half = len(warm) // 2
    for name in warm[0].mib:
        slope = statistics.linear_regression([each.minute for each in warm], [each.mib[name] for each in warm]).slope
        print(f"{name}: {slope:+.3f} MiB a minute after warm-up, from {warm[0].mib[name]:.1f} MiB")
    for title, values in (
        ("filter, ms", [[each.filter_ms] for each in warm]),
        ("wait of a gang, s", [each.waits for each in warm]),
    ):
        first, second = ([one for each in part for one in each] for part in (values[:half], values[half:]))
        medians = statistics.median(first), statistics.median(second)
        print(f"{title}: median {medians[0]:.2f} in the first half after warm-up, {medians[1]:.2f} in the second")
    print(f"gangs bound: {sum(len(each.waits) for each in samples):,}")


class Arrivals(BackgroundWork):
    """Creates gangs and pods, records when they are bound, and deletes them later."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("arrivals", 0.05)
        self.changed: deque[tuple[str, str, int, bool]] = deque()  # node, pod, GPUs, and whether it is there now
        self._cluster, self._numbers = cluster, count()
        self._created: dict[str, float] = {}  # by gang
        self._bound: defaultdict[str, dict[str, str]] = defaultdict(dict)  # by gang: pod -> node
        self._sizes: dict[str, tuple[int, int]] = {}  # by gang: members, and GPUs of each
        self._ends: deque[tuple[float, str]] = deque()
        self._waits: list[float] = []
        self._next = {"gang": time.monotonic(), "pod": time.monotonic()}
        for number in range(UNFIT):
            wishes = {keys.POD_GANG_REQUIRED.key: "kubernetes.io/hostname"}
            self._create(f"unfit-{number}", members.Asked(2, 5 + number % 4, wishes))
        self._is_stopped = False
        self._watch = self._list_and_watch()
        self._watcher = threading.Thread(target=self._follow)
        self._watcher.start()

    def stop(self) -> None:
        """Stop watching."""
        self._is_stopped = True
        self._watch.stop()
        self._watcher.join()

    def take_waits(self) -> list[float]:
        """Return the waits of the gangs that were bound since the last call."""
        found, self._waits = self._waits, []
        return found

    def _turn(self) -> None:
        now = time.monotonic()
        if now >= self._next["gang"]:
            self._next["gang"] += GANG_S
            number = next(self._numbers)
            self._create(f"gang-{number}", GANGS[number % len(GANGS)])
        if now >= self._next["pod"]:
            self._next["pod"] += POD_S
            number = next(self._numbers)
            gpus, wishes = PODS[number % len(PODS)]
            pod = extenders.gpu_pod(f"pod-{number}", gpus, wishes)
            pod["metadata"].setdefault("annotations", {})["bench/soak"] = f"pod-{number}"
            self._sizes[f"pod-{number}"] = 1, gpus
            self._cluster.create_pod(pod)
        while self._ends and self._ends[0][0] <= now:
            self._end(self._ends.popleft()[1])

    def _create(self, gang: str, asked: members.Asked) -> None:
        self._sizes[gang] = asked.size, asked.gpus
        pods = members.gang(gang, asked)
        self._cluster.api.create_all([(self._cluster.pods(), each) for each in pods], asked.size)
        self._created[gang] = time.monotonic()

    def _end(self, gang: str) -> None:
        _, gpus = self._sizes.pop(gang)  # first: the watch takes no more notice of it
        self._created.pop(gang, None)
        for pod, node in self._bound.pop(gang).items():
            self._cluster.api.delete(self._cluster.pods(pod))
            self.changed.append((node, pod, gpus, False))

    def _follow(self) -> None:
        while not self._is_stopped:
            for what, pod in self._watch:
                if what != "DELETED":
                    self._observe(pod)
            if not self._is_stopped:  # the API server ends the watch of a client that is too slow
                self._watch = self._list_and_watch()

    def _list_and_watch(self) -> Watch:
        listed = self._cluster.api.get(self._cluster.pods())
        for pod in listed["items"]:
            self._observe(pod)
        return self._cluster.api.watch(self._cluster.pods(), listed["metadata"]["resourceVersion"], timeout_s=7200)

    def _observe(self, pod: Object) -> None:
        node, annotations = members.node_of(pod), pod["metadata"].get("annotations", {})
        gang = members.gang_of(pod) or annotations.get("bench/soak")
        asked = None if gang is None else self._sizes.get(gang)
        if node is None or gang is None or asked is None:
            return
        (size, gpus), bound, name = asked, self._bound[gang], pod["metadata"]["name"]
        if name in bound:
            return
        bound[name] = node
        self.changed.append((node, name, gpus, True))
        if len(bound) == size:
            now = time.monotonic()
            self._ends.append((now + LIFE_S, gang))
            if gang in self._created:
                self._waits.append(now - self._created[gang])


class Agents(BackgroundWork):
    """The API writes of all agents: heartbeats, and the GPUs of pods."""

    def __init__(self, cluster: Cluster, nodes: int, arrivals: Arrivals) -> None:
        super().__init__("agents", 0.02)
        self._cluster, self._arrivals = cluster, arrivals
        shapes = [make() for make in SHAPES.values()]
        found = cluster.api.items(NODE_GPUS.path())
        self._objects = {each["metadata"]["name"]: each for each in found}
        self._names = [f"gpu-node-{at:05}-pool-a1b2c3" for at in range(nodes)]
        self._uuids = {name: _uuids(shapes[at % len(shapes)], name) for at, name in enumerate(self._names)}
        self._began, self._beats = time.monotonic(), 0

    def _turn(self) -> None:
        while self._arrivals.changed:
            node, pod, gpus, is_there = self._arrivals.changed.popleft()
            held = [each for each in self._objects[node]["allocations"] if each["pod"]["name"] != pod]
            if is_there:
                taken = {each["gpu"] for each in held}
                free = [each for each in self._uuids[node] if each not in taken]
                ref = {"namespace": self._cluster.namespace, "name": pod, "container": "main"}
                held += [{"gpu": each, "pod": ref} for each in free[:gpus]]
            self._write(node, held)
        due = int((time.monotonic() - self._began) * len(self._names) / HEARTBEAT_S)
        while self._beats < due:
            node = self._names[self._beats % len(self._names)]
            self._write(node, self._objects[node]["allocations"])
            self._beats += 1

    def _write(self, node: str, allocations: list[Object]) -> None:
        self._objects[node]["allocations"] = allocations
        changes = {"allocations": allocations, "observedAt": format_timestamp(time.time())}
        self._cluster.api.patch(NODE_GPUS.path(node), changes)


def _uuids(shape: NodeTopology, name: str) -> list[str]:
    return [gpu.uuid for gpu in on_node(shape, name).gpus if gpu.uuid is not None]


if __name__ == "__main__":
    main()
