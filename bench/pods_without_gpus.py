"""Costs of pods without GPUs for the planner: memory and lists of 100,000, and CPU time of each event on its threads.

The pods are of 40 templates, on 5,000 nodes with GPUs. "watch": the thread that decodes them. "loop": the thread that
applies them; a status that changes nothing is not delivered to it.
Run: make bench
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from typing import Any
from uuid import UUID

import msgspec

from gputopo.kube.projection import Projection
from gputopo.kube.watch_stream import WatchEvent, WatchEventType, parse_identity
from scheduler_core.cache.events import Batch, LedgerUpdate, NodeGpusUpdate, NodeUpdate, ReservationUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.planner.gang.pod_source import PlannerPod, planner_sources
from scheduler_core.planner.leader.list_parts import parts_of
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.pod import Metadata
from tests.machines import MACHINES
from tests.scheduler_core.builders import record

NODES, TEMPLATES, EVENTS = 5_000, 40, 2_000


def pod(number: int, **status: Any) -> msgspec.Raw:
    """Return a bound pod as the API server sends it."""
    template = number % TEMPLATES
    requests = {"cpu": f"{100 + template}m", "memory": f"{64 + template}Mi"}
    made = {
        "metadata": {
            "name": f"web-{template}-{number:x}",
            "namespace": f"team-{number % 100}",
            "uid": str(UUID(int=(number + 1) << 64)),
            "resourceVersion": "1",
            "labels": {"app": f"web-{template}"},
        },
        "spec": {
            "nodeName": f"node-{number % NODES:05}",
            "containers": [
                {"name": "c", "image": "registry.example.com/web:1", "resources": {"requests": requests}},
                {"name": "side", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}},
            ],
        },
        "status": {"phase": "Running", **status},
    }
    return msgspec.Raw(msgspec.json.encode(made))


def view_of_nodes() -> PlannerView:
    """Return a planner's view of the nodes."""
    view, machine = PlannerView(BUILT_IN.node_policy, "pool", "me"), record("n", MACHINES["hgx_h100"]()).machine
    names = [f"node-{at:05}" for at in range(NODES)]
    nodes = tuple(NodeUpdate(name, machine, FullNode(Metadata(name))) for name in names)
    for kind, found in ((NodeUpdate, nodes), (NodeGpusUpdate, ()), (ReservationUpdate, ()), (LedgerUpdate, ())):
        view.apply_batch(Batch(kind, found, is_full_list=True), 0.0)
    return view


def measure_lists(view: PlannerView, listed: Batch[Any]) -> None:
    """Print the CPU time of a list as a whole, and of the same list in parts, as after the first one."""
    began = time.thread_time()
    view.apply_batch(listed, 0.0)
    whole, longest = time.thread_time() - began, 0.0
    began = last = time.thread_time()
    for part in parts_of(listed, view):
        view.apply_batch(part, 0.0)
        longest, last = max(longest, time.thread_time() - last), time.thread_time()
    print(f"list: {1e3 * whole:.0f} ms; in parts: {1e3 * (last - began):.0f} ms, longest {1e3 * longest:.1f} ms")


def main() -> None:
    """Print the figures."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    projection, view = Projection(planner_sources()[PlannerPod]), view_of_nodes()
    gc.collect()
    tracemalloc.start()
    view.apply_batch(Batch(PlannerPod, *projection.apply_list(map(pod, range(number)))), 0.0)
    gc.collect()
    print(f"memory of {number:,} pods: {tracemalloc.get_traced_memory()[0] / 2**20:.1f} MiB")
    tracemalloc.stop()
    measure_lists(view, Batch(PlannerPod, *projection.apply_list(map(pod, range(number)))))
    kinds = WatchEventType.MODIFIED, WatchEventType.DELETED, WatchEventType.ADDED
    for kind in kinds:
        changed = [pod(at, podIP="10.0.0.1") for at in range(min(EVENTS, number))]
        events = [WatchEvent(kind, parse_identity(each), each) for each in changed]
        began = time.thread_time()
        deltas = [delta for event in events for delta in projection.apply_events([event])]
        decoded = time.thread_time()
        for delta in deltas:
            view.apply_batch(Batch(PlannerPod, *delta), 0.0)
        applied = time.thread_time()
        micro = 1e6 / len(events)
        print(f"{kind.value}: watch {micro * (decoded - began):.1f} µs, loop {micro * (applied - decoded):.1f} µs")


if __name__ == "__main__":
    main()
