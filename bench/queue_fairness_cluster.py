"""Waits of gangs that fit behind gangs that do not fit, in a real control plane, and ratios to waits without them.

Fake nodes, a real kube-scheduler and the planner. The gangs that do not fit have no node with enough GPUs for all their
members in one host, and the planner has tried all of them. Then gangs that fit arrive one after the other, each a
second after the last one was created, while pods of another scheduler end and start on other nodes. A group that is not
measured comes first, because its first gangs wait until kube-scheduler has seen all nodes.

    --different     each gang that does not fit has a request of its own; otherwise there are four requests
    --holds         the planner holds capacity, after 30 s; otherwise after an hour, so not in this run
    --no-preemption no dry runs of preemption

    wait      from the creation of the last member to the binding of the last member, seconds
    CPU %     CPU of the planner once all gangs that fit are bound, in % of a core, with the pod events
Run: PYTHONPATH=. python bench/queue_fairness_cluster.py (the control plane of docs/testing.md)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import psutil
from planner_cluster import Bound
from scheduler import Setup, configuration, populate

from gputopo.labels import keys
from scheduler_core.policy.models import API_VERSION, KIND
from tests.api_objects import pod
from tests.e2e import binaries, servers
from tests.e2e.background import BackgroundWork
from tests.e2e.cluster import Cluster
from tests.e2e.gangs import members
from tests.e2e.gangs import running as planners

NODES, UNFIT, FIT = 500, (0, 10, 100, 1_000), 40
FITS = members.Asked(4, 1)
SWAP_S = 0.1  # from one replaced pod to the next
PATIENCE_S = 300.0
IDLE_S = 20.0  # duration of the CPU measurement


def main() -> None:
    """Print a row per number of gangs that do not fit."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=NODES)
    options.add_argument("--unfit", type=int, nargs="+", default=UNFIT)
    options.add_argument("--different", action="store_true")
    options.add_argument("--holds", action="store_true")
    options.add_argument("--no-preemption", action="store_true")
    asked = options.parse_args()
    found = binaries.find(os.environ)
    with tempfile.TemporaryDirectory() as folder, servers.control_plane(found, Path(folder)) as plane:
        cluster = Cluster(plane, plane.client(), "bench")
        planners.prepare(cluster)
        populate(cluster, asked.nodes)
        tenant = Cluster(plane, cluster.api, "tenant")  # of one namespace only 1,000 gangs are planned
        with ExitStack() as parts:
            parts.enter_context(servers.scheduler(plane, configuration(Setup("fair", all_nodes=True), None), "bench"))
            flags = [*planners.GATED, "--patience", "30" if asked.holds else "1h"]
            if asked.no_preemption:
                policy = {"apiVersion": API_VERSION, "kind": KIND, "preemption": {"mode": "off"}}
                file = Path(folder) / "policy.json"
                file.write_text(json.dumps(policy), encoding="utf-8")
                flags += ["--policy", str(file)]
            planner = parts.enter_context(planners.running(cluster, *flags))
            planner.wait_until_ready()
            parts.enter_context(Swaps(cluster, asked.nodes))
            print(f"{asked.nodes:,} nodes")
            print(f"{'do not fit':>11} {'started':>8} {'p50 s':>7} {'max s':>7} {'ratio':>6} {'CPU %':>8}")
            measure(cluster, "warm-up")
            base: float | None = None
            there = 0
            for unfit in asked.unfit:
                add_unfit(tenant, there, unfit, different=asked.different)
                there = unfit
                waits = measure(cluster, f"fit-{unfit}")
                median = statistics.median(waits) if waits else float("nan")
                base = median if base is None else base
                most = max(waits, default=float("nan"))
                row = f"{unfit:11,} {len(waits):5}/{FIT} {median:7.2f} {most:7.2f} {median / base:6.2f}"
                print(f"{row} {100 * idle_cores(planner.server.pid):7.1f}%", flush=True)
        cluster.api.close()


def add_unfit(cluster: Cluster, there: int, unfit: int, *, different: bool) -> None:
    """Create gangs that do not fit, until there are so many, and wait until the planner has tried them."""
    pods = [
        each
        for number in range(there, unfit)
        for each in members.gang(
            f"unfit-{number}",
            members.Asked(
                2,
                5 + number % 4,
                {keys.POD_GANG_REQUIRED.key: "kubernetes.io/hostname"}
                | ({keys.POD_MIN_VRAM.key: f"{1 + number}Mi"} if different else {}),
            ),
        )
    ]
    cluster.api.create_all([(cluster.pods(), each) for each in pods])
    time.sleep(5.0 + unfit / 100)


def measure(cluster: Cluster, name: str) -> list[float]:
    """Let gangs that fit arrive. Return their waits; a gang that does not start in time has none."""
    bound, came = Bound(cluster, FITS.size), dict[str, float]()
    try:
        for number in range(FIT):
            gang = f"{name}-{number}"
            cluster.api.create_all([(cluster.pods(), each) for each in members.gang(gang, FITS)], FITS.size)
            came[gang] = time.perf_counter()
            time.sleep(1.0)
        deadline = time.monotonic() + PATIENCE_S
        while len(bound.whole) < FIT and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        bound.stop()
    return waits_of(came, bound)


def idle_cores(pid: int) -> float:
    """Return the mean number of cores that a process uses while no gang arrives."""
    planner = psutil.Process(pid)
    began, before = time.perf_counter(), sum(planner.cpu_times()[:2])
    time.sleep(IDLE_S)
    return (sum(planner.cpu_times()[:2]) - before) / (time.perf_counter() - began)


def waits_of(came: dict[str, float], bound: Bound) -> list[float]:
    """Return the waits of the gangs that started."""
    return [bound.whole[gang] - at for gang, at in came.items() if gang in bound.whole]


class Swaps(BackgroundWork):
    """Pods of another scheduler with one GPU that end and start on the last nodes.

    The other GPUs of these nodes are in use. Otherwise the planner could place a gang on the GPU of a pod that is being
    replaced, and the gang would wait until the new pod ends: this pod names its node itself, without kube-scheduler.
    """

    def __init__(self, cluster: Cluster, nodes: int) -> None:
        super().__init__("swaps", SWAP_S)
        self._cluster, self._numbers = cluster, count()
        self._nodes: Sequence[str] = [f"gpu-node-{at:05}-pool-a1b2c3" for at in range(nodes - 20, nodes)]
        for at, node in enumerate(self._nodes):
            cluster.create_pod(pod(f"full-{at}", 7, nodeName=node))

    def _turn(self) -> None:
        number = next(self._numbers)
        if number >= len(self._nodes):
            self._cluster.api.delete(self._cluster.pods(f"swap-{number - len(self._nodes)}"))
        self._cluster.create_pod(pod(f"swap-{number}", 1, nodeName=self._nodes[number % len(self._nodes)]))


if __name__ == "__main__":
    main()
