"""Memory and latency of planner and extender over a long time, in a real control plane.

Fake nodes; kube-scheduler with the extender, and the planner, in a pool where ungated pods land too. All the time gangs
and single pods arrive, are bound, live for ``LIFE_S`` and end (``bench/soak_load.py``). Half of them have one of eight
fixed requests, the others a request of their own: ``gputopo.io/min-vram`` differs. During the warm-up, the first third
of the time, small gangs with requests of their own arrive as well: in 30 minutes 1,200, so that the planner and the
extender have seen more requests than they remember. 20 gangs with fixed requests and 20 with requests of their own
never fit.

A thread does the API writes of all agents, by the agents' own code: labels, annotation and ``NodeGpus`` of each node at
the start, ``NodeGpus`` again when the allocations of the node change, and every five minutes a look at the Node and a
renewal of the Lease. By default agents behave as an hour after their start. In its first hour an agent also applies
``NodeGpus`` at each heartbeat: ``--lease-after 3600``. Not simulated: kubelets, the use of GPUs in ``NodeGpus``, and
the apply of an unchanged ``NodeGpus`` once an hour if the benchmark takes less time.

    memory    resident memory of a process; its slopes after the warm-up: least squares. No process reports the memory
              of its live objects apart from what the garbage collector or the allocator still keeps
    waits     from the creation of the last member of a gang to the binding of its last member
    filter    mean durations of the Filter calls of 10 seconds, from the extender's metrics; and of single calls, how
              many took at most how long, by the buckets of the histogram
    stale     nodes whose link graph no agent confirms, for extender or planner; expected: 0

Run: make soak
`make` sets MALLOC_ARENA_MAX as the image does. The benchmark needs the control plane of docs/testing.md.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import psutil
from prometheus_client.parser import text_string_to_metric_families
from soak_load import Agents, Arrivals

from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from gputopo.kube.rbac import AGENT
from tests.e2e import binaries, servers
from tests.e2e.agent.access import grant, open_kube
from tests.e2e.cluster import Cluster
from tests.e2e.gangs import running as planners
from tests.e2e.scheduler import running as extenders
from tests.e2e.scheduler.running import Served

NODES, MINUTES = 1_000, 30.0
WARM_UP = 1 / 3  # of the time
SAMPLE_S = 10.0
MALLOC = "MALLOC_ARENA_MAX"
CALLS = "gputopo_extender_call_duration_seconds"


class Calls(NamedTuple):
    """The Filter calls since the start of the extender."""

    number: float = 0.0
    seconds: float = 0.0
    within: Mapping[float, float] = MappingProxyType({})  # by upper bound of the duration in seconds: number of calls

    def mean_ms(self, before: Calls) -> float:
        """Return the mean duration of the calls since."""
        return 1000 * (self.seconds - before.seconds) / max(1.0, self.number - before.number)

    def bound_ms(self, before: Calls, part: float) -> float:
        """Return the bound of the first bucket within which this part of the calls since took."""
        needed = part * (self.number - before.number)
        return 1000 * min(
            bound for bound, number in self.within.items() if number - before.within.get(bound, 0) >= needed
        )


class Sample(NamedTuple):
    """One measurement."""

    minute: float
    mib: dict[str, float]  # resident memory by process
    filter_ms: float  # mean since the last sample
    waits: list[float]  # of gangs that were bound since the last sample, seconds
    stale: int  # nodes
    calls: Calls


def main() -> None:
    """Print the samples, and what they amount to."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=NODES)
    options.add_argument("--minutes", type=float, default=MINUTES)
    options.add_argument("--lease-after", type=float, default=0.0, metavar="SECONDS", help="as of `gputopo agent`")
    asked = options.parse_args()
    if MALLOC not in os.environ:
        options.error(f"{MALLOC} is not set: memory would grow as it does not in the image; use `make soak`")
    with prepared_cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        kube = open_kube(cluster, "agent", AGENT, Path(folder))
        agents = Agents(cluster, range(asked.nodes), kube, asked.lease_after)
        with agents:
            report(soak(cluster, agents, asked.minutes))
        print(
            f"writes of agents: {agents.writes('node'):,} of Nodes, {agents.writes('nodegpus'):,} of NodeGpus, "
            f"{agents.writes('lease'):,} of Leases, {agents.failures():,} failed"
        )
        kube.close()


@contextmanager
def prepared_cluster() -> Iterator[Cluster]:
    """Start a control plane that has everything but nodes."""
    found = binaries.find(os.environ)
    with tempfile.TemporaryDirectory() as folder, servers.control_plane(found, Path(folder)) as plane:
        cluster = Cluster(plane, plane.client(), "bench")
        extenders.prepare(cluster)
        planners.prepare(cluster)
        cluster.create_namespace(HEARTBEAT_NAMESPACE)
        grant(cluster, "agent", AGENT)
        yield cluster
        cluster.api.close()


def soak(cluster: Cluster, agents: Agents, minutes: float) -> list[Sample]:
    """Run everything for this time, and measure."""
    with ExitStack() as parts:
        extender = parts.enter_context(extenders.running(cluster))
        planner = parts.enter_context(planners.running(cluster))
        extender.wait_until_ready()
        parts.enter_context(servers.scheduler(cluster.plane, extender.configuration(), "soak-scheduler"))
        planner.wait_until_ready()
        served: dict[str, Served] = {"planner": planner, "extender": extender}
        arrivals = Arrivals(cluster, agents.changes, 60 * minutes * WARM_UP)
        parts.callback(arrivals.stop)
        parts.enter_context(arrivals)
        samples, began = list[Sample](), time.monotonic()
        print(
            f"{'minute':>7} {'planner MiB':>12} {'extender MiB':>13} {'filter ms':>10} {'wait s':>11} {'most s':>11} "
            f"{'stale':>6}"
        )
        while time.monotonic() - began < 60 * minutes:
            time.sleep(SAMPLE_S)
            minute = (time.monotonic() - began) / 60
            samples.append(measure(served, minute, samples[-1].calls if samples else Calls(), arrivals.take_waits()))
            if len(samples) % 6 == 0:
                show(samples[-6:])
        print(f"gangs and pods with a request of their own: {arrivals.own_requests:,}")
        for name, each in served.items():
            show_failures(name, each)
        return samples


def measure(served: dict[str, Served], minute: float, before: Calls, waits: list[float]) -> Sample:
    """Return a sample. ``before``: the Filter calls of the sample before."""
    metrics = {name: read_metrics(each) for name, each in served.items()}
    filters = [
        each for each in metrics["extender"] if each.name.startswith(CALLS) and each.labels.get("verb") == "filter"
    ]
    calls = Calls(
        sum(each.value for each in filters if each.name == f"{CALLS}_count"),
        sum(each.value for each in filters if each.name == f"{CALLS}_sum"),
        {float(each.labels["le"]): each.value for each in filters if each.name == f"{CALLS}_bucket"},
    )
    stale = [each.value for found in metrics.values() for each in found if each.name == "gputopo_table_stale_nodes"]
    mib = {name: psutil.Process(each.server.pid).memory_info().rss / 2**20 for name, each in served.items()}
    return Sample(minute, mib, calls.mean_ms(before), waits, round(max(stale)), calls)


def read_metrics(served: Served) -> list[Any]:
    """Return the samples of all metrics of a process."""
    families = text_string_to_metric_families(served.text("/metrics"))
    return [each for family in families for each in family.samples]


def show(some: Sequence[Sample]) -> None:
    """Print one row for these samples."""
    waits = [each for sample in some for each in sample.waits] or [float("nan")]
    filter_ms = statistics.fmean(each.filter_ms for each in some)
    mib = some[-1].mib
    print(
        f"{some[-1].minute:7.1f} {mib['planner']:12.1f} {mib['extender']:13.1f} {filter_ms:10.2f} "
        f"{statistics.median(waits):11.2f} {max(waits):11.2f} {max(each.stale for each in some):6}",
        flush=True,
    )


def show_failures(name: str, served: Served) -> None:
    """Print the failed watches of a process, and how many warnings and errors of each event its log has."""
    failed = {
        each.labels["kind"]: round(each.value)
        for each in read_metrics(served)
        if each.name == "gputopo_watch_failures_total" and each.value
    }
    found = Counter[str]()
    for line in served.server.log.read_text(errors="replace").splitlines():
        try:
            each = msgspec.json.decode(line)
        except msgspec.DecodeError:
            found["a line that is not JSON"] += 1
            continue
        if each["level"] not in ("debug", "info"):
            found[f"{each['level']} {each['event']}"] += 1
    print(f"{name}: failures of watches: {listed(failed)}; log: {listed(found)}")


def listed(numbers: Mapping[str, int]) -> str:
    """Return the numbers as text."""
    return ", ".join(f"{number} x {what}" for what, number in numbers.items()) or "none"


def report(samples: Sequence[Sample]) -> None:
    """Print slopes and drifts after the warm-up."""
    start = round(len(samples) * WARM_UP)
    middle = (start + len(samples)) // 2
    warm, halves = samples[start:], (samples[start:middle], samples[middle:])
    for name in warm[0].mib:
        first, second = (slope(each, name) for each in halves)
        print(
            f"{name}: {slope(warm, name):+.3f} MiB a minute after the warm-up ({first:+.3f} in the first half, "
            f"{second:+.3f} in the second), from {warm[0].mib[name]:.1f} to {warm[-1].mib[name]:.1f} MiB"
        )
    show_halves("filter, mean of 10 s, ms", [[each.filter_ms for each in half] for half in halves])
    show_halves("wait of a gang, s", [[wait for each in half for wait in each.waits] for half in halves])
    for title, before, half in zip(("first", "second"), (samples[start - 1], samples[middle - 1]), halves, strict=True):
        calls, earlier = half[-1].calls, before.calls
        print(
            f"Filter calls in the {title} half: {calls.number - earlier.number:,.0f}; 99 % took at most "
            f"{calls.bound_ms(earlier, 0.99):g} ms, all at most {calls.bound_ms(earlier, 1.0):g} ms"
        )
    print(f"gangs bound: {sum(len(each.waits) for each in samples):,}")
    print(f"stale nodes: at most {max(each.stale for each in samples)}")


def slope(samples: Sequence[Sample], name: str) -> float:
    """Return the growth of the memory of a process in MiB per minute."""
    return statistics.linear_regression([each.minute for each in samples], [each.mib[name] for each in samples]).slope


def show_halves(title: str, halves: Sequence[Sequence[float]]) -> None:
    """Print median, 99th percentile and maximum of both halves after the warm-up."""
    for name, values in zip(("first", "second"), halves, strict=True):
        if not values:
            print(f"{title}, {name} half after the warm-up: no values")
            continue
        ordered = sorted(values)
        most = ordered[math.ceil(0.99 * len(ordered)) - 1]
        print(
            f"{title}, {name} half after the warm-up: median {statistics.median(ordered):.2f}, "
            f"99th percentile {most:.2f}, maximum {ordered[-1]:.2f}"
        )


if __name__ == "__main__":
    main()
